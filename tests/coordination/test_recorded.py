"""A rolling upgrade: daemons of the release before read what this one writes, and this one what they wrote.

`recorded` is a state directory as that release left it; `former_records` are the fields that it knows.
"""

import dataclasses
import shutil
import typing
from pathlib import Path

import pytest
from coordination import former_records
from heartbeats import make_heartbeat
from record_fields import field_types, field_values
from records import make_plan

from sidecar.coordination import snapshot_store
from sidecar.coordination.heartbeats import Heartbeats
from sidecar.coordination.journal import Journal, read_history
from sidecar.coordination.run import Run, find_run
from sidecar.coordination.storage import PosixStorage
from sidecar.protocol import heartbeat, records
from sidecar.protocol.codec import dumps, loads
from sidecar.protocol.heartbeat import Slot, WorkerProgress
from sidecar.protocol.records import Checkpoint, EvalData, Member, Nonfinite, Outcome, Result, Settlement, Value

RECORDED = Path(__file__).with_name("recorded")


@pytest.fixture
def recorded(tmp_path):
    return PosixStorage(shutil.copytree(RECORDED, tmp_path / "state"))


def test_a_state_directory_of_the_release_before_is_read_to_its_end(recorded):
    """Its outcomes name no plan nonce, its run no checkpoint directory."""
    run = find_run(recorded)
    assert run.checkpoint_dir is None
    history = read_history(recorded)
    ends = [(entry.plan.checkpoint.name, entry.outcome.status, entry.outcome.plan_nonce) for entry in history.entries]
    assert ends == [("ckpt-5", "failed", None), ("ckpt-5", "succeeded", None), ("ckpt-6", "succeeded", None)]
    (heartbeat,) = Heartbeats(recorded, run.run).read_all().heartbeats
    assert (heartbeat.node, heartbeat.journal.plan) == ("worker-1", 3)


def test_its_journal_is_continued(recorded):
    """The next plan follows its last one."""
    run = find_run(recorded).run
    journal = Journal(recorded, run)
    snapshot_store.resume(recorded, journal)
    list(journal.read_to_end())
    assert journal.propose(
        make_plan(4, None, run=run, nonce="n", attempt=0, members=None, task=None, proposer="worker-1")
    )


VALUE = Value(value=0.5, hex="0x1p-1", lower=0.4, upper=0.6, goal="max")
RESULT = Result(
    group="g",
    workers=1,
    examples={"test": 3},
    metrics={"test": {"accuracy": VALUE}},
    phases={"restore": 0.1},
    variables="v",
    task="t",
    profile={"isa": "AVX512F"},
    saves=("evaluations/a/plan-1/worker-0-of-1",),
    classes={"test": {"accuracy": {"cat": VALUE}}},
    data={"test": EvalData("f", 1, "batches")},
    changed=("test",),
    nonfinite={"test": {"label": Nonfinite(1, 0, 0)}},
)
CHECKPOINT = Checkpoint(
    name="ckpt-5", digest="d" * 64, step=5, format="tf_object", pin="pins/ckpt-5@0", step_source="optimizer"
)
SETTLEMENTS = tuple(
    Settlement(name="a", digest="d", step=1, verdict=verdict, reason="why", task="t")
    for verdict in ("skipped", "vanished", "corrupt", "failed", "requeued")
)
FULL = {
    "Run": Run(run="r", nonce="n", created_at="now", checkpoint_dir="/data/ckpts"),
    "Plan": make_plan(
        1,
        CHECKPOINT,
        nonce="n",
        members=(Member(0, "w", "w.i.1", "h:1"),),
        settles=SETTLEMENTS,
        task="t",
        proposer="w",
        evaluated=1,
    ),
    "Outcome": Outcome(
        plan=1,
        run="r",
        nonce="n",
        status="succeeded",
        closed_by="w",
        completed_at="now",
        result=RESULT,
        kind="stalled",
        node="w",
        rank=0,
        message="why",
        plan_nonce="n",
    ),
    "Heartbeat": make_heartbeat(
        node="w",
        state="starting",
        version="2",
        plan=1,
        outcome=1,
        slots=(Slot(worker="w.i.1", group="g", address="h:1", standby=None, standby_address=None),),
        profile="p",
        doing=(WorkerProgress("w.i.1", "evaluate", 1, 2),),
    ),
}


@pytest.mark.parametrize("name", FULL)
def test_the_release_before_reads_what_this_one_writes(name):
    """It ignores fields that it does not know, and finds the others with the values that they had."""
    former, record = getattr(former_records, name), FULL[name]
    assert dumps(loads(former, dumps(record))) == dumps(without_news(record, former))


def without_news(record, former):
    """The record with the fields that were known before, and the records in it likewise."""
    values = field_values(record)
    known = {field.name: values[field.name] for field in dataclasses.fields(former)}
    return former(**{name: value_without_news(value) for name, value in known.items()})


def value_without_news(value):
    if isinstance(value, dict):
        return {key: value_without_news(inner) for key, inner in value.items()}
    inner = getattr(former_records, type(value).__name__, None)
    return without_news(value, inner) if dataclasses.is_dataclass(inner) else value


@pytest.mark.parametrize(
    "name", [name for name, kind in vars(former_records).items() if dataclasses.is_dataclass(kind)]
)
def test_no_field_was_renamed_and_no_word_of_a_closed_list_is_new(name):
    """A daemon of the release before takes a record with another word for a broken one, and ends."""
    former = getattr(former_records, name)
    new = {"Run": Run, "Doing": WorkerProgress}.get(name) or getattr(heartbeat, name, None) or getattr(records, name)
    for field, kind in typing.get_type_hints(former).items():
        before, now = words(kind), words(field_types(new)[field])
        assert now <= before, f"{name}.{field} has words that are not known before: {now - before}"


def words(kind):
    """The words of a literal type; empty for others."""
    return set(typing.get_args(kind)) if typing.get_origin(kind) is typing.Literal else set()
