"""Two daemons, as on two nodes, share one checkpoint directory: one group spans both, and one outlives the other."""

import json
import signal

import pytest
from numpy_trainer import NUMPY


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("nodes") / "ckpts"


@pytest.fixture(scope="module")
def daemons(sidecar, folder):
    """Both at once: whoever comes later is waited for, since each says that a worker is on its way."""
    folder.mkdir()
    return [
        sidecar.run(folder, "--node", f"worker-{index}", "--host", "127.0.0.1", task="numpy_plain.py", **NUMPY)
        for index in range(2)
    ]


def test_one_group_spans_both_nodes_and_survives_the_loss_of_one(sidecar, daemons, numpy_trainer, folder, tasks):
    """Each checkpoint is evaluated once, by both while both live; after one is killed the other goes on alone."""
    first, second = daemons

    def status():
        return json.loads(sidecar.command("status", "--checkpoint-dir", folder, "--json").out)

    first.until(lambda: first.status().get("members", {}).get("ready") == 2, "two nodes that know each other")
    second.until(lambda: second.status().get("members", {}).get("ready") == 2, "two nodes that know each other")
    saved = numpy_trainer.save(folder, 10)
    second.evaluated(*saved)
    (both,) = second.successes()
    assert both["workers"] == 2
    assert {first.status()["publisher"], second.status()["publisher"]} == {True, False}

    def both_beat():
        found = status()
        return found if all(each["fresh"] for each in found["nodes"]) else None

    seen = first.until(both_beat, "two nodes that beat")
    assert [(each["node"], each["workers"]["active"]) for each in seen["nodes"]] == [("worker-0", 1), ("worker-1", 1)]
    assert (seen["proposer"], seen["verdicts"]["evaluated"], seen["pending"]) == ("worker-0", 1, 0)
    task = f"{tasks / 'numpy_plain.py'}:task"
    check = sidecar.command("check", "--checkpoint-dir", folder, "--node", "worker-2", "--task", task, **NUMPY)
    assert check.code == 0, check.out
    assert "heartbeats of worker-0, worker-1 are seen every " in check.out
    assert "the lease of 5 s is enough" in check.out
    assert "with this node a group of 3 worker processes" in check.out
    first.end(signal.SIGKILL)
    more = numpy_trainer.save(folder, 20)
    second.evaluated(*saved, *more)
    alone = second.successes()[-1]
    assert alone["workers"] == 1
    assert alone["metrics"]["test"].keys() == both["metrics"]["test"].keys()
    assert second.status()["publisher"]
    names = [row["checkpoint"] for row in second.successes()]
    assert len(names) == len(set(names)) == 2
    second.end(signal.SIGKILL)
    down = status()
    assert [each["fresh"] for each in down["nodes"]] == [None, None]
    assert (down["proposer"], down["verdicts"]["evaluated"], down["plan"]) == (None, 2, None)
    assert [row["checkpoint"] for row in down["recent"] if row["final"]] == [more[0]["name"], saved[0]["name"]]
