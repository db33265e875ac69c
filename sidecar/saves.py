"""What the workers of an evaluation saved, joined: `from sidecar import saves; saves.read(folder)`.

Needs numpy and no framework, so that it can be used wherever the files are.
"""

from sidecar.worker.saved import Evaluation, read

__all__ = ["Evaluation", "read"]
