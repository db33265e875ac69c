"""Decide which request storage gets next, and when."""

from dataclasses import replace

import pytest
from heartbeats import make_heartbeat

from sidecar.daemon.storage_schedule import Ask, StorageSchedule, SyncDue
from sidecar.daemon.timing import Timing

BEAT, LEASE, SWEEP = 2.0, 10.0, 30.0
TIMING = Timing(
    beat_seconds=BEAT,
    lease_seconds=LEASE,
    loop_timeout_seconds=LEASE,
    sweep_seconds=SWEEP,
    storage_timeout_seconds=10.0,
    pin_wait_seconds=60.0,
    result_turn_seconds=10.0,
    drain_seconds=25.0,
)
HEARTBEAT = make_heartbeat(beat=0)


def asked(schedule, now, *, heartbeat=None, record=None, may_scan=True, may_poll=True, is_ending=False):
    """Return a word for what storage is asked; `record` is what would be written."""
    known = heartbeat or replace(HEARTBEAT, beat=schedule.beats)
    for due in schedule.due(now, known, may_scan=may_scan, may_poll=may_poll, is_ending=is_ending):
        if isinstance(due, SyncDue):
            schedule.number(due, now)
            return "scan" if due.scan else "sync"
        if due is not Ask.RECORD or record is not None:
            return record if due is Ask.RECORD else due
    return None


@pytest.fixture
def schedule():
    """A schedule at 100 s: journal and checkpoints were read just now, and nothing is to be written."""
    made = StorageSchedule(timing=TIMING)
    assert asked(made, 100.0) == "scan"
    made.note_journal(100.0, readable=True)
    made.note_scan(100.0, asked=True, unfinished=False)
    assert asked(made, 100.0) is None
    return made


def test_a_run_is_joined_before_anything_else():
    """It is tried again when the last attempt says so."""
    schedule = StorageSchedule(timing=TIMING)
    allowed = {"may_scan": False, "may_poll": False}
    assert schedule.due(0.0, None, **allowed) == (Ask.JOIN,)
    schedule.sync_at(5.0)
    assert schedule.due(4.9, None, **allowed) == ()
    assert schedule.due(5.0, None, **allowed) == (Ask.JOIN,)


@pytest.mark.parametrize(
    ("now", "changes", "expected"),
    [
        (101.9, {}, None),
        (102.0, {}, "sync"),
        (101.9, {"record": "record"}, "record"),
        (102.0, {"record": "record"}, "sync"),
        (100.5, {"heartbeat": replace(HEARTBEAT, state="draining")}, "sync"),
        (100.5, {"heartbeat": replace(HEARTBEAT, state="draining"), "record": "outcome", "is_ending": True}, "outcome"),
        (100.5, {"heartbeat": replace(HEARTBEAT, state="draining"), "is_ending": True}, "sync"),
        (102.0, {"record": "outcome", "is_ending": True}, "sync"),
        (100 + SWEEP, {}, "sync"),  # this node was absent for longer than its lease, and its last sync had a scan
        (100 + SWEEP, {"may_scan": False}, "sync"),
    ],
    ids=[
        "nothing",
        "a beat",
        "a record",
        "a beat before a record",
        "another heartbeat",
        "an outcome before another heartbeat",
        "another heartbeat while no outcome may be written",
        "a beat before an outcome",
        "absent",
        "no scan allowed",
    ],
)
def test_what_is_asked_next(schedule, now, changes, expected):
    """The heartbeat is due once in a beat and when it changes; records have their turn between."""
    assert asked(schedule, now, **changes) == expected


def test_a_record_has_its_turn_although_each_sync_takes_longer_than_a_beat(schedule):
    """Syncs and records alternate."""
    words = []
    for now in (103.0, 106.0, 109.0, 112.0):
        words.append(asked(schedule, now, record="record"))
        schedule.note_journal(now, readable=True)
    assert words == ["sync", "record", "sync", "record"]


def test_an_absent_node_reads_the_journal_before_it_writes(schedule):
    """Other nodes may have gone on without it; every other sync scans, so that a long scan does not keep it absent."""
    words = [asked(schedule, 120.0 + SWEEP * turn, record="record") for turn in range(4)]
    assert words == ["sync", "scan", "sync", "scan"]
    schedule.note_journal(250.0, readable=True)
    assert asked(schedule, 250.0, record="record") == "record"


def test_file_events_bring_a_scan_soon_and_a_burst_brings_one(schedule):
    """The pause after the last scan is short, but there is one; it grows while files are written."""
    schedule.request_scan()
    schedule.request_scan()
    assert schedule.scan_due_at(may_scan=True) == pytest.approx(100.004)
    assert asked(schedule, 100.003) is None
    now, pauses = 100.0, []
    for _ in range(4):
        pauses.append(schedule.scan_due_at(may_scan=True) - now)
        now = schedule.scan_due_at(may_scan=True)
        assert asked(schedule, now) == "scan"
        assert asked(schedule, now + 0.1) is None
        schedule.request_scan()
    assert pauses == pytest.approx([0.004, 0.008, 0.016, 0.02])
    assert asked(schedule, now + 0.2) == "scan"
    assert schedule.scan_due_at(may_scan=True) == pytest.approx(now + 0.2 + SWEEP)
    schedule.request_scan()
    assert schedule.scan_due_at(may_scan=True) == pytest.approx(now + 0.2 + 0.004), "another save"
    assert schedule.scan_due_at(may_scan=False) == float("inf")


