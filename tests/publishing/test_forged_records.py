"""Records of every kind, changed at random: each is read or refused with a sentence, and every view shows it."""

import copy
import json
import random
import time
import tracemalloc
import typing
from dataclasses import replace

import pytest
from heartbeats import make_heartbeat
from prometheus_client import CollectorRegistry, generate_latest
from statuses import make_status

from sidecar.coordination.journal_records import OUTCOME_BYTES, PLAN_BYTES, decode_outcome, decode_plan, needs_outcome
from sidecar.coordination.journal_state import Closed, JournalState
from sidecar.coordination.run import Run
from sidecar.coordination.segments import Header
from sidecar.coordination.snapshot import Snapshot, encode, restore, take
from sidecar.coordination.state_directory import RunMarker
from sidecar.early_stop import StopSignal
from sidecar.errors import SidecarError
from sidecar.protocol.codec import dumps, loads
from sidecar.protocol.heartbeat import Slot, WorkerProgress
from sidecar.protocol.records import (
    Checkpoint,
    EvalData,
    Member,
    Nonfinite,
    Outcome,
    Plan,
    Result,
    Settlement,
    Slice,
    Value,
    group_id,
)
from sidecar.publishing import export, report
from sidecar.publishing.evaluation_archive.details import details_json
from sidecar.publishing.evaluation_archive.evaluations import ArchivedEvaluations
from sidecar.publishing.page.document import page
from sidecar.publishing.prometheus import Exporter
from sidecar.publishing.sinks.progress import Progress
from sidecar.retention.exports.export_manifest import Manifest

MEMBERS = (Member(0, "n0", "n0.i.1", "h:1"), Member(1, "n1", "n1.i.1", "h:2"))
HALF = Value(value=0.5, hex=(0.5).hex(), lower=0.25, upper=0.75, goal="max")
PLAN = Plan(
    plan=1,
    run="r",
    nonce="n",
    checkpoint=Checkpoint(name="c-1", digest="d" * 64, step=1, format="tf", pin="pins/c"),
    attempt=1,
    members=MEMBERS,
    settles=(Settlement(name="o", digest="e" * 64, step=None, verdict="skipped", reason="a newer one waits"),),
    task="t",
    proposer="n0",
    proposed_at="2026-01-01T00:00:00.000Z",
)
RESULT = Result(
    group=group_id(MEMBERS),
    workers=2,
    examples={"test": 5},
    metrics={"test": {"accuracy": HALF}},
    phases={"detect": 0.1},
    variables="v",
    task="t",
    profile={"cpu": "x"},
    saves=("evaluations/c/plan-1/worker-0-of-2",),
    classes={"test": {"accuracy": {"cat": HALF}}},
    data={"test": EvalData("f", 3, "batches")},
    changed=("test",),
    nonfinite={"test": {"label": Nonfinite(1, 0, 0)}},
    notes=("a note",),
    slices={"test": {"night": Slice(examples=3, metrics={"accuracy": HALF})}},
)
SUCCESS = Outcome(
    plan=1,
    run="r",
    nonce="o",
    status="succeeded",
    closed_by="n0",
    completed_at="2026-01-01T00:00:05.000Z",
    result=RESULT,
    plan_nonce="n",
)
FAILURE = replace(SUCCESS, status="failed", result=None, kind="stalled", message="no batch", node="n1", odd=("n1",))
SLOT = Slot(worker="w", group="g", address="h:1", standby=None, standby_address=None)


def folded(*records):
    """Return the fold of records, and its entries."""
    history = JournalState()
    return history, [entry for record in records for entry in history.apply(record)]


def signal():
    """Return a signal to stop with some value in each field."""
    types = {name: str(hint) for name, hint in typing.get_type_hints(StopSignal).items()}
    values = {name: 1 if "int" in hint else 1.5 if "float" in hint else "x" for name, hint in types.items()}
    return loads(StopSignal, json.dumps(values).encode())


KINDS = {
    "plan": PLAN,
    "success": SUCCESS,
    "failure": FAILURE,
    "heartbeat": make_heartbeat(doing=(WorkerProgress("w", "join", 1, 2),), slots=(SLOT,), sees=("a@1",)),
    "run": Run(run="r", nonce="n", created_at="now", checkpoint_dir="/c"),
    "marker": RunMarker("r", "/x"),
    "snapshot": take(folded(PLAN, SUCCESS)[0], "r"),
    "segment": Header(run="r", first=1, last=2, plans=(10, 20), outcomes=(5, None)),
    "progress": Progress(run="r", plan=3, milliseconds=5),
    "pin": PLAN.checkpoint,
    "signal": signal(),
    "manifest": Manifest(
        run="r",
        plan=1,
        checkpoint="c",
        path="c",
        format="tf",
        digest="d",
        step=1,
        step_source="name",
        evaluated_at="now",
        ranks={"test/accuracy": 1},
        metrics={"test": {"accuracy": HALF}},
        examples={"test": 5},
        files=(),
    ),
}

