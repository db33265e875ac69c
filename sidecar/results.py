"""Read the saves of the workers of an evaluation: `from sidecar import results; results.read(folder)`.

Part of the public API. This module needs numpy and no framework, so it can run on any machine with the files.
"""

from sidecar.evaluation.artifact_reader import Evaluation, read

__all__ = ["Evaluation", "read"]
