"""The environment of a worker process: the daemon's own, minus what belongs to the training job, plus what we promise.

Pure. A worker that inherited TF_CONFIG or MASTER_ADDR would join the training cluster.
"""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Final

_OF_THE_JOB: Final = (
    "TF_CONFIG",
    "MASTER_*",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_*",
    "GROUP_*",
    "ROLE_*",
    "NODE_RANK",
    "TORCHELASTIC_*",
    "SLURM_*",
    "NCCL_COMM_ID",
    "NOTIFY_SOCKET",  # systemd listens to the daemon alone
    "WATCHDOG_*",
    "PYTHONSAFEPATH",
)

_DEFAULTS: Final[Mapping[str, Mapping[str, str]]] = {
    "tensorflow": {
        "KERAS_BACKEND": "tensorflow",  # a ~/.keras/keras.json of the node must not decide what a group computes with
        "TF_CPP_MIN_LOG_LEVEL": "1",  # start-up chatter of every worker would drown the user's own output in its log
    },
}
"""Variables by framework that a worker gets unless the daemon's own environment sets them."""

_PROMISES: Final[Mapping[str, Mapping[str, str]]] = {
    "tensorflow": {"TF_GRPC_REUSE_PORT": "1"},  # the daemon holds the worker's port with SO_REUSEPORT
}
"""Variables by framework that a worker gets whatever the daemon's own environment says."""


def thread_variables(threads: int) -> dict[str, str]:
    """Return the variables by which numpy's libraries are told how many threads to compute with, before an import."""
    return dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))


def worker_environment(
    base: Mapping[str, str],
    *,
    framework: str,
    devices: str,
    hosts: Iterable[str],
    changes: Mapping[str, str | None],
) -> dict[str, str]:
    """Return the environment of one worker.

    Args:
        base: The daemon's environment.
        framework: The framework that the worker evaluates with.
        devices: CUDA_VISIBLE_DEVICES: one GPU, or "-1" for none.
        hosts: Hosts of the group's addresses, which no proxy may stand before.
        changes: The user's `worker_env`: a value to set, None to remove.
    """
    kept = {name: value for name, value in base.items() if not any(fnmatchcase(name, job) for job in _OF_THE_JOB)}
    made = {**_DEFAULTS.get(framework, {}), **kept, **_PROMISES.get(framework, {})}
    made["CUDA_VISIBLE_DEVICES"] = devices
    made["PYTHONUNBUFFERED"] = "1"  # what the user's code printed before it died must be in its log
    for name in ("no_proxy", "NO_PROXY"):
        listed = [part for part in made.get(name, "").split(",") if part]
        made[name] = ",".join(dict.fromkeys([*listed, "localhost", "127.0.0.1", *hosts]))
    for name, value in changes.items():
        if value is None:
            made.pop(name, None)
        else:
            made[name] = value
    return made
