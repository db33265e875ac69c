"""Track checkpoints from scan to scan: what is new, what vanished, what may go."""

from dataclasses import replace
from pathlib import Path

import pytest
from daemon.worlds import found, given_up, holds, look, new_world, plan, scan_of, view

from sidecar.checkpoints.scan import DiscoveredCheckpoint, ScanResult
from sidecar.coordination.journal_state import JournalState
from sidecar.daemon.checkpoint_tracker import CheckpointTracker, EmptyDirectory, IncompleteEntries, ScanSelection
from sidecar.policy.selection import Selection
from sidecar.protocol.records import Checkpoint


def test_what_vanished_is_given_up_when_no_look_finds_it_for_a_minute():
    """Another node may have pinned it in time."""
    state = new_world()
    state.record_scan(look(), (given_up(1, "vanished"), given_up(2, "vanished")), 0.0, 0.0)
    assert view(state, 0.0).checkpoints.given_up == []
    assert view(state, 0.0).checkpoints.incomplete_since == 0.0
    state.record_scan(look(2), (), 2.0, 0.0)
    state.record_scan(look(2), (), 59.9, 0.0)
    assert view(state, 59.9).checkpoints.given_up == []
    state.record_scan(look(2), (), 60.0, 0.0)
    assert [each.name for each in view(state, 60.0).checkpoints.given_up] == ["ckpt-1"]
    assert view(state, 60.0).checkpoints.incomplete_since is not None, "the end waits for what this node alone gave up"
    state.apply(plan(1, members=(), settles=(given_up(1, "vanished"),)), 61.0)
    state.record_scan(look(2), (), 62.0, 0.0)
    assert view(state, 62.0).checkpoints.incomplete_since is None


@pytest.mark.parametrize(("done", "verdict"), [(False, "skipped"), (True, "vanished")])
def test_the_last_checkpoint_of_a_training_that_is_done_is_not_skipped(done, verdict):
    """It is evaluated whatever its step. So another node that still has it whole may dispute its loss."""
    state = new_world()
    state.tracker = CheckpointTracker(choices=ScanSelection(Selection(every_steps=250)))
    state.apply(plan(1, members=()), 0.0)
    state.record_scan(look(100, 200), (), 1.0, 0.0)
    state.tracker.note({}, done=done)
    for now in (2.0, 4.0, 66.0):
        state.record_scan(look(100), (), now, 0.0)
    assert [(each.step, each.verdict) for each in view(state, 66.0).checkpoints.given_up] == [(200, verdict)]


AWAY, UNREADABLE = look(missing=True), replace(look(), unknown={found(1).checkpoint.folder: "Input/output error"})


@pytest.mark.parametrize(
    ("after", "vanished"),
    [
        ({2: look(), 62: look()}, True),
        ({2: look(), 61: look()}, False),
        ({2: look(), 62: look(), 64: look(1)}, False),
        ({2: look(), 40: look(1), 42: look(), 62: look()}, False),
        ({2: AWAY, 62: AWAY, 122: AWAY}, False),
        ({2: look(), 4: AWAY, 62: AWAY, 64: look()}, False),
        ({2: look(), 4: UNREADABLE, 64: UNREADABLE, 66: look()}, False),
        ({2: look(), 62: look(), 64: UNREADABLE}, False),
    ],
    ids=[
        *("gone", "gone for less than a minute", "it came back", "it flickered", "the directory is gone"),
        *("the directory was gone meanwhile", "its pin could not be read", "its pin is there after all"),
    ],
)
def test_what_was_there_and_is_gone_has_vanished(after, vanished):
    """Unless it comes back, or the whole directory went: that may come back with all that was in it."""
    state = new_world()
    state.record_scan(look(1), (), 0.0, 0.0)
    for now, seen in after.items():
        state.record_scan(seen, (), float(now), 0.0)
    assert [each.verdict for each in view(state, 200.0).checkpoints.given_up] == ["vanished"] * vanished


def test_the_same_incomplete_things_are_timed_together():
    """A new one begins anew."""
    state = new_world()
    state.record_scan(look(waiting=("ckpt-1",)), (), 10.0, 0.0)
    state.record_scan(look(waiting=("ckpt-1",)), (), 20.0, 0.0)
    assert view(state, 20.0).checkpoints.incomplete_since == 10.0
    state.record_scan(look(waiting=("ckpt-1", "ckpt-2")), (), 30.0, 0.0)
    assert view(state, 30.0).checkpoints.incomplete_since == 30.0


def test_what_was_there_before_the_start_is_not_pinned_with_start_new():
    """Not even for the first look; asked for again it is."""
    state = new_world(start_new=True)
    assert holds(state, 0.0, 1) == []
    state.record_scan(look(1), (), 0.0, 0.0)
    assert holds(state, 0.0, 1, 2) == [2]
    state.apply(plan(1, members=(), settles=(given_up(1, "requeued"),)), 1.0)
    assert holds(state, 0.0, 1, 2) == [1, 2]
    assert view(state, 1.0).checkpoints.before_start == frozenset()


def test_what_is_still_corrupt_when_a_person_wants_it_again_is_given_up_again():
    """Its files are as they were, so no look tells of it a second time; without this nobody would."""
    state, corrupt = new_world(), given_up(1, "corrupt")
    state.record_scan(look(), (corrupt,), 0.0, 0.0)
    assert view(state, 0.0).checkpoints.given_up == [corrupt]
    state.apply(plan(1, members=(), settles=(corrupt,)), 1.0)
    state.record_scan(look(), (), 1.0, 0.0)
    assert view(state, 1.0).checkpoints.given_up == []
    state.apply(plan(2, members=(), settles=(given_up(1, "requeued"),)), 2.0)
    assert view(state, 2.0).checkpoints.given_up == [corrupt]
    state.record_scan(look(1), (), 3.0, 0.0)
    assert view(state, 3.0).checkpoints.given_up == []


def test_detection_is_timed_for_what_was_seen_to_appear():
    """Checkpoints that existed at the first scan have no detection time, because nobody saw them appear."""
    state = new_world()
    state.record_scan(look(1), (), 0.0, 105.0)
    state.record_scan(look(1, 2), (), 1.0, 103.5)
    assert state.tracker.detected_after(found(1).checkpoint.key) is None
    assert state.tracker.detected_after(found(2).checkpoint.key) == 3.5


def test_only_what_is_new_and_unsettled_is_told():
    """A restart does not tell of everything again."""
    state = new_world()
    state.apply(plan(1, members=(), settles=(given_up(1, "skipped"),)), 0.0)
    assert [each.checkpoint.name for each in state.record_scan(look(1, 2), (), 0.0, 0.0)] == ["ckpt-2"]
    assert state.record_scan(look(1, 2), (), 1.0, 0.0) == []


def test_the_newer_of_two_contents_under_one_name_is_not_superseded_by_the_older():
    """One look finds a pin of the older content and the newer one in the directory, which is then deleted."""
    state = new_world()
    state.tracker.choices.selection = Selection(queue="latest")
    older, newer = found(5), found(5, pinned=False)
    newer = replace(newer, checkpoint=replace(newer.checkpoint, digest="9" * 64), written_at=200.0)
    for now, seen in (
        (0.0, [older, newer]),
        (10.0, [older]),
        (11.0 + state.tracker.lost.vanished_after_seconds, [older]),
    ):
        state.record_scan(scan_of(*seen), (), now, now)
    (lost,) = state.tracker.given_up.values()
    assert (lost.digest[0], lost.verdict) == ("9", "vanished")


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
