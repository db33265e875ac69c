"""Measure a year of evaluations in the folder `evaluations`, with and without retention of metric states."""

import json
import os
from pathlib import Path

from long_journal import records
from programs import scratch
from table import Figure, Table

from sidecar.coordination.journal_state import Closed, EntryLog, JournalState
from sidecar.protocol.codec import dumps
from sidecar.retention.saves.old_evaluations import OldEvaluations
from sidecar.retention.saves.retention import Retention, StatesRule
from sidecar.settings.model import Settings

HOW = """One evaluation every 5 minutes for a year, by a group of two: the metric states of both ranks and the view of
the result are written as workers and daemons write them, and the daemon's own retention runs after each hour. Weights
and predictions are not counted: only the newest two evaluations and the best one have them (`keep_saves`). Bytes on the
disk and inodes afterwards, and the most that there ever were."""
COLUMNS = ("keep_states", "evaluations", "MB", "inodes", "most MB", "most inodes")
HOUR, YEAR = 12, 365 * 24 * 12
STATES = json.dumps({"schema": 1, "variables": "v" * 64, "states": {"test": {"a": ["0" * 44] * 40}}}).encode()


def measure(quick):
    evaluations = 30 * 24 * HOUR if quick else YEAR
    default = Settings.model_fields["keep_states"].default
    with scratch() as folder:
        kept = _row(folder / "kept", 2 * HOUR, None)  # the same for each evaluation
        each = [cell / kept[1] for cell in kept[2:]]
        forever = ("all (as measured for one day, times the days)", evaluations, *(cell * evaluations for cell in each))
        rows = [forever, _row(folder / "default", evaluations, default)]
    figures = [
        Figure("inodes of a year, with the default", rows[1][3], 10_000),
        Figure("MB of a year, with the default", rows[1][2], 50, unit=" MB"),
    ]
    return Table("Saves: what a year leaves", HOW, COLUMNS, rows, figures)


def _row(root, evaluations, keep_states):
    """Evaluate, and let retention run after each hour of the simulated clock."""
    history, clock = JournalState(log=EntryLog(keep=64)), _Clock()
    retention, old = Retention(keep=2, states=StatesRule(keep_states)), OldEvaluations(root, clock.now)
    most, removed = (0, 0), 0
    for number in range(1, evaluations + 1):
        plan, outcome = records(number, "r")
        history.apply(plan)
        _write(root, plan, outcome)
        history.apply(outcome)
        retention.succeeded(history)
        if number % HOUR == 0:
            clock.seconds += 3600.0
            if number % (100 * HOUR) == 0:
                most = max(most, _used(root))
            retained = retention.retained_states(history)
            removed += 0 if retained is None else old.remove(retained)[0]
    used = _used(root)
    most = max(most, used)
    if keep_states is not None and removed == 0:
        raise RuntimeError("retention removed nothing")
    return "all" if keep_states is None else keep_states, evaluations, *_shown(used), *_shown(most)


def _write(root, plan, outcome):
    """Write what two workers and the publisher write. Plan and outcome are those of a long run."""
    folder = root / plan.folder
    for rank in range(2):
        worker = folder / f"worker-{rank}-of-2"
        worker.mkdir(parents=True)
        (worker / "states.json").write_bytes(STATES)
    (folder.parent / "result.json").write_bytes(dumps(Closed(plan, outcome)))


def _used(root):
    """Bytes on the disk and inodes below a folder."""
    size = inodes = 0
    for path, folders, names in os.walk(root):
        inodes += len(folders) + len(names)
        size += sum((Path(path) / name).stat().st_blocks * 512 for name in (*folders, *names))
    return size, inodes


def _shown(used):
    return used[0] / 1e6, used[1]


class _Clock:
    """A clock moved by hand."""

    seconds = 0.0

    def now(self):
        """Return the seconds to which the clock was moved."""
        return self.seconds
