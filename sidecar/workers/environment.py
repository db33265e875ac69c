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

_DEFAULTS: Final = {
    "KERAS_BACKEND": "tensorflow",  # a ~/.keras/keras.json of the node must not decide what a group computes with
    "TF_CPP_MIN_LOG_LEVEL": "1",  # start-up chatter of every worker would drown the user's own output in its log
}


def worker_environment(
    base: Mapping[str, str], *, devices: str, hosts: Iterable[str], changes: Mapping[str, str | None]
) -> dict[str, str]:
    """The environment of one worker.

    Args:
        base: The daemon's environment.
        devices: CUDA_VISIBLE_DEVICES: one GPU, or "-1" for none.
        hosts: Hosts of the group's addresses, which no proxy may stand before.
        changes: The user's `worker_env`: a value to set, None to remove.
    """
    kept = {name: value for name, value in base.items() if not any(fnmatchcase(name, each) for each in _OF_THE_JOB)}
    made = _DEFAULTS | kept
    made["CUDA_VISIBLE_DEVICES"] = devices
    made["TF_GRPC_REUSE_PORT"] = "1"  # the daemon holds the port for us, with SO_REUSEPORT
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
