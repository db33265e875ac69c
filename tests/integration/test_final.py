"""What follows from code and shapes ends a run with as few processes as prove it."""

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.nightly]

CANNOT_WORK = """
import keras
import plain
from sidecar import Task

def task():
    one = keras.metrics.SparseCategoricalAccuracy
    same = lambda: [one(name="a"), one(name="a")]
    return Task(plain.build_model, {"test": lambda: (plain.X, plain.Y)}, metrics=same, batch_size=8)
"""


@pytest.fixture(scope="module")
def folder(writer, tmp_path_factory):
    made = tmp_path_factory.mktemp("final") / "ckpts"
    writer.save(made, 5, 10, 15)
    return made


def ended(daemon):
    """Attempts by kind, and how each checkpoint ended, once the run is over."""
    done = daemon.wait()
    assert done.code == 1, done.err[-4000:]
    settled = {line["checkpoint"] for line in daemon.log("checkpoint_settled") if line["verdict"] == "failed"}
    return [line["kind"] for line in daemon.log("plan_failed")], settled


def test_a_task_that_cannot_work_is_tried_once(sidecar, folder, tasks, tmp_path):
    """One attempt at the first of three checkpoints; the others are not tried, and the reason says what to do."""
    (tmp_path / "cannot.py").write_text(CANNOT_WORK)
    (tmp_path / "plain.py").write_text((tasks / "plain.py").read_text())
    daemon = sidecar.run(folder, "--no-wait", "--task", f"{tmp_path}/cannot.py:task", "--run", "cannot")
    daemon.run_dir = folder / ".sidecar" / "cannot"
    attempts, failed = ended(daemon)
    assert attempts == ["task_error"]
    assert len(failed) == 3
    assert any("correct it and restart the daemons" in line["reason"] for line in daemon.log("checkpoint_settled"))


def test_a_model_that_does_not_fit_is_tried_once_for_each_checkpoint(sidecar, folder, tasks):
    """Another checkpoint may fit it. The message names the checkpoint, not where it is held."""
    daemon = sidecar.run(folder, "--no-wait", "--task", f"{tasks}/other_model.py:task", "--run", "other")
    daemon.run_dir = folder / ".sidecar" / "other"
    attempts, failed = ended(daemon)
    assert attempts == ["mismatch"] * 3
    assert len(failed) == 3
    assert all("/pins/" not in line["message"] for line in daemon.log("plan_failed"))
