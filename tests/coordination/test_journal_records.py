"""Records that are whole, but that no daemon writes: every reader sets them aside in the same way, and goes on."""

import json
from dataclasses import replace

import pytest

from sidecar.coordination import snapshot_store
from sidecar.coordination.closed_plan import read_closed, read_success
from sidecar.coordination.journal import Journal, read_history
from sidecar.coordination.journal_records import OUTCOME_BYTES, PLAN_BYTES, is_inside, outcome_path, plan_path
from sidecar.coordination.snapshot import take
from sidecar.errors import NewerSchemaError, RecordError, StorageLostError
from sidecar.protocol.codec import dumps, loads
from sidecar.protocol.records import (
    MOST_CLASSES,
    MOST_METRICS,
    EvalData,
    Member,
    Nonfinite,
    Outcome,
    Plan,
    Value,
    group_id,
)
from sidecar.protocol.states import FAILURE_CLASSES, FailureClass

ONE = Value(value=0.5, hex=(0.5).hex())
TWO = (Member(0, "worker-1", "w1", "h:1"), Member(1, "worker-2", "w2", "h:2"))


def changed(record, **fields):
    """Return the bytes of a record with other JSON fields."""
    return json.dumps(json.loads(dumps(record)) | fields).encode()


def result_of(outcome, **fields):
    """Return an outcome with another result."""
    return replace(outcome, result=replace(outcome.result, **fields))


FORGED_PLANS = {
    "longer than a plan may be": lambda _: b" " * (PLAN_BYTES + 1),
    "as long as no file may be": lambda _: b"[" * (17 * 1024 * 1024),
    "many members": lambda plan: changed(
        plan, members=[{"rank": n, "node": "n", "worker": f"w{n}", "address": "h:1"} for n in range(4097)]
    ),
    "a long name": lambda plan: changed(
        plan, checkpoint={"name": "c" * 5000, "digest": "d", "step": 1, "format": "tf"}
    ),
    "many values": lambda plan: changed(plan, added_later=[0] * 100_000),
    "deep": lambda plan: dumps(plan)[:-1] + b',"x":' + b"[" * 2000 + b"]" * 2000 + b"}",
    "a rank twice": lambda plan: dumps(replace(plan, members=(TWO[0], replace(TWO[1], rank=0)))),
    "a worker twice": lambda plan: dumps(replace(plan, members=(TWO[0], replace(TWO[1], worker="w1")))),
    "a pin elsewhere": lambda plan: dumps(replace(plan, checkpoint=replace(plan.checkpoint, pin="pins/../../etc"))),
    "a number beyond all": lambda plan: dumps(plan).replace(
        b'"attempt":1', b'"attempt":1e999'.replace(b"1e999", b"9" * 350)
    ),
}

