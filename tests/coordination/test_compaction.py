"""Closed plans move into segments, whoever is killed or suspended meanwhile, and nothing of the journal changes."""

import gzip
import json

import pytest

from sidecar.coordination import snapshot_store
from sidecar.coordination.closed_plan import has_plan, read_success
from sidecar.coordination.compaction import Compaction
from sidecar.coordination.journal import Journal, outcome_path, plan_path, read_history
from sidecar.coordination.journal_state import JournalState
from sidecar.coordination.segments import segment_path
from sidecar.coordination.snapshot import take
from sidecar.coordination.storage import PosixStorage
from sidecar.errors import RecordError, StateUnavailableError, StorageError, StorageLostError
from sidecar.protocol.codec import dumps


@pytest.fixture
def write(journal, new_plan, new_outcome):
    """Append closed plans to a journal: each third one only settles."""

    def append(through):
        for number in range(journal.through + 1, through + 1):
            settles = number % 3 == 0
            assert journal.propose(new_plan(number, f"plan-{number}", **({"members": None} if settles else {})))
            journal.read_new()
            if not settles:
                assert journal.close(new_outcome(number, f"end-{number}", plan_nonce=f"plan-{number}"))
                journal.read_new()

    return append


@pytest.fixture
def compact(storage, run):
    """Return a compaction with small segments, which did its work for the plans up to a number."""

    def work(closed, on=storage):
        compaction = Compaction(on, run, kept_plans=2, most_plans=3)
        compaction.work(closed, lambda: False)
        return compaction

    return work


def numbers(storage, folder):
    return [int(name.split(".")[0]) for name in storage.names(folder)]


def records(storage, run):
    return list(Journal(storage, run).read_to_end())


def test_old_plans_are_in_segments_and_read_from_there(storage, run, write, compact):
    """Each record is the same, in the same order, and the single files of the newest plans stay."""
    write(11)
    before = records(storage, run)
    made = compact(11).made
    assert (made.segments, made.plans, made.records, made.through) == (3, 9, 15, 9)
    assert numbers(storage, "segments") == [1, 4, 7]
    assert numbers(storage, "plans") == [1, 10, 11]
    assert numbers(storage, "outcomes") == [10, 11]
    assert records(storage, run) == before
    lines = gzip.decompress((storage.root / segment_path(4)).read_bytes()).splitlines()
    assert [json.loads(line)["nonce"] for line in lines[1:]] == ["plan-4", "end-4", "plan-5", "end-5", "plan-6"]


def test_nothing_moves_before_the_plans_behind_it_are_closed(write, compact):
    """A segment of three plans needs two closed plans behind it."""
    write(4)
    assert compact(4).made.segments == 0
    write(5)
    assert compact(5).made.segments == 1


def test_a_segment_ends_where_its_records_reach_a_size(storage, run, write, monkeypatch):
    """So memory is bounded: the next plan begins the next segment."""
    write(8)
    sizes = {
        number: len(storage.read(plan_path(number)) + (storage.read(outcome_path(number)) or b""))
        for number in range(1, 9)
    }
    monkeypatch.setattr("sidecar.coordination.segments.MOST_BYTES", sizes[1] + sizes[2] + 10)
    before = records(storage, run)
    Compaction(storage, run, kept_plans=2, most_plans=100).work(8, lambda: False)
    assert numbers(storage, "segments")[:2] == [1, 3]
    assert records(storage, run) == before


def test_the_journal_goes_on_behind_segments(storage, run, write, compact, new_plan):
    """The daemon that wrote goes on, and so does one that starts."""
    write(5)
    compact(5)
    write(9)
    compact(9)
    other = Journal(storage, run)
    assert len(other.read_new()) == 15
    assert other.propose(new_plan(10, "other"))


def test_a_snapshot_may_end_in_a_segment(storage, run, write, compact):
    """Its nonces are compared with those in the segment."""
    write(5)
    history = read_history(storage)
    snapshot_store.write(storage, take(history, run))
    write(9)
    compact(9)
    journal = Journal(storage, run)
    assert snapshot_store.resume(storage, journal).through == journal.through == 5
    assert [record.plan for record in journal.read_new()] == [6, 7, 7, 8, 8, 9]


def test_one_evaluation_is_read_from_its_segment(storage, write, compact):
    """As is whether there is such a plan."""
    write(8)
    before = [read_success(storage, number) for number in range(10)]
    compact(8)
    assert [read_success(storage, number) for number in range(10)] == before
    assert [number for number in range(12) if has_plan(storage, number)] == list(range(1, 9))


