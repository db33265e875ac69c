"""Which GPU each worker process of this node sees: never one that the daemon itself was not given.

Pure but for one question to `nvidia-smi`, asked through `process`. A GPU is named as CUDA_VISIBLE_DEVICES names it, by
index or by (the beginning of) its UUID: https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-environment-variables
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from sidecar.errors import SettingsError
from sidecar.workers.process import query

NO_GPU: Final = "-1"
_UUID_PREFIXES: Final = ("GPU-", "MIG-")
_QUERY_SECONDS: Final = 10.0  # nvidia-smi initialises every GPU of the machine when no process holds them
_FORMAT: Final = "--format=csv,noheader,nounits"

Devices = Literal["cpu", "gpu"] | Sequence[int | str]
Ask = Callable[[Sequence[str]], str | None]
"""Runs a command and returns what it prints, or None if that did not work."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of the machine."""

    index: int
    uuid: str

    def is_called(self, name: str) -> bool:
        """Whether CUDA_VISIBLE_DEVICES means this one by that name."""
        return name == str(self.index) or (name.startswith("GPU-") and self.uuid.startswith(name))


def _ask(arguments: Sequence[str]) -> str | None:
    return query(arguments, seconds=_QUERY_SECONDS)


def visible(devices: Devices, replicas: int, environ: Mapping[str, str], *, ask: Ask = _ask) -> tuple[str, ...]:
    """CUDA_VISIBLE_DEVICES of each worker process: "-1" for one that sees no GPU.

    Args:
        devices: "cpu"; "gpu" for one process on each GPU that the daemon sees; or a list of those to use.
        replicas: Processes on a node without GPU. On GPUs there is one on each, whatever this says.
        environ: The daemon's environment; its own CUDA_VISIBLE_DEVICES is never widened.
        ask: Runs `nvidia-smi`.

    Raises:
        SettingsError: there is no GPU, or one of the list is not among those the daemon sees.
    """
    if devices == "cpu":
        return (NO_GPU,) * replicas
    machine = parse_gpus(ask(("nvidia-smi", "--query-gpu=index,uuid", _FORMAT)) or "")
    own = environ.get("CUDA_VISIBLE_DEVICES")
    seen = tuple(str(gpu.index) for gpu in machine) if own is None else parse_visible(own)
    if devices == "gpu":
        if not seen:
            why = "nvidia-smi finds none" if own is None else f"CUDA_VISIBLE_DEVICES={own!r} hides all"
            raise SettingsError(f"devices = 'gpu', but {why}: write devices = 'cpu', or give the daemon a GPU")
        return seen
    chosen = tuple(str(device) for device in devices)
    if not chosen or len(set(chosen)) < len(chosen):
        raise SettingsError(f"devices = {list(devices)!r}: name each GPU once, or write 'cpu'")
    for name in chosen:
        if not any(_same(name, each, machine) for each in seen):
            raise SettingsError(
                f"devices: GPU {name!r} is not among those that this daemon sees ({', '.join(seen) or 'none'}): choose "
                f"of these, or start the daemon with another CUDA_VISIBLE_DEVICES"
            )
    return chosen


def describe(names: Sequence[str], *, ask: Ask = _ask) -> str:
    """Say which GPUs these are, as in "2 x NVIDIA H200"; empty if there are none, or no driver tells.

    Args:
        names: What `visible` returned.
        ask: Runs `nvidia-smi`.
    """
    if all(name == NO_GPU for name in names):
        return ""
    lines = (ask(("nvidia-smi", "--query-gpu=index,uuid,name", _FORMAT)) or "").splitlines()
    models = {gpu: line.split(",", 2)[-1].strip() for line in lines for gpu in parse_gpus(line.rpartition(",")[0])}
    found = Counter(next((model for gpu, model in models.items() if gpu.is_called(name)), "GPU") for name in names)
    return ", ".join(f"{count} x {model}" for model, count in sorted(found.items()))


def check_idle(names: Sequence[str], *, share: bool, own: Collection[int] = (), ask: Ask = _ask) -> None:
    """Refuse a GPU on which another process computes: memory taken beside training is what kills it.

    Args:
        names: What `visible` returned.
        share: The setting share_gpu.
        own: Process ids of our own workers.
        ask: Runs `nvidia-smi`.

    Raises:
        SettingsError: naming the GPU and the process.
    """
    chosen = [name for name in names if name != NO_GPU]
    if share or not chosen:
        return
    machine = parse_gpus(ask(("nvidia-smi", "--query-gpu=index,uuid", _FORMAT)) or "")
    users = parse_users(ask(("nvidia-smi", "--query-compute-apps=gpu_uuid,pid", _FORMAT)) or "")
    for name, pid in busy(chosen, machine, users):
        if pid not in own:
            raise SettingsError(
                f"GPU {name}: process {pid} computes on it, and what a worker takes of its memory can end it; choose "
                f"another GPU, or set share_gpu = true (and gpu_memory_mb)"
            )


def busy(names: Sequence[str], machine: Sequence[Gpu], users: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Which of the named GPUs are in use: name and process id. `users` is of UUID and process id."""
    uuids = {name: [gpu.uuid for gpu in machine if gpu.is_called(name)] or [name] for name in names}
    return [(name, pid) for name in names for uuid, pid in users if uuid in uuids[name]]


def parse_visible(value: str) -> tuple[str, ...]:
    """The names in CUDA_VISIBLE_DEVICES; those after one that is no device are invisible, as CUDA has it."""
    found: list[str] = []
    for name in (part.strip() for part in value.split(",")):
        if not (name.isdigit() or name.startswith(_UUID_PREFIXES)):
            break
        found.append(name)
    return tuple(found)


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """Read lines of `index, uuid`; what `nvidia-smi` says in words, as when there is no driver, is passed over."""
    rows = (line.partition(",") for line in text.splitlines())
    return tuple(Gpu(int(index), uuid.strip()) for index, _, uuid in rows if index.strip().isdigit())


def parse_users(text: str) -> tuple[tuple[str, int], ...]:
    """Read lines of `gpu_uuid, pid`; inside a container the pid may be withheld, and is then 0."""
    rows = (line.partition(",") for line in text.splitlines())
    return tuple(
        (uuid.strip(), int(pid) if pid.strip().isdigit() else 0)
        for uuid, _, pid in rows
        if uuid.startswith(_UUID_PREFIXES)
    )


def _same(name: str, other: str, machine: Sequence[Gpu]) -> bool:
    return name == other or any(gpu.is_called(name) and gpu.is_called(other) for gpu in machine)