FORGED_OUTCOMES = {
    "longer than an outcome may be": lambda _: b" " * (OUTCOME_BYTES + 1),
    "a long message": lambda end: changed(end, message="x" * 70_000),
    "metrics of another set": lambda end: dumps(result_of(end, metrics={"other": {"loss": ONE}})),
    "classes of another set": lambda end: dumps(result_of(end, classes={"other": {"recall": {"cat": ONE}}})),
    "data of another set": lambda end: dumps(result_of(end, data={"other": EvalData("f", 1, "batches")})),
    "another set that changed": lambda end: dumps(result_of(end, changed=("other",))),
    "other nonfinite examples": lambda end: dumps(result_of(end, nonfinite={"other": {"label": Nonfinite(1, 0, 0)}})),
    "saves elsewhere": lambda end: dumps(result_of(end, saves=("/etc",))),
    "saves above": lambda end: dumps(result_of(end, saves=("evaluations/../pins",))),
    "two workers of one": lambda end: dumps(result_of(end, workers=2)),
    "many eval sets": lambda end: dumps(result_of(end, examples={f"set-{n}": 1 for n in range(257)})),
    "many metrics": lambda end: dumps(
        result_of(
            end,
            examples={"a": 1, "b": 1},
            metrics={name: {f"m{n}": ONE for n in range(MOST_METRICS // 2 + 1)} for name in "ab"},
        )
    ),
    "many classes": lambda end: dumps(
        result_of(
            end,
            examples={"a": 1},
            classes={"a": {f"m{n}": {str(c): replace(ONE, goal="max") for c in range(2000)} for n in range(9)}},
        )
    ),
    "two forms of a number": lambda end: dumps(result_of(end, metrics={"test": {"loss": replace(ONE, hex="0x1p+3")}})),
    "no form of a number": lambda end: dumps(result_of(end, metrics={"test": {"loss": replace(ONE, hex="half")}})),
    "a number without its value": lambda end: dumps(
        result_of(end, metrics={"test": {"loss": replace(ONE, value=None)}})
    ),
    "an infinite number": lambda end: changed(end, rank=0).replace(b'"rank": 0', b'"rank": ' + b"9" * 350),
    "a failure with numbers": lambda end: dumps(replace(end, status="failed", kind="stalled")),
}
assert MOST_CLASSES < 18_000


@pytest.mark.parametrize("forge", FORGED_PLANS.values(), ids=FORGED_PLANS)
def test_a_void_plan_does_nothing_and_is_closed(journal, storage, put, new_plan, forge):
    """It evaluates nothing, settles nothing, and its number is used: the next plan has the next one."""
    put(plan_path(1), forge(new_plan(1)))
    put(outcome_path(1), b"not looked for")
    (void,) = journal.read_new()
    assert (void.plan, void.checkpoint, void.members, void.settles) == (1, None, None, ())
    assert void.void.startswith(plan_path(1))
    assert journal.open is None
    (storage.root / outcome_path(1)).unlink()
    assert journal.propose(new_plan(2))
    history = read_history(storage)
    assert (history.through, history.log.count, history.totals.set_aside.count) == (2, 0, 1)
    assert history.totals.set_aside.newest.plan == 1
    assert history.backlog_cutoff_pending is False  # of plan 2


def test_a_void_plan_says_nothing_about_the_line(journal, storage, put, new_plan):
    """With start=new the first plan settles what was there before; a void one before it does not."""
    put(plan_path(1), FORGED_PLANS["many members"](new_plan(1)))
    assert journal.read_new() != []
    assert read_history(storage).backlog_cutoff_pending is True


@pytest.mark.parametrize("forge", FORGED_OUTCOMES.values(), ids=FORGED_OUTCOMES)
def test_a_void_outcome_closes_its_plan_as_a_failed_attempt(journal, storage, put, new_plan, new_outcome, forge):
    """The checkpoint is tried again, and nobody is to blame."""
    assert journal.propose(new_plan(1))
    put(outcome_path(1), forge(new_outcome(1)))
    plan, outcome = journal.read_new()
    assert (outcome.status, outcome.kind, outcome.result, outcome.node) == ("failed", "void", None, None)
    assert outcome.message.startswith(outcome_path(1))
    assert outcome.plan_nonce == plan.nonce
    assert journal.propose(new_plan(2))
    history = read_history(storage)
    assert history.totals.set_aside.count == 1
    assert history.verdicts.failed_under(plan.checkpoint.key, "t") == [outcome]
    assert not history.verdicts.is_settled(plan.checkpoint.key, "t")
    assert history.exclusions.losses == {}
    assert FAILURE_CLASSES["void"] == FailureClass.GROUP


def group_of(count):
    """Return members of a group, as the daemons of a large run name them."""
    return tuple(
        Member(rank, f"worker-{rank:04d}", f"worker-{rank:04d}.0123abcd.1", f"10.20.0.{rank % 256}:21000")
        for rank in range(count)
    )


def evaluation(new_plan, new_outcome, count):
    """Return a plan of a group, and its outcome."""
    plan = new_plan(1, members=group_of(count))
    result = new_outcome(1).result
    changes = {"workers": count, "group": group_id(plan.members), "saves": plan.saves}
    return plan, new_outcome(1, plan_nonce=plan.nonce, result=replace(result, **changes))


def test_a_large_group_takes_at_most_64_bytes_for_each_member(journal, storage, run, new_plan, new_outcome):
    """Members and folders of saves are read as they were written; an older release stands by."""
    plan, outcome = evaluation(new_plan, new_outcome, 1000)
    assert journal.propose(plan)
    journal.read_new()
    assert journal.close(outcome)
    read_plan, read_outcome = Journal(storage, run).read_new()
    assert (read_plan.members, read_outcome) == (plan.members, outcome)
    written = [storage.read(path(1)) for path in (plan_path, outcome_path)]
    assert sum(map(len, written)) < 64 * 1000
    assert read_closed(storage, 1).outcome.result.saves == plan.saves
    with pytest.raises(NewerSchemaError, match="schema 2"):
        loads(Plan, written[0])


def test_a_small_group_is_written_for_older_releases(journal, storage, new_plan, new_outcome):
    """Up to eight members stand in the plan, and the folders of their saves in the outcome."""
    plan, outcome = evaluation(new_plan, new_outcome, 8)
    assert journal.propose(plan)
    journal.read_new()
    assert journal.close(outcome)
    assert loads(Plan, storage.read(plan_path(1))) == plan
    assert loads(Outcome, storage.read(outcome_path(1))) == outcome


def test_a_large_group_of_an_older_release_is_read(journal, put, new_plan, new_outcome):
    """It wrote every member and every folder whole, and so is its plan closed."""
    plan, outcome = evaluation(new_plan, new_outcome, 20)
    put(plan_path(1), dumps(plan))
    assert journal.read_new() == [plan]
    assert journal.close(outcome)
    assert journal.read_new() == [outcome]


def test_a_worker_with_a_foreign_name_is_written_whole(journal, storage, new_plan):
    """Its id does not begin with the name of its node."""
    members = (*group_of(9), Member(9, "n", "another", "h:1"))
    assert journal.propose(new_plan(1, members=members))
    assert loads(Plan, storage.read(plan_path(1))).members == members


@pytest.mark.parametrize("ranks", [[["n", "i.1"]], [["n", "i.1", "h:1", "h", "x"]], [["n", "i.1", "h:1"]] * 2])
def test_ranks_that_name_no_group_make_a_plan_void(journal, put, new_plan, ranks):
    """Each has three or four texts, and no worker is listed twice."""
    put(plan_path(1), changed(new_plan(1), members=[], ranks=ranks, schema=2))
    (plan,) = journal.read_new()
    assert plan.void is not None
    assert plan.members is None


def test_what_a_daemon_writes_is_not_void(journal, new_plan, new_outcome):
    """The forged records of these tests differ from it in one place each."""
    outcome = new_outcome(
        1,
        result=replace(
            new_outcome(1).result,
            metrics={
                "test": {"loss": ONE, "worst": Value(value=None, hex="nan"), "most": Value(value=None, hex="inf")}
            },
            saves=("evaluations/ckpt-5@dddddddddddd/plan-1/worker-0-of-1",),
        ),
    )
    assert journal.propose(new_plan(1))
    journal.read_new()
    assert journal.close(outcome)
    assert journal.read_new() == [outcome]


def test_a_start_goes_on_behind_a_void_record(journal, storage, run, put, new_plan, new_outcome):
    """Its nonce follows from its bytes, so a snapshot names it as any other; another file in its place is noticed."""
    assert journal.propose(new_plan(1))
    put(outcome_path(1), FORGED_OUTCOMES["a long message"](new_outcome(1)))
    history = read_history(storage)
    assert snapshot_store.write(storage, replace(take(history, run), run=run)) is None
    again = Journal(storage, run)
    resumed = snapshot_store.resume(storage, again)
    assert (resumed.totals.set_aside, again.through) == (history.totals.set_aside, 1)
    put(plan_path(2), FORGED_PLANS["many members"](new_plan(2)))
    assert [record.void is None for record in again.read_new()] == [False]
    put(plan_path(2), FORGED_PLANS["a long name"](new_plan(2)))
    with pytest.raises(StorageLostError, match=plan_path(2)):
        again.propose(new_plan(3))
    assert snapshot_store.resume(storage, Journal(storage, run)) is not None


def test_only_the_first_bytes_of_a_long_record_count(journal, storage, put):
    """No reader reads the rest, which may be of any length."""
    put(plan_path(1), b"[" * (PLAN_BYTES + 1) + b"x" * 1000)
    (first,) = journal.read_new()
    put(plan_path(1), b"[" * (PLAN_BYTES + 1))
    assert Journal(storage, journal.run).read_new() == [first]


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b'{"plan":', RecordError),
        (b"[" * 20, RecordError),
        (b"{}", RecordError),
        (lambda plan: changed(plan, members=[{"rank": "first"}]), RecordError),
        (lambda plan: changed(plan, plan=7, proposer="x" * 5000), RecordError),
        (lambda plan: changed(plan, run="other", proposer="x" * 5000), StorageLostError),
    ],
    ids=["torn", "deep and torn", "empty", "wrong type", "another number", "another run"],
)
def test_what_is_damaged_or_foreign_is_an_error_as_before(journal, put, new_plan, data, error):
    """Other nodes may have read another record under that name, so it does not just go."""
    put(plan_path(1), data if isinstance(data, bytes) else data(new_plan(1)))
    with pytest.raises(error):
        journal.read_new()


