"""Tell what is evaluated now, how far it is, and what failed."""

import pytest
from publishing.page.conftest import seen
from served_run import value

from sidecar.protocol.states import WorkerPhase
from sidecar.publishing.page.overview import phase_words, progress
from sidecar.publishing.status import MemberProgress


def test_no_result_yet(run):
    """Each part says what is missing, and what will come."""
    text = seen(run)
    assert "none found yet" in text
    assert "There is no result yet" in text
    assert "0 checkpoints" in text


@pytest.mark.parametrize(
    ("count", "words"), [(1, "The newest attempt failed: mismatch"), (3, "The last 3 attempts failed: mismatch")]
)
def test_failures_are_at_the_top(run, count, words):
    """With kind, node, cause, remedy, command, log, and the line that names the error."""
    for attempt in range(count):
        run.plan("epoch 1.keras", 100, attempt=attempt + 1)
        run.fail("mismatch", "Traceback\nlayer dense has another shape")
    text = seen(run)
    for each in (
        words,
        "on node worker-1",
        "does not match the model",
        "sidecar requeue /data/ckpts 'epoch 1.keras'",
        "/var/tmp/sidecar-logs/worker-1.7.log",
        "layer dense has another shape",
        "evaluations fail",
    ):
        assert each in text
    run.plan("ckpt-2", 200)
    run.succeed({"test": {"accuracy": value(0.5)}})
    assert "failed: mismatch" not in seen(run).partition("Evaluations")[0]


def test_the_open_evaluation(run):
    """Each worker of each node, in words, also of nodes that have not reported."""
    run.plan("ckpt-1", 100, attempt=2, members=3)
    known = MemberProgress(rank=0, node="worker-0", worker="worker-0.3f2a.1", phase="evaluate", batches=5, total=9)
    silent = MemberProgress(rank=1, node="worker-1", worker="worker-1.3f2a.2")
    other = MemberProgress(
        rank=2, node="worker-2", worker="worker-2.3f2a.3", phase="a newer phase", batches=7, total=None
    )
    text = seen(run, plan=1, progress=(known, silent, other))
    for words in (
        "Evaluating ckpt-1, step 100, attempt 2 with 3 workers",
        "5 of 9",
        "not reported yet",
        "a newer phase",
    ):
        assert words in text


def test_one_is_not_several(run):
    """`1 worker`, `1 checkpoint`."""
    run.plan("ckpt-1", None, members=1)
    text = seen(run, pending=1)
    assert "with 1 worker on worker-0" in text
    assert "1 checkpoint" in text
    assert "1 checkpoints" not in text
    assert "step #1" in text


def test_every_phase_has_words():
    """Those of a newer release are shown as they are."""
    assert {phase for phase in WorkerPhase if phase_words(phase) == phase} == {"failed"}
    assert phase_words(None) == "not reported yet"


@pytest.mark.parametrize(
    ("batches", "total", "phase", "shown"),
    [
        (3, 8, "evaluate", "3 of 8"),
        (3, None, "evaluate", "3"),
        (0, 8, "idle", ""),
        (None, None, None, ""),
        (9, 8, "save", "9 of 8"),
    ],
)
def test_progress(batches, total, phase, shown):
    """A bar if the number of batches is known; never more than full."""
    found = progress(batches, total, phase)
    assert found.endswith(shown)
    assert ("<progress" in found) is (total is not None and shown != "")
