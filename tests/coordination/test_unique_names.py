"""Create a record once, whatever storage answers, and read again what reads short."""

import pytest
from fakes import FakeClock

from sidecar.coordination.journal import Journal, outcome_path, plan_path
from sidecar.coordination.unique_names import GracePeriod
from sidecar.errors import NewerSchemaError, RecordError, StateUnavailableError, StorageError, StorageLostError


@pytest.mark.parametrize(
    ("schedule", "created"),
    [
        (["lost_reply"], 1),
        (["not_done", "works"], 2),
        (["silently_lost", "not_done", "works"], 3),
        (["not_done", "not_done", "lost_reply"], 3),
    ],
)
def test_a_lost_reply_changes_nothing(storage, new_plan, faulty, schedule, created):
    """The record that stands there decides; only an absent one is created again."""
    shaky = faulty(storage, schedule)
    journal = Journal(shaky, new_plan().run)
    assert journal.propose(new_plan(1))
    assert shaky.created == created
    assert journal.read_new() == [new_plan(1)]


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [(["not_done"] * 3, "Connection timed out"), (["silently_lost"] * 3, "3 times")],
)
def test_a_fate_that_stays_unknown_is_an_error(storage, new_plan, faulty, schedule, reason):
    """After a bounded number of tries the caller hears it, and may propose again later."""
    journal = Journal(faulty(storage, schedule), new_plan().run)
    with pytest.raises(StorageError, match=reason):
        journal.propose(new_plan(1))
    assert journal.read_new() == []
    assert journal.propose(new_plan(1, nonce="later"))


def test_a_proposal_whose_fate_was_unknown_may_turn_up_later(storage, run, new_plan, faulty):
    """After a lost reply and a blind moment the next proposal loses to another: in truth to its own former one."""

    class Blind(faulty):
        reads = iter([True, True, False, False, False])  # run.json, outcome 1, then three blind looks at the plan

        def read(self, path, limit=None):
            if not next(self.reads, True):
                raise StorageError(f"cannot read {path}: Connection timed out")
            return super().read(path, limit)

    journal = Journal(Blind(storage, ["lost_reply", "not_done", "not_done"]), run)
    with pytest.raises(StorageError):
        journal.propose(new_plan(1, nonce="first"))
    assert not journal.propose(new_plan(1, nonce="second"))
    assert journal.read_new() == [new_plan(1, nonce="first")]


@pytest.fixture
def clock():
    return FakeClock()


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


def test_two_moments_that_are_far_apart_end_nothing(clock):
    """Some names are read only for this daemon's own records, hours later: nothing is known of the time between."""
    grace = GracePeriod(60.0, clock)
    for _ in range(3):
        with pytest.raises(StateUnavailableError), grace.on("neighbour"):
            raise StorageLostError("the journal has a hole")
        clock.seconds += 3600


def test_a_newer_schema_is_no_passing_trouble(storage, run, put, clock):
    """It is whole: waiting does not help."""
    put(plan_path(1), b'{"schema":3}')
    with pytest.raises(NewerSchemaError):
        Journal(storage, run, GracePeriod(60.0, clock)).read_new()
