"""Errors that follow from code and shapes end a run after as few processes as are needed to prove them."""

import pytest
from numpy_trainer import NUMPY

CANNOT_WORK = """
from dataclasses import replace

import numpy_plain as plain
from sidecar.metrics import Accuracy

def task():
    return replace(plain.task(), metrics=lambda: [Accuracy(name="a"), Accuracy(name="a")])
"""


def ended(daemon):
    """Attempts by kind, and how each checkpoint ended, once the run is over."""
    done = daemon.wait()
    assert done.code == 1, done.err[-4000:]
    settled = {line["checkpoint"] for line in daemon.log("checkpoint_settled") if line["verdict"] == "failed"}
    return [line["kind"] for line in daemon.log("plan_failed")], settled


def test_a_task_that_cannot_work_is_tried_once(sidecar, numpy_trainer, place, tasks, tmp_path):
    """One attempt at the first of three checkpoints; the others are not tried, and the reason says what to do."""
    (tmp_path / "cannot.py").write_text(CANNOT_WORK)
    (tmp_path / "numpy_plain.py").write_text((tasks / "numpy_plain.py").read_text())
    numpy_trainer.save(place, 5, 10, 15)
    daemon = sidecar.run(place, "--no-wait", "--task", f"{tmp_path}/cannot.py:task", **NUMPY)
    attempts, failed = ended(daemon)
    assert attempts == ["task_error"]
    assert len(failed) == 3
    assert any("correct it and restart the daemons" in line["reason"] for line in daemon.log("checkpoint_settled"))


@pytest.mark.tensorflow
@pytest.mark.nightly
def test_a_model_that_does_not_fit_is_tried_once_for_each_checkpoint(sidecar, writer, place):
    """Another checkpoint may fit it. The message names the checkpoint, not where it is held."""
    writer.save(place, 5, 10, 15)
    daemon = sidecar.run(place, "--no-wait", task="other_model.py")
    attempts, failed = ended(daemon)
    assert attempts == ["mismatch"] * 3
    assert len(failed) == 3
    assert all("/pins/" not in line["message"] for line in daemon.log("plan_failed"))
