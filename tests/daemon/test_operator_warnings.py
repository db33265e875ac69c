"""Warn people once about each thing that they should look at."""

import pytest
from fakes import ListLog

from sidecar.checkpoints.scan import ScanResult
from sidecar.daemon.operator_warnings import OperatorWarnings
from sidecar.protocol.records import Checkpoint

NEW = Checkpoint(name="ckpt-1", digest="d" * 64, step=None, format="tf_object")


@pytest.fixture
def log():
    return ListLog()


@pytest.fixture
def scanned(log):
    """Report a scan, and return the events that it brought."""
    warnings = OperatorWarnings(log=log)

    def report(scan=None, new=(), no_room=None, watch_problem=None, *, needs_steps=False):
        before = len(log.events)
        scan = scan or ScanResult()
        warnings.scan(scan, new, no_room=no_room or {}, watch_problem=watch_problem, needs_steps=needs_steps)
        return [event for event, _ in log.events[before:]]

    return report


def test_a_scan_that_shows_nothing_is_not_reported(scanned):
    """An idle daemon is silent."""
    assert scanned() == []


def test_each_new_checkpoint_is_reported_and_a_missing_step_once(scanned):
    """Only where a setting selects by steps."""
    assert scanned(new=[NEW]).count("step_unknown") == 0
    assert scanned(new=[NEW, NEW], needs_steps=True).count("step_unknown") == 1
    events = scanned(new=[NEW], needs_steps=True)
    assert (events.count("checkpoint_found"), events.count("step_unknown")) == (1, 0)


def test_an_entry_that_fails_is_reported_again_after_it_was_well(scanned):
    """Each scan tries again, and most failures are the same."""
    failing = ScanResult(failed={"ckpt-1@d": "Input/output error"})
    assert scanned(failing) == ["checkpoint_entry_failed"]
    assert scanned(failing) == []
    assert scanned() == []
    assert scanned(failing) == ["checkpoint_entry_failed"]


def test_missing_file_events_are_reported_when_the_reason_changes(scanned):
    """Not while the directory is missing: then there is nothing to watch."""
    assert scanned(ScanResult(missing=True), watch_problem="no inotify") == []
    assert scanned(watch_problem="no inotify") == ["file_events_unavailable"]
    assert scanned(watch_problem="no inotify") == []
    assert scanned(watch_problem="a network mount") == ["file_events_unavailable"]


def test_subfolders_are_reported_once_and_explain_an_empty_directory(scanned, log):
    """The remedy is the same in the log and on the status page."""
    below = ScanResult(below="set checkpoint_glob")
    assert scanned(below) == ["checkpoints_in_subfolders"]
    assert scanned(below) == []
    warnings = OperatorWarnings(log=log)
    assert "shared with the chief" in warnings.empty(300.0)
    warnings.scan(below, (), no_room={}, watch_problem=None, needs_steps=False)
    assert warnings.empty(300.0) == "no checkpoint was seen in 300 s: set checkpoint_glob"


def test_want_of_room_names_the_first_checkpoint(scanned, log):
    """The tracker says when it is new."""
    assert scanned(no_room={NEW.key: "0 bytes free"}) == ["checkpoint_not_held"]
    assert log.of("checkpoint_not_held")[0]["checkpoint"] == "ckpt-1"


def test_a_sentence_is_reported_once(log):
    """Nothing depends on it."""
    warnings = OperatorWarnings(log=log)
    warnings.trouble(["cannot write the view"])
    warnings.trouble(["cannot write the view", "cannot remove saves"])
    assert [fields["message"] for fields in log.of("entry_failed")] == ["cannot write the view", "cannot remove saves"]


def test_a_metric_that_is_not_measured_is_reported_until_it_changes(log):
    """A corrected setting starts anew."""
    warnings = OperatorWarnings(log=log)
    for complaint in ("no acc", "no acc", None, "no acc"):
        warnings.best(complaint)
    assert len(log.of("best_metric_unknown")) == 2
