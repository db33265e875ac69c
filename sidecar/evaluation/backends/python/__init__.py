"""Evaluate with plain Python: the task loads its own model and predicts with it, whatever library that needs.

Imports numpy and no framework. Ranks meet in the folders that they save to.
"""

import importlib.metadata
import os
import platform
from functools import cached_property
from typing import Final

from sidecar.evaluation.backend import Backend, Collective, Evaluator
from sidecar.evaluation.backends.python.evaluator import PythonEvaluator
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.instruction_set import instruction_set
from sidecar.evaluation.reduction import LocalCollective
from sidecar.evaluation.shared_folder import SharedFolderCollective
from sidecar.evaluation.task import Task
from sidecar.workers.messages import Check, Join

_LIBRARIES: Final = (
    "numpy",
    "scipy",
    "scikit-learn",
    "joblib",
    "xgboost",
    "lightgbm",
    "catboost",
    "onnxruntime",
    "jax",
    "jaxlib",
    "flax",
    "torch",
    "tensorflow",
    "keras",
    "transformers",
    "pandas",
    "statsmodels",
    "numba",
)
"""Packages that compute predictions. Nodes evaluate together only if they have the same versions of them."""


class PythonBackend:
    """See `sidecar.evaluation.backend.Backend`."""

    version: str = platform.python_version()
    out_of_memory: tuple[type[Exception], ...] = ()

    def join(self, join: Join) -> Collective:
        """Form the group: nothing is started, since the ranks meet in the folders of the plans."""
        return LocalCollective() if len(join.members) == 1 else SharedFolderCollective(join)

    def build(self, task: Task, shard: Shard, join: Join) -> Evaluator:
        """Open the task's data and make its metrics; the model comes with a checkpoint."""
        return PythonEvaluator(task, shard, cache_bytes=join.cache_bytes)

    def profile(self, told: Join | Check) -> dict[str, str]:
        """Return versions, threads and instruction set: they can change the bits of predictions."""
        return {
            "device": "CPU" if os.environ.get("CUDA_VISIBLE_DEVICES", "-1") in ("", "-1") else "GPU",
            "framework": f"python {self.version}",
            "libraries": self._libraries,
            "threads": str(told.threads),
            "isa": instruction_set(),
        }

    @cached_property
    def _libraries(self) -> str:
        return ", ".join(f"{name} {version}" for name in _LIBRARIES if (version := _version(name)))


def make() -> Backend:
    """Return the backend."""
    return PythonBackend()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
