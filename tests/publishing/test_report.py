"""Make rows and a status document of a history."""

import json
import math

import pytest

from sidecar.coordination.totals import Best
from sidecar.protocol.records import Checkpoint, Nonfinite, Value
from sidecar.publishing import report


def test_success_row(journal):
    """A success is the object that the design promises, key by key and in its order."""
    journal.plan("ckpt-5")
    journal.succeed()
    (row,) = report.rows(journal.history)
    expected = {
        "plan": 1,
        "attempt": 1,
        "checkpoint": "ckpt-5",
        "digest": "digest-ckpt-5",
        "step": 500,
        "step_source": None,
        "status": "succeeded",
        "final": True,
        "kind": None,
        "message": None,
        "workers": 2,
        "group": "855602736bcbe657",
        "examples": {"test": 1003},
        "metrics": {"test": {"accuracy": {"value": 0.97, "hex": "0x1.f0a3d70a3d70ap-1", "lower": 0.95, "upper": 0.98}}},
        "changed": [],
        "data_changed": {},
        "phases": {"detect": 0.01, "agree": 0.02, "restore": 0.1, "evaluate": 0.6, "reduce": 0.01, "save": 0.05},
        "lag_seconds": None,
        "proposed_at": "2026-01-31T12:00:00.000Z",
        "completed_at": "2026-01-31T12:00:01.500Z",
    }
    assert json.dumps(row) == json.dumps(expected)


def test_an_unknown_number_of_examples_is_left_out(journal):
    """A function of the task measured, and did not return it."""
    journal.plan()
    journal.succeed(examples=0)
    (row,) = report.rows(journal.history)
    assert row["examples"] == {}
    assert list(row["metrics"]) == ["test"]


def test_row_with_nonfinite_examples(journal):
    """One key more, where there are any."""
    journal.plan()
    journal.succeed(nonfinite={"label": Nonfinite(2, None, None)})
    (row,) = report.rows(journal.history)
    assert row["nonfinite"] == {"test": {"label": {"examples": 2, "first_batch": None, "first_example": None}}}


def test_failed_row(journal):
    """A failed attempt says why and who, has no numbers, and is not final while others may follow."""
    journal.plan()
    journal.fail()
    (row,) = report.rows(journal.history)
    assert row == {
        "plan": 1,
        "attempt": 1,
        "checkpoint": "ckpt-5",
        "digest": "digest-ckpt-5",
        "step": 500,
        "step_source": None,
        "status": "failed",
        "final": False,
        "kind": "stalled",
        "message": "no batch for 60 s",
        "workers": 2,
        "group": None,
        "examples": {},
        "metrics": {},
        "changed": [],
        "data_changed": {},
        "phases": {},
        "lag_seconds": None,
        "proposed_at": "2026-01-31T12:00:00.000Z",
        "completed_at": "2026-01-31T12:00:01.500Z",
    }


def test_settled_row(journal, settle):
    """A checkpoint settled without an attempt has a row of its own, with its verdict as status."""
    journal.plan(None, settles=[settle("ckpt-4", "skipped", step=400, reason="older than ckpt-5")])
    (row,) = report.rows(journal.history)
    assert row == {
        "plan": 1,
        "attempt": None,
        "checkpoint": "ckpt-4",
        "digest": "digest-ckpt-4",
        "step": 400,
        "step_source": None,
        "status": "skipped",
        "final": True,
        "kind": None,
        "message": "older than ckpt-5",
        "workers": 0,
        "group": None,
        "examples": {},
        "metrics": {},
        "changed": [],
        "data_changed": {},
        "phases": {},
        "lag_seconds": None,
        "proposed_at": "2026-01-31T12:00:00.000Z",
        "completed_at": "2026-01-31T12:00:00.000Z",
    }


def test_settled_failure_is_the_last_attempt(journal, settle):
    """A checkpoint given up is one row per attempt, the last of them final; the settlement adds none."""
    for attempt in (1, 2, 3):
        journal.plan(attempt=attempt)
        journal.fail("task_error")
    journal.plan("ckpt-6", step=600, settles=[settle("ckpt-5")])
    journal.succeed()
    finals = [(row["checkpoint"], row["attempt"], row["status"], row["final"]) for row in report.rows(journal.history)]
    assert finals == [
        ("ckpt-5", 1, "failed", False),
        ("ckpt-5", 2, "failed", False),
        ("ckpt-5", 3, "failed", True),
        ("ckpt-6", 1, "succeeded", True),
    ]


@pytest.mark.parametrize(("verdict", "task"), [("corrupt", None), ("vanished", None), ("failed", "another")])
def test_other_settlements_after_an_attempt(journal, settle, verdict, task):
    """Another verdict, or a failure of another task, does not turn an attempt's row into the last word."""
    journal.plan()
    journal.fail()
    journal.plan(None, settles=[settle("ckpt-5", verdict, task=task)])
    found = [(row["status"], row["final"], row["plan"]) for row in report.rows(journal.history)]
    assert found == [("failed", False, 1), (verdict, True, 2)]


