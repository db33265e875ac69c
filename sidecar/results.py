"""Read what the workers of an evaluation saved: `from sidecar import results; results.read(folder)`.

Part of the public API. It needs numpy and no framework, so that it can be used wherever the files are.
"""

from sidecar.evaluation.artifact_reader import Evaluation, read

__all__ = ["Evaluation", "read"]
