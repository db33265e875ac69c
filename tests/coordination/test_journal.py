"""Propose and close plans by creating files, whatever storage answers."""

import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from coordination.conftest import Crashing, lose
from fakes import FakeClock, FaultyStorage
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidecar.coordination import snapshot_store
from sidecar.coordination.journal import Journal, outcome_path, plan_path, read_history
from sidecar.coordination.journal_state import Closed, JournalState
from sidecar.coordination.run import open_run
from sidecar.coordination.snapshot import take
from sidecar.coordination.storage import PosixStorage
from sidecar.coordination.unique_names import GracePeriod
from sidecar.errors import NewerSchemaError, RecordError, StateUnavailableError, StorageError, StorageLostError
from sidecar.protocol.codec import dumps
from sidecar.protocol.records import Checkpoint, Member


def test_records_are_read_in_order_and_once(journal, storage, run, new_plan, new_outcome):
    """Plan, its outcome, next plan: another reader sees the same, and nothing twice."""
    plan, outcome, settling = new_plan(1), new_outcome(1), new_plan(2, members=None)
    assert journal.propose(plan)
    assert journal.read_new() == [plan]
    assert (journal.through, journal.open) == (1, plan)
    assert journal.close(outcome)
    assert journal.read_new() == [outcome]
    assert (journal.through, journal.open) == (1, None)
    assert journal.propose(settling)
    other = Journal(storage, run)
    assert other.read_new() == [plan, outcome, settling]
    assert (other.through, other.open) == (2, None)
    assert other.read_new() == []


def test_a_long_journal_is_read_in_parts(journal, storage, run, new_plan):
    """A limit bounds one call; the next one goes on."""
    for number in range(1, 6):
        journal.propose(new_plan(number, members=None))
        journal.read_new()
    reader = Journal(storage, run)
    assert [[plan.plan for plan in reader.read_new(limit=2)] for _ in range(4)] == [[1, 2], [3, 4], [5], []]


def test_a_command_folds_a_long_journal_between_reads(journal, storage, run, new_plan):
    """The time of the fold is not taken for silence of the storage, however long the journal is."""
    for number in range(1, 251):
        assert journal.propose(new_plan(number, members=None))
        journal.read_new()
    asked = []
    read = storage.read
    storage.read = lambda path, *limit: asked.append(path) or read(path, *limit)
    folded = [(record.plan, len(asked)) for record in Journal(storage, run).read_to_end()]
    assert [plan for plan, _ in folded] == list(range(1, 251))
    assert folded[99][1] < 110, "the first hundred are folded before others are read"
    assert folded[199][1] - folded[100][1] < 2
    assert folded[-1][1] > 250


def test_a_plan_without_outcome_stays_open(journal, put, new_plan):
    """Plans behind an open plan are not read, even if they exist."""
    put("plans/000000000001.json", new_plan(1))
    put("plans/000000000002.json", new_plan(2))
    assert [plan.plan for plan in journal.read_new()] == [1]
    assert journal.read_new() == []
    assert journal.open == new_plan(1)


def test_a_gap_is_the_end(journal, put, new_plan):
    """A number that is not there yet is waited for, whatever lies behind it."""
    put("plans/000000000002.json", new_plan(2))
    assert journal.read_new() == []


def test_history_and_journal_agree_on_what_is_open(journal, new_plan, new_outcome):
    """Both judge by the record alone, whatever combination of checkpoint and members it has."""
    history = JournalState()
    shapes = [{}, {"members": None}, {"checkpoint": None}, {"members": ()}, {"members": None, "settles": ()}]
    for number, shape in enumerate(shapes, 1):
        assert journal.propose(new_plan(number, **shape))
        for _ in range(2):
            for entry in journal.read_new():
                history.apply(entry)
            assert (journal.through, journal.open) == (history.through, history.open)
            if journal.open:
                assert journal.close(new_outcome(number, kind="stalled"))
    assert history.through == len(shapes)