def test_failure_settled_twice(journal, settle):
    """An attempt stands for one settlement only; what comes later is told in its own row."""
    journal.plan()
    journal.fail()
    journal.plan(None, settles=[settle()])
    journal.plan(None, settles=[settle()])
    assert [(row["plan"], row["final"]) for row in report.rows(journal.history)] == [(1, True), (3, True)]


def test_open_plan_has_no_row(journal):
    """A plan that is still open is not part of the history."""
    journal.plan()
    assert report.rows(journal.history) == []


def test_nan_is_strict_json(journal):
    """A number that JSON cannot carry is null with its hex beside it."""
    journal.evaluate("ckpt-5", 500, {"loss": Value(value=None, hex=math.nan.hex())})
    (row,) = json.loads(json.dumps(report.rows(journal.history), allow_nan=False))
    assert row["metrics"]["test"]["loss"] == {"value": None, "hex": "nan", "lower": None, "upper": None}


def test_what_succeeded_after_all_is_not_settled_without_a_result(journal, status, settle):
    """It had failed for good under code that was corrected since."""
    journal.plan("ckpt-2", step=2, settles=[settle("ckpt-1", "failed", task="t0"), settle("ckpt-0", "skipped")])
    journal.succeed()
    journal.evaluate("ckpt-1", 1)
    found = report.status_json(status(), journal.history)
    assert (found["evaluated"], found["settled"]) == (2, 1)


def test_status(journal, status, settle):
    """The status is strict JSON with this node's state, the open plan, and the newest rows, newest first."""
    for step in range(1, 13):
        journal.evaluate(f"ckpt-{step}", step)
    journal.plan("ckpt-13", step=13, attempt=2, settles=[settle("ckpt-0", "skipped")])
    found = json.loads(json.dumps(report.status_json(status(), journal.history), allow_nan=False))
    assert found["run"] == "mnist"
    assert found["ready"] is True
    assert found["evaluation"]["checkpoint"] == "ckpt-12"
    assert [row["checkpoint"] for row in found["recent"]] == ["ckpt-0", *(f"ckpt-{step}" for step in range(12, 3, -1))]
    assert (found["evaluated"], found["settled"], found["pending"]) == (12, 1, 3)
    assert found["plan"] == {
        "plan": 13,
        "attempt": 2,
        "checkpoint": "ckpt-13",
        "step": 13,
        "step_source": None,
        "workers": 2,
        "nodes": ["worker-0", "worker-1"],
        "proposed_at": "2026-01-31T12:00:00.000Z",
        "doing": [],
        "partial": {},
    }
    assert found["left_out"] == {"worker-7": "it runs version 2, most nodes 1"}
    assert (found["unknown"], found["unknown_count"]) == (["ckpt-9@d: Input/output error"], 1)
    assert found["newest_checkpoint"] == {
        "checkpoint": "ckpt-7",
        "step": 700,
        "step_source": "name",
        "written_at": "2026-01-31T12:00:00.250Z",
    }
    assert found["workers"][0] == {
        "worker": "w1-0",
        "pid": 4242,
        "state": "evaluate",
        "batches": 3,
        "total_batches": 8,
        "waits": False,
    }


def test_status_shows_eval_sets_that_were_left_out(journal, status):
    """With their last numbers and the step of these, as the gauges do; rows of the past tell only their own."""
    journal.evaluate("ckpt-4", 400, {"accuracy": Value(value=0.25, hex="0x1p-2")}, eval_sets=("rare", "test"))
    journal.evaluate("ckpt-5", 500)
    found = report.status_json(status(), journal.history)
    shown = found["evaluation"]
    assert (shown["checkpoint"], shown["steps"]) == ("ckpt-5", {"rare": 400, "test": 500})
    assert {name: values["accuracy"]["value"] for name, values in shown["metrics"].items()} == {
        "rare": 0.25,
        "test": 0.97,
    }
    assert shown["examples"] == {"rare": 1003, "test": 1003}
    assert list(found["recent"][0]["metrics"]) == ["test"]


def test_status_before_anything_happened(journal, status):
    """A daemon that has just started has a status too."""
    found = report.status_json(status(unready="starting", newest=None), journal.history)
    assert found["ready"] is False
    assert found["evaluation"] is found["plan"] is found["newest_checkpoint"] is None
    assert found["recent"] == []


def test_an_ordinal_is_marked(journal, settle):
    """`#2`: the second checkpoint without a step, in order of writing; programs read the same from `step_source`."""
    journal.evaluate("best", None)
    journal.plan("last", step=None, settles=[settle("first", "skipped", step=None)])
    journal.succeed()
    rows = report.rows(journal.history)
    assert [(row["checkpoint"], row["step"], row["step_source"]) for row in rows] == [
        ("best", 1, "order"),
        ("first", None, None),
        ("last", 3, "order"),
    ]


def test_the_best_checkpoint_is_named_as_it_was_found():
    """Also one whose name is not UTF-8: bytes that cannot be decoded stay those bytes."""
    odd = Checkpoint(name="model-\udcff\udcfe9", digest="b" * 64, step=9, format="matching_file")
    folder = f"evaluations/{odd.folder}/plan-7"
    best = Best(goal="max", hex=(0.5).hex(), step=9, folder=folder, checkpoint=odd.name, step_source=None)
    assert best.checkpoint == odd.name
