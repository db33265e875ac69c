"""Read TF_CONFIG as TensorFlow's resolver would, without TensorFlow, and find the task that runs here. No I/O."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sidecar.errors import SettingsError
from sidecar.system.plain_text import shortened

CHIEF_TYPES: Final = ("chief", "master")
TASK_TYPES: Final = (*CHIEF_TYPES, "worker", "ps", "evaluator")
_TEXT_CHARACTERS: Final = 200  # of the whole variable: a cluster may be large


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTask:
    """Describe this process in the training job's cluster. `address` is None for an evaluator outside the cluster."""

    type: str
    index: int
    address: str | None
    has_chief: bool  # whether the cluster names a chief or master
    alone: bool  # whether it is the cluster's only task

    @property
    def name(self) -> str:
        """Return the task as it is usually written: `worker:1`."""
        return f"{self.type}:{self.index}"


def read_tf_config(environ: Mapping[str, str], remedy: str) -> ClusterTask | None:
    """Return the task in TF_CONFIG; None if that is unset, empty or `{}`, which is not a cluster for TensorFlow.

    Raises `SettingsError` with `remedy` if it cannot be understood.
    """
    text = environ.get("TF_CONFIG", "").strip()
    if not text:
        return None
    try:
        parsed = json.loads(text)
        return None if parsed == {} else _find_task(parsed)
    except (ValueError, RecursionError) as error:  # JSON's own says line and column
        raise SettingsError(
            f"TF_CONFIG: {error}; correct it, or give {remedy}. Its value: {shortened(text, _TEXT_CHARACTERS)}"
        ) from error


def _find_task(parsed: Any) -> ClusterTask:
    """Find the `task` of parsed TF_CONFIG in its `cluster`. Raises `ValueError` for the first misfit."""
    cluster = _member(parsed, "cluster", "TF_CONFIG")
    jobs = {job: _addresses(job, tasks) for job, tasks in cluster.items()}
    task = _member(parsed, "task", "TF_CONFIG")
    kind, index = task.get("type"), task.get("index")
    if kind not in TASK_TYPES:
        raise ValueError(f"task.type is {shortened(kind)}: one of {', '.join(TASK_TYPES)} is expected")
    number = _whole(index)
    if number is None:
        raise ValueError(f"task.index is {shortened(index)}: a number from 0 is expected")
    addresses = jobs.get(kind, {})
    # An evaluator is usually not part of the cluster, as it takes no part in training.
    if number not in addresses and not (kind == "evaluator" and not addresses):
        indices = ", ".join(map(str, sorted(addresses))) or "none"
        raise ValueError(f"task {kind}:{number} is not in cluster.{kind}, which has index {indices}")
    has_chief = any(jobs.get(chief) for chief in CHIEF_TYPES)
    alone = number in addresses and sum(map(len, jobs.values())) == 1
    return ClusterTask(type=kind, index=number, address=addresses.get(number), has_chief=has_chief, alone=alone)


def _member(parent: Any, key: str, name: str) -> Mapping[str, Any]:
    """Return the object under a key. Raises `ValueError` if there is none."""
    if not isinstance(parent, dict):
        raise ValueError(f"{name} is {shortened(parent)}: an object is expected")  # noqa: TRY004 - one kind of error here
    if key not in parent:
        raise ValueError(f"{key} is missing: an object is expected")
    value = parent[key]
    if not isinstance(value, dict):
        raise ValueError(f"{key} is {shortened(value)}: an object is expected")  # noqa: TRY004 - as above
    return value


def _addresses(job: str, tasks: Any) -> dict[int, str]:
    """Return the addresses of one job by index, from a list or an object: `tf.train.ClusterSpec` takes both."""
    pairs = enumerate(tasks) if isinstance(tasks, list) else tasks.items() if isinstance(tasks, dict) else None
    if pairs is None:
        raise ValueError(f"cluster.{job} is {shortened(tasks)}: a list of HOST:PORT is expected")
    by_index: dict[int, str] = {}
    for index, address in pairs:
        number = _whole(index)
        if number is None or not isinstance(address, str) or not address:
            raise ValueError(
                f"cluster.{job}[{index}] is {shortened(address)}: HOST:PORT is expected under a number from 0"
            )
        by_index[number] = address
    return by_index


def _whole(value: Any) -> int | None:
    """Return a number from 0, or None. Some launchers write it as a string, and TensorFlow's resolver takes both."""
    if isinstance(value, str) and value.isascii() and value.isdecimal():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
