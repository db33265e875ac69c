"""Files as eval sets, for tasks: `from sidecar.data import npz, tfrecords`. Part of the public API.

Light, like `from sidecar import Task`: numpy or the framework is imported once a source is called, in the worker.
"""

from sidecar.evaluation.data.file_sources import npz, tfrecords

__all__ = ["npz", "tfrecords"]
