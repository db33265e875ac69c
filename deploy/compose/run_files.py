"""Read the files of the training job and the daemons on shared storage, without any of the daemon's code.

These are the checkpoints that TensorFlow's `checkpoint` file names, or the files that torch.save wrote and the training
job renamed; and the plans and outcomes of the journal. RUN is the name of the run.
"""  # noqa: INP001 - a script next to others, not a package

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

TORCH_RUN: Final = "digits-torch"
RUN: Final = os.environ.get("RUN", "digits")
DAEMONS: Final = "torch-daemon" if RUN == TORCH_RUN else "daemon"
"""What the names of the daemons' services begin with."""

CHECKPOINTS: Final = Path("/ckpts") / RUN
STATE: Final = CHECKPOINTS / ".sidecar" / RUN

_NAMED: Final = re.compile(r'^all_model_checkpoint_paths: "(.+)"$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Plan:
    """Hold a plan with members, and how it ended. `status` is None while it runs."""

    number: int
    checkpoint: str
    digest: str
    nodes: tuple[str, ...]  # one per worker process
    status: str | None
    kind: str | None
    saves: tuple[Path, ...]  # the folders in which its workers saved
    values: Mapping[str, float]  # the results by metric
    completed_at: float = 0.0  # when its end was written, in seconds since 1970


def checkpoints(directory: Path = CHECKPOINTS) -> list[str]:
    """Return the names of the complete checkpoints, oldest first."""
    try:
        return _NAMED.findall((directory / "checkpoint").read_text())
    except FileNotFoundError:
        return sorted((path.name for path in directory.glob("step-*.pt")), key=step)


def files(name: str, directory: Path = CHECKPOINTS) -> list[Path]:
    """Return the files of a checkpoint: the file of this name, or `<name>.index` and `<name>.data-…`."""
    return [path for path in directory.iterdir() if path.name == name or path.name.startswith(f"{name}.")]


def saved_at(name: str, directory: Path = CHECKPOINTS) -> float:
    """Return when the last file of a checkpoint was written, in seconds since 1970."""
    return max(path.stat().st_mtime for path in files(name, directory))


def step(name: str) -> int:
    """Return the step in a checkpoint's name."""
    return int(name.removesuffix(".pt").rpartition("-")[2])


def plans(state: Path = STATE) -> Iterator[Plan]:
    """Yield every attempt at an evaluation, in order."""
    for path in sorted((state / "plans").glob("*.json")):
        plan = json.loads(path.read_text())
        if not plan["members"] or not plan["checkpoint"]:
            continue  # this plan only settles
        outcome = _read(state / "outcomes" / path.name)
        result = outcome.get("result") or {}
        yield Plan(
            plan["plan"],
            plan["checkpoint"]["name"],
            plan["checkpoint"]["digest"],
            tuple(member["node"] for member in plan["members"]),
            outcome.get("status"),
            outcome.get("kind"),
            tuple(state / folder for folder in result.get("saves", ())),
            {name: value["value"] for values in result.get("metrics", {}).values() for name, value in values.items()},
            datetime.fromisoformat(outcome["completed_at"]).timestamp() if outcome else 0.0,
        )


def _read(path: Path) -> dict[str, Any]:
    """Return the record in a file; empty if there is no file."""
    try:
        record: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return record
