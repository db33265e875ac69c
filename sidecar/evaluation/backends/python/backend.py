"""Evaluate with plain Python: the task loads a model and predicts with it, using any library.

Imports numpy and no framework. Ranks exchange data through the folders of their saves.
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
from sidecar.protocol.messages import Check, Join

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
"""Packages that compute predictions. Nodes evaluate together only if the versions of these packages are equal."""


class PythonBackend:
    """Implement `sidecar.evaluation.backend.Backend` for plain Python."""

    version: str = platform.python_version()
    out_of_memory: tuple[type[Exception], ...] = ()

    def join(self, join: Join) -> Collective:
        """Form the group. No process or port is needed, as the ranks exchange files in the folders of the plans."""
        return LocalCollective() if len(join.members) == 1 else SharedFolderCollective(join)

    def build(self, task: Task, shard: Shard, join: Join) -> Evaluator:
        """Open the data of the task and create its metrics. The model is loaded with each checkpoint."""
        return PythonEvaluator.build(task, shard, cache_bytes=join.cache_bytes)

    def profile(self, command: Join | Check) -> dict[str, str]:
        """Return versions, threads and instruction set, all of which can change the bits of predictions."""
        return {
            "device": "CPU" if os.environ.get("CUDA_VISIBLE_DEVICES", "-1") in ("", "-1") else "GPU",
            "framework": f"python {self.version}",
            "libraries": self._libraries,
            "threads": str(command.threads),
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