def test_a_journal_event_is_followed_by_one_poll(schedule):
    """Not before the journal was read to its end once."""
    schedule.note_journal_event()
    assert asked(schedule, 100.5, may_poll=False) is None
    assert asked(schedule, 100.6) is Ask.POLL
    assert asked(schedule, 100.7) is None


def test_a_sync_reads_the_journal_so_an_event_before_it_is_done(schedule):
    """Nothing is read twice."""
    schedule.note_journal_event()
    assert asked(schedule, 102.0) == "sync"
    assert asked(schedule, 102.1) is None


def test_polls_for_another_nodes_record_become_rare(schedule):
    """Each pause is half the time that has passed; a record begins anew."""
    due = [100.0 + step / 100 for step in range(10_000) if schedule.is_poll_due(100.0 + step / 100)]
    assert due[0] == pytest.approx(100.05, abs=0.02)
    assert due[-1] - due[-2] > 20.0
    assert 10 < len(due) < 30
    schedule.stop_polling()
    assert not schedule.is_poll_due(300.0)
    assert schedule.is_poll_due(300.1)


def test_a_scan_that_does_not_end_is_asked_for_again_and_hangs_after_the_timeout(schedule):
    """It answers when it has come to an end."""
    schedule.note_scan(101.0, asked=True, unfinished=True)
    assert asked(schedule, 101.1) == "scan"
    schedule.note_scan(105.0, asked=True, unfinished=True)
    assert not schedule.scan_hangs(110.9)
    assert schedule.scan_hangs(111.0)
    schedule.note_scan(112.0, asked=False, unfinished=False)
    assert schedule.scan_hangs(112.0), "a sync without a scan says nothing"
    schedule.note_scan(113.0, asked=True, unfinished=False)
    assert not schedule.scan_hangs(200.0)


def test_a_scan_since_a_time_is_requested_once_that_time_has_come(schedule):
    """And it counts only when it was answered."""
    assert not schedule.has_scanned_since(105.0, 104.0, answered=True)
    assert asked(schedule, 104.0) == "sync"
    assert not schedule.has_scanned_since(105.0, 105.0, answered=True)
    assert asked(schedule, 105.0) == "scan"
    assert not schedule.has_scanned_since(105.0, 105.1, answered=False)
    assert schedule.has_scanned_since(105.0, 105.2, answered=True)


def test_a_journal_that_cannot_be_read_for_a_lease(schedule):
    """One success ends it."""
    schedule.note_journal(102.0, readable=False)
    schedule.note_journal(111.9, readable=False)
    assert not schedule.is_unreadable(111.9)
    assert schedule.is_unreadable(112.0)
    schedule.note_journal(113.0, readable=True)
    assert not schedule.is_unreadable(200.0)


@pytest.mark.parametrize(
    ("wake_at", "others", "busy_until", "expected"),
    [
        (float("inf"), (), None, 101.5),
        (100.7, (), None, 100.7),
        (100.7, (100.6,), None, 100.6),
        (100.0, (), None, 100.502),
        (float("inf"), (), 101.2, 101.2),
        (100.7, (), float("inf"), 101.5),
    ],
    ids=["idle", "the policy", "an ending", "never at once", "storage is blocked", "storage is silent"],
)
def test_when_the_loop_turns_again(schedule, wake_at, others, busy_until, expected):
    """Soon enough for every bound, and no sooner than rounding allows."""
    schedule.wake_at = wake_at
    assert schedule.next_turn_at(100.5, *others, may_scan=True, busy_until=busy_until) == pytest.approx(expected)


def test_a_heartbeat_is_numbered_when_it_is_handed_over(schedule):
    """The number alone makes no sync due."""
    (due,) = schedule.due(102.0, HEARTBEAT, may_scan=True, may_poll=True)
    assert due == SyncDue(HEARTBEAT, scan=False)
    assert schedule.number(due, 102.0) == replace(HEARTBEAT, beat=2)
    assert asked(schedule, 102.1) is None


def test_beats_that_were_left_out_come_once_somebody_waits_for_them(schedule):
    """A node that was alone makes no gap of several beats, by which others would give it a longer lease."""
    schedule.timing = replace(TIMING, quiet_factor=2.5)
    (due,) = schedule.due(102.0, HEARTBEAT, may_scan=False, may_poll=True)
    schedule.number(due, 102.0, quiet=True)
    assert schedule.next_sync_at == 102.0 + 2.5 * TIMING.beat_seconds
    schedule.end_quiet()
    assert schedule.next_sync_at == 102.0 + TIMING.beat_seconds


def test_a_notice_has_the_checkpoints_scanned_now_and_when_they_are_quiet(schedule):
    """The second scan is for files that must not change for a while; then scans are as rare as before."""
    schedule.note_save(101.0)
    scans = [now for now in range(101, 131) if (schedule.begin_turn(now), asked(schedule, now))[1] == "scan"]
    assert scans == [101, 105]


def test_notices_without_end_cause_a_scan_a_second(schedule):
    """None is lost: after the last one there is a scan, too."""
    scans = []
    for turn in range(1, 1001):
        now = 100.0 + turn / 100
        schedule.note_save(now)
        for due in schedule.due(now, replace(HEARTBEAT, beat=schedule.beats), may_scan=True, may_poll=True):
            if isinstance(due, SyncDue):
                schedule.number(due, now)
                schedule.note_journal(now, readable=True)
                scans += [now] if due.noticed else []
                break
    assert 10 <= len(scans) <= 11
    assert schedule.scan_due_at(may_scan=True) <= 111.0
