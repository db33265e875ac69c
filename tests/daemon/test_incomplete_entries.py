"""Since when the same entries of the checkpoint directory are not complete."""

from sidecar.checkpoints.scan import ScanResult
from sidecar.daemon.incomplete_entries import IncompleteEntries

WAITING = ScanResult(waiting=(("ckpt-1", "its data is not there"),))
KEY = ("ckpt-2", "d" * 64)


def test_the_time_counts_as_long_as_the_entries_are_the_same():
    """Another entry, or another reason, means that training is writing."""
    entries = IncompleteEntries()
    assert entries.since is None
    for now in (10.0, 20.0):
        entries.update(WAITING, frozenset(), now)
    assert entries.since == 10.0
    entries.update(ScanResult(waiting=(("ckpt-1", "its index is not there"),)), frozenset(), 30.0)
    assert entries.since == 30.0
    entries.update(ScanResult(), frozenset(), 40.0)
    assert entries.since is None


def test_what_is_lost_or_cannot_be_read_counts():
    """Another node may find it whole."""
    entries = IncompleteEntries()
    entries.update(ScanResult(), frozenset({KEY}), 10.0)
    assert entries.since == 10.0
    entries.update(ScanResult(unknown={"ckpt-3@dddddddddddd": "Input/output error"}), frozenset(), 20.0)
    assert entries.since == 20.0


def test_a_copy_that_grows_starts_the_time_anew():
    """Nothing else of the copy changes while it is made."""
    entries = IncompleteEntries()
    for now in (10.0, 20.0):
        entries.update(ScanResult(copied=frozenset({KEY})), frozenset({KEY}), now)
    assert entries.since == 20.0
