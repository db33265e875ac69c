"""Evaluate with PyTorch: a private gloo group for sums of integers, and a model on one device, or divided.

The default process group of `torch.distributed` is never made: see `collective`.
"""

import os
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import torch

from sidecar.evaluation.backend import Backend, Collective, Evaluator
from sidecar.evaluation.backends.torch.collective import GlooCollective
from sidecar.evaluation.backends.torch.evaluator import TorchEvaluator
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.instruction_set import instruction_set
from sidecar.evaluation.reduction import LocalCollective
from sidecar.evaluation.task import Task
from sidecar.protocol.codec import from_json
from sidecar.protocol.messages import Check, Join

if TYPE_CHECKING:
    from sidecar.evaluation.backends.torch.division import Division

_BYTES_IN_MB: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class _Options:
    """Hold the settings that only this backend uses. A setting that the message lacks has its default."""

    gpu_memory_mb: int | None = None  # None: take memory as it is needed
    model_parallel: Literal["auto", "tensor", "fully_shard"] = "auto"


class TorchBackend:
    """Implement `sidecar.evaluation.backend.Backend` with PyTorch."""

    version: str = str(torch.__version__)
    out_of_memory: tuple[type[Exception], ...] = (torch.OutOfMemoryError,)

    def __init__(self) -> None:
        self._division: Division | None = None  # of the model, if this worker is several processes

    def join(self, join: Join) -> Collective:
        """Set threads, device and determinism, then form the group."""
        torch.set_num_threads(join.threads)
        torch.set_num_interop_threads(1)
        torch.use_deterministic_algorithms(mode=True, warn_only=True)
        torch.backends.cudnn.benchmark = False  # it would choose kernels by measuring times
        torch.backends.cudnn.deterministic = True
        options = from_json(_Options, join.options)
        megabytes = options.gpu_memory_mb
        if megabytes is not None and torch.cuda.is_available():
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, megabytes * _BYTES_IN_MB / total))
        if join.processes == 1:
            return _among_workers(join)
        # Not at the top: that would import 44 MB which one process does not need.
        from sidecar.evaluation.backends.torch.division import Division, LeadersCollective

        self._division = Division(join, _device(), options.model_parallel)
        return LeadersCollective(self._division, _among_workers(join) if self._division.leads else None)

    def build(self, task: Task, shard: Shard, join: Join) -> Evaluator:
        """Build the task: open its data, make its model, and try it on a first batch."""
        return TorchEvaluator.build(
            task, shard, cache_bytes=join.cache_bytes, device=_device(), division=self._division
        )

    def profile(self, command: Join | Check) -> dict[str, str]:
        """Return versions, device, instruction set and every setting that may change the bits of a result."""
        gpus = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
        options = from_json(_Options, command.options)
        devices = Counter(torch.cuda.get_device_name(gpu) for gpu in gpus)
        return {
            "device": ", ".join(f"{count} x {name}" for name, count in sorted(devices.items())) or "CPU",
            "framework": f"torch {self.version}",
            "build": str(torch.version.git_version)[:12],
            "default type": str(torch.get_default_dtype()).removeprefix("torch."),
            "matmul": torch.get_float32_matmul_precision(),
            "onednn": str(torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled).lower(),
            "cuda": f"{torch.version.cuda} cudnn {torch.backends.cudnn.version()}" if gpus else "off",
            "tf32": str(torch.backends.cudnn.allow_tf32).lower() if gpus else "off",
            "kernels": torch.backends.cpu.get_cpu_capability(),
            "forced kernels": os.environ.get("ATEN_CPU_CAPABILITY", "no"),
            "threads": str(command.threads),
            **(_several(command.processes, options.model_parallel) if command.processes > 1 else {}),
            "isa": instruction_set(),  # last, because it is the longest
        }


def _among_workers(join: Join) -> Collective:
    return LocalCollective() if len(join.members) == 1 else GlooCollective(join)


def _several(processes: int, wanted: str) -> dict[str, str]:
    return {"processes": str(processes), "model parallel": wanted}


def _device() -> torch.device:
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def make() -> Backend:
    """Return the PyTorch backend; importing this module has already imported PyTorch."""
    return TorchBackend()
