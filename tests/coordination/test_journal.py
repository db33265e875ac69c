import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidecar.coordination.journal import Journal, outcome_path
from sidecar.coordination.journal_state import Closed, JournalState
from sidecar.coordination.run import check_run, open_run
from sidecar.coordination.storage import PosixStorage
from sidecar.errors import NewerSchemaError, RecordError, StateUnavailableError, StorageError, StorageLostError
from sidecar.protocol.codec import dumps
from sidecar.protocol.records import Member


def test_the_first_daemon_names_the_run_and_the_others_join_it(storage):
    """The id is created once, is random, and carries the time for people."""
    run = open_run(storage, 0.0)
    assert open_run(storage, 1.0) == run
    assert len(run) == 32
    standing = json.loads(storage.read("run.json"))
    assert standing["created_at"] == "1970-01-01T00:00:00.000Z"
    assert (standing["schema"], standing["run"]) == (1, run)
    check_run(storage, run)


def test_daemons_that_start_together_join_one_run(storage):
    """Whoever creates the run first, all carry its id."""
    barrier = threading.Barrier(8)
    runs = []

    def start():
        barrier.wait(timeout=60)
        runs.append(open_run(PosixStorage(storage.root), 0.0))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(runs) == 8
    assert len(set(runs)) == 1


def test_a_state_directory_that_was_replaced_or_wiped_is_lost(storage, run, put):
    """Another id, or none, means that this daemon's numbers mean nothing there; it may come back."""
    file = put("run.json", b'{"schema":1,"run":"other","nonce":"n"}')
    with pytest.raises(StateUnavailableError, match=rf"run\.json.*\bother\b.*{run}"):
        check_run(storage, run)
    file.unlink()
    with pytest.raises(StateUnavailableError, match=r"run\.json.*gone"):
        check_run(storage, run)


@pytest.mark.parametrize("content", [b"", b"{", b'{"schema":2,"run":"r","nonce":"n"}'])
def test_a_run_file_that_cannot_be_understood_is_named(storage, put, content):
    """Torn, or of a newer version: the daemon does not begin a run of its own over it."""
    put("run.json", content)
    with pytest.raises(RecordError, match=r"^run\.json: "):
        open_run(storage, 0.0)


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
    """What stands behind an open plan is not read, even if it is there."""
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
            barrier.wait(timeout=60)
            wins[me].append(mine.propose(new_plan(number, nonce=f"plan-{me}")))
            read[me] += mine.read_new(limit=1)
            barrier.wait(timeout=60)
            wins[me].append(mine.close(new_outcome(number, nonce=f"outcome-{me}")))
            read[me] += mine.read_new(limit=1)

    threads = [threading.Thread(target=race, args=(me,)) for me in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
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
    said = [racer.communicate(timeout=60)[0].split() for racer in racers]
    assert sorted(won for won, _ in said) == ["False"] * 4 + ["True"]
    (winner,) = (f"n{me}" for me, (won, _) in enumerate(said) if won == "True")
    assert {nonce for _, nonce in said} == {winner}


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
    """Whatever the creation said, what stands there decides; only what is absent is created again."""
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
    file = put("plans/000000000001.json", json.dumps(record | {"schema": 2}).encode())
    with pytest.raises(NewerSchemaError, match=r"plans/000000000001\.json.*schema 2\b"):
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
    """What a killed daemon left unlinked takes no number."""
    put("plans/.tmp-00", b'{"plan":')
    assert journal.read_new() == []
    assert journal.propose(new_plan(1))


def test_a_garbage_file_under_the_next_number_fails_the_proposal(journal, put, new_plan):
    """Who stands there cannot be known, so nothing is claimed, and whoever reads on is told."""
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
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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


class Crashing:
    """Real files on a storage that crashes when it is told to make a name durable: what was not yet is gone then."""

    def __init__(self, storage, lost):
        self.storage, self.lost = storage, lost

    def __getattr__(self, method):
        return getattr(self.storage, method)

    def sync(self, folder):
        """Lose the names of this folder that are to be lost, once."""
        for path in [path for path in self.lost if path.rpartition("/")[0] == folder]:
            (self.storage.root / path).unlink()
            self.lost.remove(path)
        self.storage.sync(folder)


def test_a_record_that_its_creator_had_not_made_durable_is_not_believed(storage, journal, new_plan, new_outcome):
    """Whoever reads it makes it durable first: else, after a crash, it would have acted on what never was."""
    journal.propose(new_plan())
    journal.read_new()
    journal.close(new_outcome())
    other = Journal(Crashing(storage, [outcome_path(1)]), journal.run)
    assert other.read_new() == [new_plan()]
    assert (other.through, other.open) == (1, new_plan())
    assert other.close(new_outcome(nonce="another"))
    assert [record.nonce for record in other.read_new()] == ["another"]


def test_a_record_that_could_not_be_made_durable_is_read_again(journal, new_plan, monkeypatch):
    """It must not be counted as read and never be delivered."""

    def fail(*_):
        raise StorageError("cannot sync plans: Input/output error")

    journal.propose(new_plan())
    with monkeypatch.context() as patch:
        patch.setattr(PosixStorage, "sync", fail)
        with pytest.raises(StorageError):
            journal.read_new()
    assert journal.read_new() == [new_plan()]


def test_a_run_that_its_creator_had_not_made_durable_is_not_joined(storage):
    """The daemon that read it starts once more, and finds the run that is there then."""
    open_run(storage, 0.0)
    with pytest.raises(StorageError, match=r"run\.json.*gone"):
        open_run(Crashing(storage, ["run.json"]), 0.0)
    assert open_run(storage, 0.0, new_id=lambda: "the next") == "the next"
