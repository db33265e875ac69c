"""Two daemons, as on two nodes, share one checkpoint directory: one group spans both, and one outlives the other."""

import signal

import pytest

pytestmark = pytest.mark.tensorflow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("nodes") / "ckpts"


@pytest.fixture(scope="module")
def daemons(sidecar, folder):
    """Both at once: whoever comes later is waited for, since each says that a worker is on its way."""
    folder.mkdir()
    return [
        sidecar.run(folder, "--node", f"worker-{index}", "--host", "127.0.0.1", task="plain.py") for index in range(2)
    ]


def test_one_group_spans_both_nodes_and_survives_the_loss_of_one(daemons, writer, folder):
    """Each checkpoint is evaluated once, by both while both live; after one is killed the other goes on alone."""
    first, second = daemons
    first.until(lambda: first.status().get("members", {}).get("ready") == 2, "two nodes that know each other")
    second.until(lambda: second.status().get("members", {}).get("ready") == 2, "two nodes that know each other")
    saved = writer.save(folder, 10)
    second.evaluated(*saved)
    (both,) = second.successes()
    assert both["workers"] == 2
    assert {first.status()["publisher"], second.status()["publisher"]} == {True, False}
    first.end(signal.SIGKILL)
    more = writer.save(folder, 20)
    second.evaluated(*saved, *more)
    alone = second.successes()[-1]
    assert alone["workers"] == 1
    assert alone["metrics"]["test"].keys() == both["metrics"]["test"].keys()
    assert second.status()["publisher"]
    names = [row["checkpoint"] for row in second.successes()]
    assert len(names) == len(set(names)) == 2