class Stopping:
    """Real files, and a program that is killed before its n-th change of them."""

    def __init__(self, storage, changes):
        self._storage, self._left = storage, changes

    def __getattr__(self, name):
        method = getattr(self._storage, name)
        if name not in ("create", "replace", "remove"):
            return method

        def change(*given, **named):
            if self._left == 0:
                raise KilledError
            self._left -= 1
            return method(*given, **named)

        return change


class KilledError(Exception):
    """The program is killed."""


@pytest.mark.parametrize("changes", range(13))
def test_a_killed_program_leaves_the_journal_whole(storage, run, write, compact, changes):
    """At whatever change it is killed, all records can be read, and the next program finishes its work."""
    write(8)
    before = records(storage, run)
    with pytest.raises(KilledError):
        compact(8, Stopping(storage, changes))
    assert records(storage, run) == before
    compact(8)
    assert records(storage, run) == before
    assert numbers(storage, "plans") == [1, 7, 8]
    assert numbers(storage, "outcomes") == [7, 8]


def test_there_are_not_more_changes(compact, storage, write):
    """The test before kills at each change."""
    write(8)
    compact(8, Stopping(storage, 13))


def test_two_programs_take_turns_at_every_step(storage, run, write):
    """Both do the same work, each request of one between two of the other."""
    write(8)
    before = records(storage, run)
    both = [Compaction(storage, run, kept_plans=2, most_plans=3) for _ in range(2)]
    passes = [compaction.carry_out(8) for compaction in both]
    while passes:
        for each in list(passes):
            if next(each, "over") == "over":
                passes.remove(each)
    assert numbers(storage, "plans") == [1, 7, 8]
    assert records(storage, run) == before


def test_a_plan_that_a_suspended_daemon_creates_late_decides_nothing(storage, run, write, compact, new_plan):
    """Its name was free, because the plan of that number is in a segment: the daemon reads that one."""
    write(4)
    late = Journal(storage, run)
    late.read_new()
    late.reaches_end()
    create, waiting = storage.create, PosixStorage(storage.root)

    def create_late(path, data):
        if path == plan_path(5):
            write(12)
            compact(12)
        create(path, data)

    waiting.create = create_late
    late.storage = waiting
    assert not late.propose(new_plan(5, "late"))
    assert storage.read(plan_path(5)) is not None
    assert [record.nonce for record in late.read_new()][:2] == ["plan-5", "end-5"]
    assert [record.nonce for record in records(storage, run)][7:9] == ["plan-5", "end-5"]
    assert read_success(storage, 5).plan.nonce == "plan-5"
    compact(12)
    assert storage.read(plan_path(5)) is None


def test_an_outcome_that_comes_late_decides_nothing(storage, run, write, compact, journal, new_plan, new_outcome):
    """Neither for the daemon that created it nor for one that had read the plan."""
    write(3)
    assert journal.propose(new_plan(4, "plan-4"))
    late, reader = Journal(storage, run), Journal(storage, run)
    late.read_new()
    reader.read_new()
    create, waiting = storage.create, PosixStorage(storage.root)

    def create_late(path, data):
        if path == outcome_path(4):
            journal.read_new()
            assert journal.close(new_outcome(4, "end-4", plan_nonce="plan-4"))
            journal.read_new()
            write(12)
            compact(12)
        create(path, data)

    waiting.create = create_late
    late.storage = waiting
    assert not late.close(new_outcome(4, "late", plan_nonce="plan-4"))
    assert late.read_new()[0].nonce == "end-4"
    assert reader.read_new()[0].nonce == "end-4"


def test_a_daemon_that_was_suspended_notices_that_it_is_behind(storage, run, write, compact):
    """No single file follows what it has read: what follows is in a segment."""
    write(4)
    late = Journal(storage, run)
    late.read_new()
    assert late.reaches_end()
    write(12)
    compact(12)
    assert not late.reaches_end()
    assert [record.plan for record in late.read_new()] == [5, 5, 6, 7, 7, 8, 8, 9, 10, 10, 11, 11, 12]


def test_records_are_not_lost_if_storage_fails_while_segments_are_looked_for(storage, run, write, monkeypatch):
    """They are returned by the next call."""
    write(2)
    reader, sync, failing = Journal(storage, run), storage.sync, {"segments"}

    def fail(folder):
        if folder in failing:
            raise StorageError(f"cannot sync {folder}")
        sync(folder)

    monkeypatch.setattr(storage, "sync", fail)
    with pytest.raises(StorageError, match="cannot sync"):
        reader.read_new()
    failing.clear()
    assert [record.plan for record in reader.read_new()] == [1, 1, 2, 2]


