"""Daemons are killed and interrupted in the middle of an evaluation.

Workers of numpy models start in a second, and those of PyTorch in two. Those of TensorFlow are tried nightly.
"""

import signal

import pytest
from numpy_trainer import NUMPY


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("trainer", "task", "settings"),
    [
        ("numpy_trainer", "numpy_slow.py", NUMPY),
        pytest.param("torch_trainer", "torch_slow.py", {}, marks=pytest.mark.torch),
        pytest.param("writer", "slow.py", {}, marks=[pytest.mark.tensorflow, pytest.mark.nightly]),
    ],
    ids=["numpy", "torch", "tensorflow"],
)
def test_a_group_of_two_nodes_is_killed_and_interrupted(
    request, sidecar, trainer, task, settings, tmp_path, alive, until
):
    """SIGKILL leaves no worker process and the other node evaluates all; SIGINT lets the open evaluation end."""
    writer = request.getfixturevalue(trainer)
    folder = tmp_path / "ckpts"
    folder.mkdir()
    first, second = (
        sidecar.run(folder, "--node", node, "--host", "127.0.0.1", task=task, SIDECAR_CACHE_BYTES="0", **settings)
        for node in ("worker-0", "worker-1")
    )
    for daemon in (first, second):
        daemon.until(lambda daemon=daemon: daemon.status().get("members", {}).get("ready") == 2, "two nodes")
    saved = writer.save(folder, 10, 20)
    interrupted = first.evaluating()
    pids = first.children()
    assert len(pids) == 2  # a worker process and its guard
    first.end(signal.SIGKILL)
    until(lambda: not alive(pids), "the end of the killed daemon's processes", 5)
    evaluated = second.evaluated(*saved)
    rows = {row["plan"]: row for row in second.history()}
    assert (rows[interrupted["plan"]]["status"], rows[interrupted["plan"]]["workers"]) == ("failed", 2)
    for each in saved:
        row = evaluated[each["name"]]
        assert (row["examples"], row["workers"]) == ({"test": each["examples"]}, 1)
        assert row["metrics"]["test"]["accuracy"]["value"] == each["correct"] / each["examples"]
        assert row["metrics"]["test"]["loss"]["value"] == pytest.approx(each["loss"], rel=1e-6)

    more = writer.save(folder, 30, 40)
    plan = second.evaluating()
    pids = second.children()
    ended = second.end(signal.SIGINT)
    assert (ended.code, ended.said) == (0, "")
    newest = second.history()[-1]
    assert (newest["plan"], newest["status"]) == (plan["plan"], "succeeded")
    assert newest["checkpoint"] in [each["name"] for each in more]  # the first may be done before the second is saved
    until(lambda: not alive(pids), "the guards' end, which follows that of the daemon", 10)