@pytest.mark.parametrize(
    ("number", "change"), [(2, {}), (0, {}), (1, {"run": "other"})], ids=["ahead", "behind", "of another run"]
)
def test_only_the_next_plan_may_be_proposed(journal, storage, new_plan, number, change):
    """A number without a known predecessor is a bug of the caller, and creates nothing."""
    with pytest.raises(ValueError, match=rf"plan {number}\b.*plan 0\b"):
        journal.propose(new_plan(number, **change))
    assert storage.names("plans") == []


def test_nobody_proposes_or_closes_what_they_have_not_read(journal, new_plan, new_outcome):
    """No plan while one is open, no outcome without an open plan, no outcome twice."""
    with pytest.raises(ValueError, match=r"outcome 1\b.*plan 0\b"):
        journal.close(new_outcome(1))
    journal.propose(new_plan(1))
    journal.read_new()
    with pytest.raises(ValueError, match="still open"):
        journal.propose(new_plan(2))
    with pytest.raises(ValueError, match="still open"):
        journal.close(new_outcome(2))
    journal.close(new_outcome(1))
    journal.read_new()
    with pytest.raises(ValueError, match="closed"):
        journal.close(new_outcome(1))


def test_two_proposers_are_harmless(journal, storage, run, new_plan, new_outcome):
    """The slower one learns that another was first, of the plan and of the outcome, and reads the winner's."""
    slower = Journal(storage, run)
    assert journal.propose(new_plan(1, nonce="mine"))
    assert not slower.propose(new_plan(1, nonce="late"))
    assert [plan.nonce for plan in slower.read_new() + journal.read_new()] == ["mine", "mine"]
    assert slower.close(new_outcome(1, nonce="mine"))
    assert not journal.close(new_outcome(1, nonce="late", kind="member_lost"))
    assert [outcome.nonce for outcome in slower.read_new() + journal.read_new()] == ["mine", "mine"]


def test_racing_proposers_win_once_per_number(storage, run, new_plan, new_outcome):
    """Threads that propose and close the same numbers at once: exactly one True each, one journal for all."""
    count, rounds = 6, 15
    barrier = threading.Barrier(count)
    wins = [[] for _ in range(count)]
    read = [[] for _ in range(count)]

    def race(me):
        mine = Journal(PosixStorage(storage.root), run)
        for number in range(1, rounds + 1):
            barrier.wait(timeout=240)
            wins[me].append(mine.propose(new_plan(number, nonce=f"plan-{me}")))
            read[me] += mine.read_new(limit=1)
            barrier.wait(timeout=240)
            wins[me].append(mine.close(new_outcome(number, nonce=f"outcome-{me}")))
            read[me] += mine.read_new(limit=1)

    threads = [threading.Thread(target=race, args=(me,)) for me in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=240)
    assert [sum(won) for won in zip(*wins, strict=True)] == [1] * (2 * rounds)
    assert all(entries == read[0] for entries in read)


def test_racing_processes_win_once(storage, new_plan):
    """The same with processes, which share nothing but the folder."""
    script = (
        "import pathlib, sys\n"
        "from sidecar.coordination.journal import Journal\n"
        "from sidecar.coordination.storage import PosixStorage\n"
        "from sidecar.protocol.codec import loads; from sidecar.protocol.records import Plan\n"
        "plan = loads(Plan, sys.argv[2].encode())\n"
        "journal = Journal(PosixStorage(pathlib.Path(sys.argv[1])), plan.run)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "print(journal.propose(plan), journal.read_new()[0].nonce)\n"
    )
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(storage.root), dumps(new_plan(1, nonce=f"n{me}")).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for me in range(5)
    ]
    for racer in racers:
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        racer.stdin.write("go\n")
        racer.stdin.flush()
    said = [racer.communicate(timeout=240)[0].split() for racer in racers]
    assert sorted(won for won, _ in said) == ["False"] * 4 + ["True"]
    (winner,) = (f"n{me}" for me, (won, _) in enumerate(said) if won == "True")
    assert {nonce for _, nonce in said} == {winner}


