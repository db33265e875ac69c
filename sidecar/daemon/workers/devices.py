"""Decide which GPU each worker process of this node sees: never one that is hidden from the daemon.

Pure, except that `nvidia-smi` is run. A GPU is named as in CUDA_VISIBLE_DEVICES, by its index or by
(the beginning of) its UUID: https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-environment-variables
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from sidecar.errors import SettingsError
from sidecar.system.child import output_of

NO_GPU: Final = "-1"
_UUID_PREFIXES: Final = ("GPU-", "MIG-")
_QUERY_SECONDS: Final = 10.0  # nvidia-smi initialises every GPU of the machine when no process holds them
_FORMAT: Final = "--format=csv,noheader,nounits"

Devices = Literal["cpu", "gpu"] | Sequence[int | str]
Ask = Callable[[Sequence[str]], str | None]
"""Run a command and return its output, or None if it failed."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """Identify one GPU of the machine."""

    index: int
    uuid: str

    def is_called(self, name: str) -> bool:
        """Return whether this name in CUDA_VISIBLE_DEVICES refers to this GPU."""
        return name == str(self.index) or (name.startswith("GPU-") and self.uuid.startswith(name))


def _ask(arguments: Sequence[str]) -> str | None:
    """Run `nvidia-smi` and return its output; None if it is missing, fails or takes too long."""
    return output_of(arguments, seconds=_QUERY_SECONDS)


def visible(devices: Devices, replicas: int, environ: Mapping[str, str], *, ask: Ask = _ask) -> tuple[str, ...]:
    """Return CUDA_VISIBLE_DEVICES for each worker process: "-1" for a worker that sees no GPU.

    `devices`: "cpu"; "gpu" for one process on each GPU that the daemon sees by its own CUDA_VISIBLE_DEVICES; or a list
    of the GPUs to use. `replicas`: the number of processes on a node without GPUs; each GPU has one process. `ask` runs
    `nvidia-smi`. Raises `SettingsError` if there is no GPU, or the list names one that the daemon does not see.
    """
    if devices == "cpu":
        return (NO_GPU,) * replicas
    machine = parse_gpus(ask(("nvidia-smi", "--query-gpu=index,uuid", _FORMAT)) or "")
    inherited = environ.get("CUDA_VISIBLE_DEVICES")
    available = tuple(str(gpu.index) for gpu in machine) if inherited is None else parse_visible(inherited)
    if devices == "gpu":
        if not available:
            why = "nvidia-smi finds none" if inherited is None else f"CUDA_VISIBLE_DEVICES={inherited!r} hides all"
            raise SettingsError(f"devices = 'gpu', but {why}: write devices = 'cpu', or give the daemon a GPU")
        return available
    chosen = tuple(str(device) for device in devices)
    if not chosen or len(set(chosen)) < len(chosen):
        raise SettingsError(f"devices = {list(devices)!r}: name each GPU once, or write 'cpu'")
    for name in chosen:
        if not any(_same(name, gpu, machine) for gpu in available):
            raise SettingsError(
                f"devices: GPU {name!r} is not among those that this daemon sees ({', '.join(available) or 'none'}): "
                f"choose one of these, or start the daemon with another CUDA_VISIBLE_DEVICES"
            )
    return chosen


def for_workers(names: Sequence[str], processes: int) -> tuple[str, ...]:
    """Return CUDA_VISIBLE_DEVICES for each worker, if each is so many processes, from what `visible` returned.

    Raises `SettingsError` if a GPU would be left over.
    """
    if processes == 1 or all(name == NO_GPU for name in names):
        return tuple(names)
    if len(names) % processes:
        raise SettingsError(
            f"processes_per_worker = {processes} cannot use {len(names)} GPUs: name a multiple of {processes} of them "
            f"in devices"
        )
    return tuple(",".join(names[first : first + processes]) for first in range(0, len(names), processes))


def describe(names: Sequence[str], *, ask: Ask = _ask) -> str:
    """Return the models of these GPUs, such as "2 x NVIDIA H200"; empty if there are no GPUs.

    `names`: the names that `visible` returned. `ask`: the function that runs `nvidia-smi`.
    """
    if all(name == NO_GPU for name in names):
        return ""
    lines = (ask(("nvidia-smi", "--query-gpu=index,uuid,name", _FORMAT)) or "").splitlines()
    models = {gpu: line.split(",", 2)[-1].strip() for line in lines for gpu in parse_gpus(line.rpartition(",")[0])}
    counts = Counter(next((model for gpu, model in models.items() if gpu.is_called(name)), "GPU") for name in names)
    return ", ".join(f"{count} x {model}" for model, count in sorted(counts.items()))


def check_idle(names: Sequence[str], *, share: bool, own: Collection[int] = (), ask: Ask = _ask) -> None:
    """Refuse a GPU on which another process computes: a worker that takes GPU memory can end that process.

    `names`: those that `visible` returned. `share`: the setting share_gpu. `own`: process ids of this daemon's workers.
    `ask` runs `nvidia-smi`. The message of `SettingsError` names GPU and process.
    """
    chosen = [name for name in names if name != NO_GPU]
    if share or not chosen:
        return
    machine = parse_gpus(ask(("nvidia-smi", "--query-gpu=index,uuid", _FORMAT)) or "")
    users = parse_users(ask(("nvidia-smi", "--query-compute-apps=gpu_uuid,pid", _FORMAT)) or "")
    for name, pid in busy(chosen, machine, users):
        if pid not in own:
            raise SettingsError(
                f"GPU {name}: process {pid} computes on it and may end if a worker takes GPU memory; choose "
                f"another GPU, or set share_gpu = true (and gpu_memory_mb)"
            )


def busy(names: Sequence[str], machine: Sequence[Gpu], users: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return name and process id for each named GPU that is in use. `users` holds pairs of UUID and process id."""
    uuids = {name: [gpu.uuid for gpu in machine if gpu.is_called(name)] or [name] for name in names}
    return [(name, pid) for name in names for uuid, pid in users if uuid in uuids[name]]


def parse_visible(value: str) -> tuple[str, ...]:
    """Return the names in CUDA_VISIBLE_DEVICES up to the first invalid one: CUDA ignores the rest."""
    names: list[str] = []
    for name in (part.strip() for part in value.split(",")):
        if not (name.isdigit() or name.startswith(_UUID_PREFIXES)):
            break
        names.append(name)
    return tuple(names)


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """Parse lines of `index, uuid`; messages of `nvidia-smi`, for example about a missing driver, are skipped."""
    rows = (line.partition(",") for line in text.splitlines())
    return tuple(Gpu(int(index), uuid.strip()) for index, _, uuid in rows if index.strip().isdigit())


def parse_users(text: str) -> tuple[tuple[str, int], ...]:
    """Parse lines of `gpu_uuid, pid`; a pid that is hidden, as in some containers, becomes 0."""
    rows = (line.partition(",") for line in text.splitlines())
    return tuple(
        (uuid.strip(), int(pid) if pid.strip().isdigit() else 0)
        for uuid, _, pid in rows
        if uuid.startswith(_UUID_PREFIXES)
    )


def _same(name: str, other: str, machine: Sequence[Gpu]) -> bool:
    """Return whether two names refer to the same GPU."""
    return name == other or any(gpu.is_called(name) and gpu.is_called(other) for gpu in machine)
