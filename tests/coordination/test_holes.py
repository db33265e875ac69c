"""A journal that has lost records is reported, never filled: a number that was used is never used again."""

import pytest
from fakes import FakeClock

from sidecar.coordination import snapshot_store
from sidecar.coordination.journal import Journal, outcome_path, plan_path, read_history
from sidecar.coordination.journal_state import JournalState
from sidecar.coordination.run import RUN_PATH, open_run
from sidecar.coordination.snapshot import take
from sidecar.coordination.unique_names import GracePeriod
from sidecar.errors import NewerSchemaError, RecordError, StateUnavailableError, StorageLostError
from sidecar.protocol.records import Checkpoint


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def evaluated(journal, new_plan, new_outcome):
    """A journal of three evaluations, read to its end."""
    for number in (1, 2, 3):
        assert journal.propose(new_plan(number, nonce=f"plan-{number}"))
        journal.read_new()
        assert journal.close(new_outcome(number, plan_nonce=f"plan-{number}"))
        journal.read_new()
    return journal


def lose(storage, *paths):
    for path in paths:
        (storage.root / path).unlink()


def test_an_old_outcome_is_not_taken_for_that_of_another_plan(evaluated, storage, run, new_plan):
    """Plan 1 was purged, its outcome was not: a daemon that starts must not evaluate another checkpoint as plan 1."""
    lose(storage, *map(plan_path, (1, 2, 3)), *map(outcome_path, (2, 3)))
    fresh = Journal(storage, run)
    assert fresh.read_new() == []
    other = new_plan(1, nonce="new", checkpoint=Checkpoint(name="ckpt-6", digest="6" * 64, step=6, format="tf"))
    with pytest.raises(StorageLostError, match=r"plans/000000000001\.json.*outcomes/000000000001\.json"):
        fresh.propose(other)
    assert storage.names("plans") == []
    assert evaluated.through == 3


@pytest.mark.parametrize(
    ("lost", "missing"),
    [
        ([plan_path(2)], plan_path(2)),
        ([outcome_path(2)], outcome_path(2)),
        ([plan_path(1), outcome_path(1)], plan_path(1)),
        ([plan_path(3)], plan_path(3)),
    ],
    ids=["a plan", "an outcome", "the first of both", "the last plan"],
)
@pytest.mark.usefixtures("evaluated")
def test_a_hole_is_named_with_what_stands_behind_it(storage, run, lost, missing):
    """By whoever reads to the end: daemons and commands alike."""
    lose(storage, *lost)
    with pytest.raises(StorageLostError, match=rf"{missing}.*/\d+\.json") as error:
        read_history(storage)
    assert error.value.exit_code == 5
    reader = Journal(storage, run)
    reader.read_new()
    with pytest.raises(StorageLostError):
        reader.reaches_end()


@pytest.mark.usefixtures("evaluated")
def test_a_hole_is_final_once_it_was_there_for_as_long_as_caches_last(storage, run, clock):
    """A listing may show what a lookup does not, for a while: it is asked again, and healed if it was only that."""
    data = storage.read(plan_path(2))
    lose(storage, plan_path(2))
    reader = Journal(storage, run, GracePeriod(60.0, clock))
    assert len(reader.read_new()) == 2
    for _ in range(59):
        with pytest.raises(StateUnavailableError, match="60 s"):
            reader.reaches_end()
        clock.seconds += 1
    storage.create(plan_path(2), data)
    assert not reader.reaches_end()
    assert [record.plan for record in reader.read_to_end()] == [2, 2, 3, 3]
    lose(storage, plan_path(2))
    late = Journal(storage, run, GracePeriod(60.0, clock))
    late.read_new()
    with pytest.raises(StateUnavailableError):
        late.reaches_end()
    clock.seconds += 60
    with pytest.raises(StorageLostError) as error:
        late.reaches_end()
    assert not isinstance(error.value, StateUnavailableError)


def test_what_others_write_meanwhile_is_no_hole(evaluated, storage, run, new_plan):
    """The end moved between reading it and listing the folder: it is read on."""
    reader = Journal(storage, run)
    assert len(reader.read_new()) == 6
    evaluated.propose(new_plan(4))
    assert not reader.reaches_end()
    assert not reader.propose(new_plan(4, nonce="late"))
    assert [record.plan for record in reader.read_to_end()] == [4]
    assert reader.reaches_end()


@pytest.mark.parametrize("fold", [None, 1], ids=["of this release", "folded by another release"])
def test_a_snapshot_knows_of_records_that_are_gone_at_the_end(evaluated, storage, run, fold):
    """Without it nobody could: all numbers that are left follow each other."""
    history = JournalState()
    for record in Journal(storage, run).read_new():
        history.apply(record)
    snapshot = take(history, run)
    if fold is not None:
        snapshot = type(snapshot)(**{name: getattr(snapshot, name) for name in snapshot.__slots__} | {"fold": fold})
    snapshot_store.write(storage, snapshot)
    lose(storage, *map(plan_path, (2, 3)), *map(outcome_path, (2, 3)))
    reader = Journal(storage, run)
    assert snapshot_store.resume(storage, reader) is None
    assert len(reader.read_new()) == 2
    with pytest.raises(StorageLostError, match=r"snapshot\.json.*\b3\b.*\b1\b"):
        reader.reaches_end()
    assert evaluated.through == 3


