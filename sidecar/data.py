"""Provide files as eval sets, for tasks: `from sidecar.data import npz, tfrecords`. Part of the public API.

This module imports only the standard library, like `from sidecar import Task`. The worker imports numpy or the
framework when a source is called.
"""

from sidecar.evaluation.data.file_sources import npz, tfrecords

__all__ = ["npz", "tfrecords"]
