"""The successor of a daemon that evaluated everything: it shows the same, and finds nothing to do."""

import signal
from pathlib import Path

import pytest
from numpy_trainer import NUMPY

STEPS = (100, 200, 300)


@pytest.fixture(scope="module")
def restarted(sidecar, numpy_trainer, tmp_path_factory):
    """The successor, not yet at work; and what its predecessor showed last."""
    folder = tmp_path_factory.mktemp("restarted") / "ckpts"
    saved = numpy_trainer.save(folder, *STEPS)
    first = sidecar.run(folder, "--replicas", 2, task="numpy_plain.py", **NUMPY)
    first.evaluated(*saved)
    before = {name: first.samples(name) for name in ("sidecar_eval_metric", "sidecar_eval_examples")}
    assert all(before.values())
    assert first.end(signal.SIGTERM).code == 0
    return sidecar.run(folder, "--replicas", 2, task="numpy_plain.py", **NUMPY), before


def test_a_restart_shows_the_same_before_anything_is_evaluated(restarted):
    """Gauges are rebuilt from the journal."""
    daemon, before = restarted
    for name, values in before.items():
        daemon.until(lambda name=name, values=values: daemon.samples(name) == values, f"{name} as before: {values}")
    assert daemon.log("plan_opened") == []


def test_a_restart_reads_settled_checkpoints_as_settled(restarted):
    """The successor finds nothing to do, and holds no pin."""
    daemon, _ = restarted
    daemon.logged("task_checked")
    daemon.until(lambda: daemon.status()["ready"], "readiness")
    assert daemon.log("checkpoint_found") == []
    assert daemon.status()["pending"] == 0
    assert not list(Path(daemon.run_dir, "pins").glob("*"))
    assert daemon.end(signal.SIGTERM).code == 0
