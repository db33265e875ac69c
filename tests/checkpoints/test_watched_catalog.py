"""How far each scan goes, by what file events reported."""

import pytest

from sidecar.checkpoints.scan import ScanResult
from sidecar.checkpoints.watched_catalog import WatchedCatalog
from sidecar.errors import StorageError


class FakeCatalog:
    """Keeps how far it was asked to scan."""

    def __init__(self):
        self.asked, self.fails = [], False

    def scan(self, hints=None, *, sweep=True, at_once=False):
        """Note the hints and the extent of a scan, and fail if the test says so."""
        self.asked.append((None if hints is None else set(hints), sweep, *([at_once] if at_once else [])))
        if self.fails:
            raise StorageError("cannot read the checkpoint directory")
        return ScanResult()

    def ask_directory(self, found):
        """Fail the test, since no checkpoint was renamed."""
        raise AssertionError(found)


class FakeWatch:
    """Reports the names that a test put there."""

    def __init__(self):
        self.names, self.problem, self.followed = set(), None, []

    def ensure(self):
        """Leave the watch as it is, since it never breaks."""

    def changed(self):
        """Return the names once."""
        names, self.names = self.names, set()
        return names if self.problem is None else None

    def follow(self, folders):
        """Note the folders that are to be watched."""
        self.followed.append(folders)


EVERYTHING = (None, True)


@pytest.fixture
def watched(clock):
    catalog = WatchedCatalog(FakeCatalog(), FakeWatch(), clock, sweep_seconds=2.0)
    catalog.scan(everything=False)
    catalog.catalog.asked.clear()
    return catalog


def test_between_sweeps_only_names_that_events_reported_are_scanned(watched, clock):
    """A sweep goes further, with the names."""
    watched.watch.names = {"a"}
    watched.scan(everything=False)
    watched.scan(everything=False)
    clock.seconds += 2.0
    watched.watch.names = {"b"}
    watched.scan(everything=False)
    assert watched.catalog.asked == [({"a"}, False), (set(), False), ({"b"}, True)]


def test_names_are_kept_until_a_scan_succeeds(watched):
    """Storage may fail in the middle of a scan."""
    watched.watch.names, watched.catalog.fails = {"a"}, True
    with pytest.raises(StorageError):
        watched.scan(everything=False)
    watched.watch.names, watched.catalog.fails = {"b"}, False
    watched.scan(everything=False)
    assert watched.catalog.asked == [({"a"}, False), ({"a", "b"}, False)]


def test_everything_is_scanned_without_events_and_if_it_is_asked_for(watched, clock):
    """Events come late, are missed, or are not watched for at all."""
    watched.scan(everything=True)
    watched.watch.problem = "no events here"
    watched.scan(everything=False)
    assert watched.catalog.asked == [EVERYTHING] * 2
    assert watched.watch_problem == "no events here"
    without = WatchedCatalog(FakeCatalog(), None, clock)
    without.scan(everything=False)
    assert (without.catalog.asked, without.watch_problem) == ([EVERYTHING], None)


def test_a_notice_has_everything_scanned_at_once(watched, clock):
    """The watch reported no event: training may save where none arrives."""
    without = WatchedCatalog(FakeCatalog(), None, clock)
    for each in (watched, without):
        each.scan(everything=False, noticed=True)
        assert each.catalog.asked == [(*EVERYTHING, True)]