def test_no_record_is_put_into_another_runs_journal(journal, storage, put, new_plan):
    """A directory that was wiped and begun anew gets no plan with a number of the old one."""
    put("run.json", b'{"schema":1,"run":"other","nonce":"n"}')
    with pytest.raises(StateUnavailableError):
        journal.propose(new_plan(1))
    assert storage.names("plans") == []


BROKEN = {
    "empty": b"",
    "truncated": b'{"plan":1,"run":',
    "garbage": bytes(range(256)),
    "zeros": bytes(100),
    "another record": b'{"schema":1,"beat":3}',
    "not an object": b"[]",
    "not a number": b'{"plan":NaN}',
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_broken_record_stops_the_reader_and_is_named(journal, put, content, new_plan):
    """Neither a plan nor an outcome is guessed or passed over."""
    plan = put("plans/000000000001.json", content)
    for _ in range(2):
        with pytest.raises(RecordError, match=r"^plans/000000000001\.json: "):
            journal.read_new()
    plan.write_bytes(dumps(new_plan(1)))
    put("outcomes/000000000001.json", content)
    assert len(journal.read_new()) == 1
    with pytest.raises(RecordError, match=r"^outcomes/000000000001\.json: "):
        journal.read_new()
    assert journal.open == new_plan(1)


def test_what_was_read_before_a_broken_record_is_not_lost(journal, put, new_plan, new_outcome):
    """The good records are delivered, then the error is raised, again and again."""
    put("plans/000000000001.json", new_plan(1))
    put("outcomes/000000000001.json", new_outcome(1))
    put("plans/000000000002.json", b"{")
    assert journal.read_new() == [new_plan(1), new_outcome(1)]
    for _ in range(2):
        with pytest.raises(RecordError, match="plans/000000000002"):
            journal.read_new()


def test_a_newer_schema_is_not_acted_on(journal, put, new_plan):
    """A record of a newer version stops the reader with the remedy; unknown fields of this version do not."""
    record = json.loads(dumps(new_plan(1)))
    file = put("plans/000000000001.json", json.dumps(record | {"schema": 3}).encode())
    with pytest.raises(NewerSchemaError, match=r"plans/000000000001\.json.*schema 3\b"):
        journal.read_new()
    file.write_bytes(json.dumps(record | {"from_the_future": [1]}).encode())
    assert journal.read_new() == [new_plan(1)]


def test_a_record_of_another_run_means_that_the_directory_is_lost(journal, put, new_plan, new_outcome):
    """Both kinds of records carry the run that they belong to."""
    put("plans/000000000001.json", new_plan(1))
    put("outcomes/000000000001.json", new_outcome(1, run="other"))
    assert len(journal.read_new()) == 1
    with pytest.raises(StorageLostError, match=r"outcomes/000000000001\.json.*run other\b"):
        journal.read_new()


def test_a_renamed_record_is_noticed(journal, put, new_plan):
    """The number in the name and the number in the record are the same."""
    put("plans/000000000001.json", new_plan(2))
    with pytest.raises(RecordError, match=r"plans/000000000001\.json.*plan 2\b"):
        journal.read_new()


def test_temporary_files_in_the_journal_are_not_there(journal, put, new_plan):
    """A temporary file that a killed daemon left behind does not take a plan number."""
    put("plans/.tmp-00", b'{"plan":')
    assert journal.read_new() == []
    assert journal.propose(new_plan(1))


def test_a_garbage_file_under_the_next_number_fails_the_proposal(journal, put, new_plan):
    """The record there is unknown, so nothing is claimed, and a reader is told."""
    put("plans/000000000001.json", b"{")
    assert not journal.propose(new_plan(1))
    with pytest.raises(RecordError, match="plans/000000000001"):
        journal.read_new()


def test_the_result_is_written_once_and_rebuilt_when_lost(journal, storage, put, new_plan, new_outcome):
    """The view holds plan and outcome; a whole one is left alone, a missing, torn or foreign one is made again."""
    closed = Closed(new_plan(1), new_outcome(1))
    path = f"evaluations/{closed.plan.checkpoint.folder}/result.json"
    journal.write_result(closed)
    assert json.loads(storage.read(path)) == {
        "plan": json.loads(dumps(closed.plan)),
        "outcome": json.loads(dumps(closed.outcome)),
    }
    before = (storage.root / path).stat().st_ino
    journal.write_result(closed)
    assert (storage.root / path).stat().st_ino == before
    for content in (b"", b'{"plan":', dumps(Closed(new_plan(1), new_outcome(1, nonce="other")))):
        put(path, content)
        journal.write_result(closed)
        assert storage.read(path) == dumps(closed)


def test_a_failure_has_no_result(journal, new_plan, new_outcome):
    """The view exists for successes only."""
    with pytest.raises(ValueError, match=r"plan 1\b"):
        journal.write_result(Closed(new_plan(1), new_outcome(1, kind="stalled")))


FAULTS = st.sampled_from(["works", "lost_reply", "not_done", "silently_lost"])


# The fixtures are functions and a class without state: each example makes storage of its own.
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.lists(FAULTS, max_size=4)), max_size=25))
def test_under_any_schedule_of_faults_there_is_one_journal(new_plan, new_outcome, faulty, steps):
    """Three daemons in any order, with any faults: at most one claims a record, and all read the same ones."""
    with tempfile.TemporaryDirectory() as folder:
        storage = PosixStorage(Path(folder))
        run = open_run(storage, 0.0)
        shaky = [faulty(storage, []) for _ in range(3)]
        journals = [Journal(each, run) for each in shaky]
        read = [[] for _ in journals]
        claimed = []
        for step, (who, reads_first, faults) in enumerate(steps):
            journal = journals[who]
            if reads_first:
                read[who] += journal.read_new()
            shaky[who].schedule = list(faults)
            try:
                if journal.open:
                    record = new_outcome(journal.open.plan, nonce=f"{step}", run=run, kind="stalled")
                    won = journal.close(record)
                else:
                    members = None if step % 4 == 0 else (Member(0, "n", f"w{step}", "a:1"),)
                    record = new_plan(journal.through + 1, nonce=f"{step}", run=run, members=members)
                    won = journal.propose(record)
            except StorageError:
                continue
            if won:
                claimed.append(record)
        for who, journal in enumerate(journals):
            read[who] += journal.read_new()
        assert read[0] == read[1] == read[2]
        assert [record for record in read[0] if record in claimed] == claimed
        assert len(claimed) == len({(type(record), record.plan) for record in claimed})
        history = JournalState()
        for record in read[0]:
            history.apply(record)


