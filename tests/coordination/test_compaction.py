"""Closed plans move into segments, whoever is killed or suspended meanwhile, and nothing of the journal changes."""

import gzip
import json

import pytest

from sidecar.coordination.compaction import Compaction
from sidecar.coordination.journal import Journal, outcome_path, plan_path, read_history
from sidecar.coordination.journal_state import JournalState
from sidecar.coordination.segments import segment_path
from sidecar.coordination.storage import PosixStorage
from sidecar.errors import StateUnavailableError, StorageError, StorageLostError
from sidecar.protocol.codec import dumps


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


def test_a_removal_never_touches_another_run(storage):
    """A file with another content stands, whatever a program read a moment before."""
    storage.create("plans/x", b"of another run")
    storage.remove("plans/x", holding=b"of this run")
    storage.replace("plans/x", b"changed", instead_of=b"of this run")
    assert storage.read("plans/x") == b"of another run"
    storage.remove("plans/x", holding=b"of another run")
    assert storage.read("plans/x") is None


def test_a_record_that_was_set_aside_moves_as_well(storage, run, write, compact, put, new_plan):
    """A record that is too long moves as far as readers read it, so that it is set aside in the same way."""
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