@pytest.mark.parametrize("first", [1, 4, 7])
def test_a_segment_that_is_gone_is_named(storage, run, write, compact, first):
    """And what to do. The others stay."""
    write(11)
    compact(11)
    (storage.root / segment_path(first)).unlink()
    with pytest.raises((RecordError, StorageLostError), match=r"is missing"):
        records(storage, run)
    assert len(numbers(storage, "segments")) == 2


@pytest.mark.parametrize("first", [1, 4, 7])
@pytest.mark.parametrize("damage", [b"", b"{}", None], ids=["empty", "other", "torn"])
def test_a_damaged_segment_is_named(storage, run, write, compact, first, damage):
    """No record is made up, and nothing is removed."""
    write(11)
    compact(11)
    file = storage.root / segment_path(first)
    file.write_bytes(file.read_bytes()[:-9] if damage is None else damage)
    with pytest.raises(RecordError, match=segment_path(first)):
        records(storage, run)
    assert numbers(storage, "segments") == [1, 4, 7]


def test_a_segment_that_contradicts_a_single_file_removes_nothing(storage, run, write, new_plan):
    """One of them was changed by hand."""
    write(5)
    (storage.root / plan_path(2)).write_bytes(dumps(new_plan(2, "plan-2", proposer="changed")))
    before = {path.name for path in (storage.root / "plans").iterdir()}
    compaction = Compaction(storage, run, kept_plans=2, most_plans=3)
    steps = compaction.carry_out(5)
    while not storage.names("segments"):
        next(steps)
    (storage.root / plan_path(2)).write_bytes(dumps(new_plan(2, "plan-2")))
    with pytest.raises(StorageLostError, match=r"plans/000000000002\.json and segments/000000000001"):
        list(steps)
    assert {path.name for path in (storage.root / "plans").iterdir()} == before


def test_a_node_of_a_release_without_segments_is_waited_for(storage, run, write, compact, put, new_heartbeat):
    """It could not read the journal any more. Once it has left or is updated, the single files go."""
    write(5)
    put("members/worker-1.json", new_heartbeat(run=run))
    with pytest.raises(StateUnavailableError, match=r"worker-1.*delete members/worker-1\.json"):
        compact(5)
    assert numbers(storage, "plans") == [1, 2, 3, 4, 5]
    put("members/worker-1.json", new_heartbeat(run=run, segments=1))
    compact(5)
    assert numbers(storage, "plans") == [1, 4, 5]


def test_older_releases_refuse_the_plan_that_they_read_first(storage, run, write, compact):
    """Its number of the schema is newer, and the snapshot with which they would not read it is gone."""
    write(5)
    storage.replace("snapshot.json", b"{}")
    compact(5)
    assert json.loads(storage.read(plan_path(1))) == {
        "moved_to": segment_path(1),
        "run": run,
        "plan": 1,
        "schema": 2,
    }
    assert storage.read("snapshot.json") is None


def test_a_removal_never_touches_another_run(storage):
    """A file with another content stands, whatever a program read a moment before."""
    storage.create("plans/x", b"of another run")
    storage.remove("plans/x", holding=b"of this run")
    storage.replace("plans/x", b"changed", instead_of=b"of this run")
    assert storage.read("plans/x") == b"of another run"
    storage.remove("plans/x", holding=b"of another run")
    assert storage.read("plans/x") is None


def test_a_record_that_was_set_aside_moves_as_well(storage, run, write, compact, put, new_plan):
    """Of one that is too long, as much as readers read, so that it is set aside in the same way."""
    write(1)
    put(plan_path(2), dumps(new_plan(2, "forged")) + b" " * 3_000_000)
    reader = Journal(storage, run)
    before = reader.read_new()
    assert before[-1].void is not None
    for number in range(3, 6):
        assert reader.propose(new_plan(number, f"plan-{number}", members=None))
        reader.read_new()
    before = records(storage, run)
    compact(5)
    assert records(storage, run) == before
    assert numbers(storage, "plans") == [1, 4, 5]


def test_a_silent_storage_is_no_reason_to_remove(storage, write, compact):
    """The error is passed on, and the next call begins anew."""
    write(5)

    class Failing(Stopping):
        def __getattr__(self, name):
            if name == "remove":
                raise StorageError("cannot remove")
            return getattr(self._storage, name)

    with pytest.raises(StorageError, match="cannot remove"):
        compact(5, Failing(storage, 0))
    assert numbers(storage, "outcomes") == [1, 2, 4, 5]


def test_the_fold_is_the_same(storage, run, write, compact):
    """For everything that policy, gauges and commands read."""
    write(11)
    before = read_history(storage)
    compact(11)
    after = JournalState()
    for record in Journal(storage, run).read_to_end():
        after.apply(record)
    assert after == before
