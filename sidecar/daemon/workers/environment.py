"""Build the environment of a worker process from the daemon's, without the variables of the training job.

A worker that inherited TF_CONFIG or MASTER_ADDR would join the training cluster. Pure.
"""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Final

from sidecar.protocol.messages import KERAS_BACKEND_OF_TRAINING

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
    "PET_*",  # torchrun's options, as Kubeflow sets them
    "SLURM_*",
    "NCCL_COMM_ID",
    "NOTIFY_SOCKET",  # only the daemon reports to systemd
    "WATCHDOG_*",
    "PYTHONSAFEPATH",
)

_DEFAULTS: Final[Mapping[str, Mapping[str, str]]] = {
    "tensorflow": {
        "KERAS_BACKEND": "tensorflow",  # a node's ~/.keras/keras.json must not select the backend of a group
        "TF_CPP_MIN_LOG_LEVEL": "1",  # start-up messages would bury the user's own output in the worker's log
    },
    "torch": {
        "OMP_WAIT_POLICY": "PASSIVE",  # threads that wait by spinning would take the time of the training next to them
        # Threads wait 10,000 turns, some microseconds, before they sleep: the next operation mostly begins sooner.
        "GOMP_SPINCOUNT": "10000",
        # Freed tensors stay in the process. glibc would return each one above 32 MiB to the kernel, and the pages of
        # the next one would have to be cleared again. The worker returns what is free after each evaluation.
        "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
        "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # the setting with which matrix products on a GPU are repeatable
        "TOKENIZERS_PARALLELISM": "false",  # threads of tokenizers, which loaders fork
    },
}
"""Variables by framework that a worker gets unless the daemon's environment sets them."""

_REQUIRED: Final[Mapping[str, Mapping[str, str]]] = {
    "tensorflow": {"TF_GRPC_REUSE_PORT": "1"},  # the daemon holds the worker's port with SO_REUSEPORT
}
"""Variables by framework that a worker gets whatever the daemon's environment says."""


def thread_variables(threads: int) -> dict[str, str]:
    """Return the variables that limit the threads of numpy's libraries. They take effect at the import."""
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
        hosts: Hosts of the group's addresses, which must be reached without a proxy.
        changes: The user's `worker_env`: a value to set, None to remove.
    """
    inherited = {name: value for name, value in base.items() if not any(fnmatchcase(name, job) for job in _OF_THE_JOB)}
    environment = {**_DEFAULTS.get(framework, {}), **inherited, **_REQUIRED.get(framework, {})}
    environment["CUDA_VISIBLE_DEVICES"] = devices
    if environment.get("PYTHONHASHSEED", "random") == "random":  # the workers of a group hash texts alike
        environment["PYTHONHASHSEED"] = "0"
    environment["PYTHONUNBUFFERED"] = "1"  # the log must have all output of the user's code up to a crash
    for name in ("no_proxy", "NO_PROXY"):
        listed = [part for part in environment.get(name, "").split(",") if part]
        environment[name] = ",".join(dict.fromkeys([*listed, "localhost", "127.0.0.1", *hosts]))
    for name, value in changes.items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
    if framework == "tensorflow" and environment.get("KERAS_BACKEND") not in ("tensorflow", "", None):
        environment[KERAS_BACKEND_OF_TRAINING] = environment["KERAS_BACKEND"]
        environment["KERAS_BACKEND"] = "tensorflow"
    return environment
