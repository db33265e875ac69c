"""Daemons with TensorFlow workers are killed and interrupted in the middle of an evaluation.

Other tests of signals use numpy models, whose workers start in a second. This one proves that workers whose threads and
sockets are TensorFlow's end as well.
"""

import signal

import pytest

pytestmark = pytest.mark.tensorflow


def test_a_group_of_two_nodes_is_killed_and_interrupted(sidecar, writer, tmp_path, alive, until):
    """SIGKILL leaves no worker process and the other node evaluates all; SIGINT lets the open evaluation end."""
    folder = tmp_path / "ckpts"
    folder.mkdir()
    first, second = (
        sidecar.run(folder, "--node", node, "--host", "127.0.0.1", task="slow.py", SIDECAR_CACHE_BYTES="0")
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
    assert newest["checkpoint"] == more[0]["name"]
    until(lambda: not alive(pids), "the guards' end, which follows that of the daemon", 10)
