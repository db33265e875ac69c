"""Read the saves of the workers of an evaluation: `from sidecar import results; results.read(folder)`.

Part of the public API. This module needs numpy and no framework, so it can run on any machine with the files.
"""

import sys

try:
    from sidecar.evaluation.artifact_reader import Evaluation, read
except ModuleNotFoundError as error:
    if error.name != "numpy":
        raise
    why = f"sidecar.results needs numpy, which {sys.executable} lacks: install it there, or use the Python that trains"
    raise ImportError(why) from None

__all__ = ["Evaluation", "read"]