def test_a_writer_makes_no_void_record(journal, storage, new_plan, new_outcome):
    """It would see its own decision set aside."""
    with pytest.raises(ValueError, match=r"plans/000000000001\.json would be set aside"):
        journal.propose(new_plan(1, proposer="x" * 5000))
    assert storage.read(plan_path(1)) is None
    assert journal.propose(new_plan(1))
    journal.read_new()
    with pytest.raises(ValueError, match="has no number of examples"):
        journal.close(result_of(new_outcome(1), metrics={"other": {}}))
    assert storage.read(outcome_path(1)) is None


def test_one_evaluation_is_read_as_the_journal_has_it(journal, storage, put, new_plan, new_outcome):
    """Exports and comparisons never see the numbers of a void outcome."""
    assert journal.propose(new_plan(1))
    put(outcome_path(1), FORGED_OUTCOMES["metrics of another set"](new_outcome(1)))
    assert read_closed(storage, 1).outcome.kind == "void"
    assert read_success(storage, 1) is None
    put(plan_path(2), FORGED_PLANS["many members"](new_plan(2)))
    put(outcome_path(2), new_outcome(2))
    assert read_closed(storage, 2) is None


@pytest.mark.parametrize(
    ("path", "inside"),
    [
        ("evaluations/a/plan-1", True),
        ("evaluations", False),
        ("evaluations/", False),
        ("evaluations/../x", False),
        ("evaluations/./x", False),
        ("evaluations//x", False),
        ("/evaluations/x", False),
        ("pins/x", False),
        ("evaluations/a\0", False),
    ],
)
def test_paths_stay_inside(path, inside):
    """Paths of any record stay inside."""
    assert is_inside(path, "evaluations") is inside


def test_the_group_of_these_tests_is_that_of_the_plan(new_plan, new_outcome):
    """Otherwise an outcome would be refused for that, and not for what is forged."""
    assert new_outcome(1).result.group == group_id(new_plan(1).members)