def test_a_record_that_its_creator_had_not_made_durable_is_not_believed(storage, journal, new_plan, new_outcome):
    """A reader makes it durable first: else, after a crash, it would have acted on what never was."""
    journal.propose(new_plan())
    journal.read_new()
    journal.close(new_outcome())
    other = Journal(Crashing(storage, [outcome_path(1)]), journal.run)
    assert other.read_new() == [new_plan()]
    assert (other.through, other.open) == (1, new_plan())
    assert other.close(new_outcome(nonce="another"))
    assert [record.nonce for record in other.read_new()] == ["another"]


def test_a_record_that_could_not_be_made_durable_is_read_again(storage, run, new_plan):
    """It must not be counted as read and never be delivered."""
    storage = FaultyStorage(storage)
    journal = Journal(storage, run)
    journal.propose(new_plan())
    storage.fails = {"sync"}
    with pytest.raises(StorageError):
        journal.read_new()
    storage.fails = set()
    assert journal.read_new() == [new_plan()]


@pytest.fixture
def clock():
    return FakeClock()


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


def test_an_odd_name_in_a_folder_of_the_journal_is_no_hole(evaluated, put, new_plan):
    """Editors and people leave files; only a number says that a record was there."""
    put("plans/notes.txt", b"")
    put("plans/000000000009.json~", b"")
    put("outcomes/.tmp-00", b"")
    assert evaluated.propose(new_plan(4))
