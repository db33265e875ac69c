"""Since when a directory shows nothing, and no longer than that."""

from sidecar.checkpoints.scan import ScanResult
from sidecar.daemon.empty_directory import EmptyDirectory


def test_the_time_counts_from_the_first_scan_of_an_existing_directory():
    """Training has not begun while there is none."""
    empty = EmptyDirectory()
    empty.update(ScanResult(missing=True), anything=False, now=10.0)
    assert empty.since is None
    for now in (20.0, 30.0):
        empty.update(ScanResult(), anything=False, now=now)
    assert empty.since == 20.0


def test_once_anything_was_seen_it_is_over():
    """The hint goes, and does not come back when training deletes everything."""
    empty = EmptyDirectory()
    empty.update(ScanResult(), anything=False, now=10.0)
    empty.hint = "no checkpoint was seen"
    empty.update(ScanResult(), anything=True, now=20.0)
    assert (empty.since, empty.hint) == (None, None)
    empty.update(ScanResult(), anything=False, now=30.0)
    assert empty.since is None