ODD = [
    *(None, True, -1, 0, 1, 1.5, -0.0, 1e308, 10**30, 10**310),
    *("", "x", "=cmd", "\0\x1b[31m", "é" * 300, "x" * 5000, "x" * 70_000, "<script>", "../..", "/etc/passwd", "nan"),
    *("0x1p+99999", "2026-13-99", "\ud800"),
    *([], {}, [[]], {"a": {}}, [None] * 5000, {f"k{number}": 1 for number in range(300)}),
]
PIECES = [b"[", b"]", b"{", b'"', b",", b"null", b"9" * 500, b"[" * 40, b"\\"]
NAMES = ["other", "=1+1", "x" * 2000, "a.b", "é\a"]


def places(value, above=()):
    """Yield the path of each part of a JSON value."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*above, key)
        yield from places(value[key], (*above, key))


def changed(choose, record):
    """Return a record in which bytes or values are replaced, removed, added or repeated."""
    if choose.random() < 0.1:
        data = bytearray(json.dumps(record).encode())
        for _ in range(choose.randint(1, 4)):
            at = choose.randrange(len(data))
            data[at : at + choose.choice([0, 1, 30])] = choose.choice([b"", *PIECES, bytes([choose.randrange(256)])])
        return bytes(data)
    value = copy.deepcopy(record)
    for _ in range(choose.choice([1, 1, 1, 2, 3])):
        *above, last = choose.choice(list(places(value)) or [("added",)])
        part = value
        for key in above:
            part = part[key]
        action = choose.random()
        if action < 0.7:
            part[last] = copy.deepcopy(choose.choice(ODD))
        elif action < 0.85:
            del part[last]
        elif isinstance(part, dict):
            part[choose.choice(NAMES)] = part[last]
        else:
            part += [copy.deepcopy(part[last])] * choose.choice([1, 3, 5000])
    return json.dumps(value).encode()


def show(*records):
    """Show a journal in every view, and save and restore its fold."""
    history, entries = folded(*records)
    status = make_status(run="r", node="n0", state="ready", publisher=True, journal_read=True)
    document = report.status_json(status, history)
    json.dumps([document, report.rows(history)], allow_nan=False)
    page(document)
    for view in (export.as_csv, export.as_json_lines, lambda past: export.as_openmetrics(past, "r")):
        "".join(view(history.entries))
    registry = CollectorRegistry()
    Exporter(registry, sinks=list).update(status, history)
    generate_latest(registry)
    past = ArchivedEvaluations()
    for entry in entries:
        past.add(entry)
        if isinstance(entry, Closed):
            details_json(entry)
    json.dumps([past.json_of(row) for row in past.rows], allow_nan=False)
    if history.open is None and not history.backlog_cutoff_pending:
        assert restore(loads(Snapshot, b"".join(encode(take(history, "r"))))).through == history.through


def read(kind, data):
    """Read a record as its readers do."""
    if kind == "plan":
        plan = decode_plan(data[: PLAN_BYTES + 1], 1, "r")
        members = plan.members or ()
        result = replace(RESULT, group=group_id(members), workers=len(members))
        outcome = replace(SUCCESS, plan_nonce=plan.nonce, result=result)
        show(plan, *([outcome] if needs_outcome(plan) else []))
    elif kind in ("success", "failure"):
        show(PLAN, decode_outcome(data[: OUTCOME_BYTES + 1], PLAN))
    elif kind == "snapshot":
        history = restore(loads(Snapshot, data))
        report.status_json(make_status(run="r", state="ready"), history)
        "".join(export.as_csv(history.entries))
    else:
        loads(type(KINDS[kind]), data)


def try_all(kind, seed, cases):
    """Read changed records of a kind; return how many were read."""
    choose, found = random.Random(seed), 0
    written = b"".join(encode(KINDS[kind])) if kind == "snapshot" else dumps(KINDS[kind])
    read(kind, written)
    for number in range(cases):
        data = changed(choose, json.loads(written))
        begun, traced = time.process_time(), number % 50 == 0
        if traced:
            tracemalloc.start()
        try:
            read(kind, data)
            found += 1
        except SidecarError as refused:
            assert "\n" not in str(refused)  # noqa: PT017 - most are refused, some are right
        finally:
            most = tracemalloc.get_traced_memory()[1] if traced else 0
            tracemalloc.stop()
        assert most < 50e6
        assert traced or time.process_time() - begun < 1
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_changed_records(kind):
    """No reader and no view fails otherwise than with one sentence."""
    assert 0 < try_all(kind, 1, 60) < 60


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_many_changed_records(kind):
    """The same, 2,000 times for each kind."""
    assert 0 < try_all(kind, 7, 2000) < 2000


def test_a_long_name_in_another_script():
    """A folder's name may be cut within a character; the best value names the checkpoint as the journal does."""
    plan = replace(PLAN, checkpoint=replace(PLAN.checkpoint, name="é" * 300))
    history, _ = folded(plan, SUCCESS)
    (best,) = report.run_json("r", history, pending=0, unknown=(), left_out={})["best"].values()
    assert best["checkpoint"] == plan.checkpoint.name
    read("plan", dumps(plan))
