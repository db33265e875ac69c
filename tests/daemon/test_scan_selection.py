"""The choice among the checkpoints of a scan is made once, and again when anything changed."""

from pathlib import Path

import pytest

from sidecar.checkpoints.scan import DiscoveredCheckpoint, ScanResult
from sidecar.coordination.journal_state import JournalState
from sidecar.daemon.scan_selection import ScanSelection
from sidecar.policy.selection import Selection
from sidecar.protocol.records import Checkpoint


def scan(*steps):
    checkpoints = [Checkpoint(name=f"ckpt-{step}", digest=f"{step}", step=step, format="tf_object") for step in steps]
    items = [
        DiscoveredCheckpoint(checkpoint=checkpoint, folder=Path("/c"), written_at=0.0, seen_at=0.0)
        for checkpoint in checkpoints
    ]
    return ScanResult(by_key={item.checkpoint.key: item for item in items})


@pytest.fixture
def select():
    """Select, and return whether that was done anew, with what is to be evaluated."""
    selection, before = ScanSelection(Selection(every_steps=100)), []

    def run(seen, *, forget=False, task="t1", over=False, before_start=()):
        if forget:
            selection.forget()
        selected = selection.select(seen, JournalState(), task, before_start, over=over)
        is_new = not before or before[-1] is not selected
        before.append(selected)
        return is_new, [checkpoint.step for checkpoint in selected.choice.evaluate]

    return run


def test_the_choice_stays_until_something_changes(select):
    """The scan, this node's task, or the end of training."""
    seen = scan(100, 150, 160)
    assert select(seen) == (True, [100])
    assert select(seen) == (False, [100])
    assert select(seen, task="t2") == (True, [100])
    assert select(seen, task="t2", over=True) == (True, [100, 160])
    assert select(scan(100, 200), task="t2", over=True, forget=True) == (True, [100, 200])


def test_checkpoints_from_before_the_start_do_not_count(select):
    """They are still relevant, because they need a settlement."""
    seen = scan(100, 150)
    assert select(seen, before_start={("ckpt-100", "100")}) == (True, [150])
