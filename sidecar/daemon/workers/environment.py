"""Build the environment of a worker process from the daemon's, without the variables of the training job.

A worker that inherited TF_CONFIG or MASTER_ADDR would join the training cluster. The traits of a framework name what it
needs. Pure.
"""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Final

from sidecar.evaluation.framework_traits import FrameworkTraits

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
    "KUBEFLOW_TRAINER_SERVER_*",  # callbacks of Hugging Face would replace the status that training has sent
    "NCCL_COMM_ID",
    "NOTIFY_SOCKET",  # only the daemon reports to systemd
    "WATCHDOG_*",
    "PYTHONSAFEPATH",
)


def thread_variables(threads: int) -> dict[str, str]:
    """Return the variables that limit the threads of numpy's libraries. They take effect at the import."""
    return dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))


def worker_environment(
    base: Mapping[str, str],  # the daemon's environment
    *,
    traits: FrameworkTraits,  # those of the framework that the worker evaluates with
    devices: str,  # CUDA_VISIBLE_DEVICES: one GPU, or "-1" for none
    hosts: Iterable[str],  # hosts of the group's addresses, which must be reached without a proxy
    changes: Mapping[str, str | None],  # the user's `worker_env`: a value to set, None to remove
) -> dict[str, str]:
    """Return the environment of one worker."""
    inherited = {name: value for name, value in base.items() if not any(fnmatchcase(name, job) for job in _OF_THE_JOB)}
    environment = {**traits.environment, **inherited, **traits.required}
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
    for name, other in traits.kept.items():
        if environment.get(name) not in (traits.environment[name], "", None):
            environment[other], environment[name] = environment[name], traits.environment[name]
    return environment