def test_who_has_read_a_record_that_is_gone_writes_nothing_behind_it(evaluated, storage, new_plan):
    """Others would begin at that number again, with another checkpoint."""
    lose(storage, outcome_path(3))
    with pytest.raises(StorageLostError, match=r"outcomes/000000000003\.json"):
        evaluated.propose(new_plan(4))
    assert storage.names("plans") == [f"{number:012d}.json" for number in (1, 2, 3)]


def test_an_outcome_follows_its_own_plan_only(evaluated, storage, put, new_plan, new_outcome):
    """The plan that was open is gone, or another stands in its place: the result is not written."""
    evaluated.propose(new_plan(4, nonce="mine"))
    evaluated.read_new()
    put(plan_path(4), new_plan(4, nonce="another"))
    with pytest.raises(StorageLostError, match=r"plans/000000000004\.json"):
        evaluated.close(new_outcome(4, plan_nonce="mine"))
    with pytest.raises(ValueError, match=r"\banother\b.*\bmine\b"):
        evaluated.close(new_outcome(4, plan_nonce="another"))
    assert storage.read(outcome_path(4)) is None


def test_an_outcome_that_was_lost_is_not_written_again(evaluated, storage, run, new_plan, new_outcome):
    """A slow reader still takes that plan for open, and may end it in another way than the one that counted."""
    evaluated.propose(new_plan(4))
    evaluated.read_new()
    evaluated.close(new_outcome(4))
    evaluated.read_new()
    slow = Journal(storage, run)
    assert [record.plan for record in slow.read_new(7)] == [1, 1, 2, 2, 3, 3, 4]
    evaluated.propose(new_plan(5))
    lose(storage, outcome_path(4))
    with pytest.raises(StorageLostError, match=r"outcomes/000000000004\.json.*plans/000000000005\.json"):
        slow.close(new_outcome(4))
    assert storage.read(outcome_path(4)) is None


def test_an_outcome_of_another_plan_is_not_believed(journal, put, new_plan, new_outcome):
    """It names its plan by nonce; the group of its result tells as much where an older release wrote it."""
    put(plan_path(1), new_plan(1, nonce="mine"))
    outcome = put(outcome_path(1), new_outcome(1, plan_nonce="another"))
    journal.read_new(limit=1)
    with pytest.raises(StorageLostError, match=r"outcomes/000000000001\.json.*plans/000000000001\.json.*another.*mine"):
        journal.read_new()
    outcome.write_bytes(
        outcome.read_bytes().replace(b'"plan_nonce":"another",', b"").replace(b'"group":"', b'"group":"0')
    )
    with pytest.raises(StorageLostError, match=r"\b0([0-9a-f]+)\b.*\b\1\b"):
        journal.read_new()
    put(outcome_path(1), new_outcome(1))
    assert [record.plan_nonce for record in journal.read_new()] == [None]


def test_a_record_that_reads_short_for_a_moment_is_read_again(storage, run, put, clock, new_plan):
    """Some clients show a new file without its content, for as long as they cache that: nothing ends for it."""
    file = put(plan_path(1), b"")
    reader = Journal(storage, run, GracePeriod(60.0, clock))
    for _ in range(59):
        with pytest.raises(StateUnavailableError, match=r"plans/000000000001\.json.*60 s"):
            reader.read_new()
        clock.seconds += 1
    whole = put(plan_path(1), new_plan(1)).read_bytes()
    assert reader.read_new() == [new_plan(1)]
    file = put(outcome_path(1), whole[:50])
    with pytest.raises(StateUnavailableError):
        reader.read_new()
    clock.seconds += 60
    with pytest.raises(RecordError, match="outcomes/000000000001"):
        reader.read_new()
    assert file.exists()


def test_a_newer_schema_is_no_passing_trouble(storage, run, put, clock):
    """It is whole: waiting does not help."""
    put(plan_path(1), b'{"schema":2}')
    with pytest.raises(NewerSchemaError):
        Journal(storage, run, GracePeriod(60.0, clock)).read_new()


@pytest.mark.usefixtures("evaluated")
def test_a_journal_without_its_run_is_not_begun_anew(storage):
    """A purge by age takes run.json first: its records would be in the way of a new run's."""
    lose(storage, RUN_PATH)
    with pytest.raises(StorageLostError, match=r"run\.json.*plans/000000000001\.json"):
        open_run(storage, 0.0)
    assert storage.read(RUN_PATH) is None


def test_an_odd_name_in_a_folder_of_the_journal_is_no_hole(evaluated, put, new_plan):
    """Editors and people leave files; only a number says that a record was there."""
    put("plans/notes.txt", b"")
    put("plans/000000000009.json~", b"")
    put("outcomes/.tmp-00", b"")
    assert evaluated.propose(new_plan(4))
