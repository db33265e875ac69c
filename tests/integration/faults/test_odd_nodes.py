"""One node is odd: it computes with other threads, or runs another release. The majority goes on, and names it."""

import contextlib
import io
import json
import os
import signal
import subprocess
import tarfile
import time
from pathlib import Path

import pytest
from integration.cluster import FRAMEWORKS

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).parents[3]
AWAY_SECONDS = 10.0
BEFORE = "cf7accd5"  # the last commit whose heartbeats tell a version, and no digest of the code


@pytest.fixture(params=FRAMEWORKS)
def cluster(request):
    made = request.getfixturevalue(request.param)()
    yield made
    made.end()


def left_out(daemon, node):
    """Wait until a daemon names a node that it evaluates without, and return why."""
    return daemon.until(lambda: daemon.status()["left_out"].get(node), f"{node} to be named as left out")


@pytest.mark.parametrize("odd", ["worker-0", "worker-2"])
def test_one_node_computes_with_another_number_of_threads(cluster, odd):
    """The others evaluate each checkpoint at the first attempt."""
    nodes = ["worker-0", "worker-1", "worker-2"]
    for node in nodes:
        cluster.start(node, SIDECAR_THREADS="2" if node == odd else "1")
    cluster.is_whole()
    for _ in range(3):
        (row,) = cluster.evaluated(cluster.save())
        assert row["workers"] == 2
    for node in set(nodes) - {odd}:
        assert "profile" in left_out(cluster.daemons[node], odd)
    assert set(cluster.living()) == set(nodes)


@pytest.fixture(scope="module")
def release_before(tmp_path_factory):
    """The package as it was, when heartbeats told a version and no digest of the code."""
    archive = subprocess.run(["git", "archive", BEFORE, "sidecar"], cwd=ROOT, capture_output=True)
    if archive.returncode != 0:
        pytest.skip(f"this clone has no commit {BEFORE}: fetch the whole history")
    folder = tmp_path_factory.mktemp("before")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder


def test_nodes_are_upgraded_one_by_one(cluster, release_before):
    """At each step the majority evaluates what is saved, once and right, and no daemon ends by itself."""

    def of_before():
        beats = {node: json.loads((cluster.run_dir / "members" / f"{node}.json").read_text()) for node in nodes}
        return [node for node, beat in beats.items() if beat.get("evaluation_code") is None]

    nodes = ["worker-0", "worker-1", "worker-2"]
    for node in nodes:
        # That release does not know the setting.
        cluster.start(node, before=("env", "-u", "SIDECAR_YIELD_SECONDS"), PYTHONPATH=str(release_before))
    cluster.is_whole()
    assert of_before() == nodes, "the release before does not run"
    cluster.evaluated(cluster.save())
    for done, node in enumerate(reversed(nodes), 1):
        assert cluster.daemons[node].process.poll() is None, cluster.words()
        cluster.daemons[node].process.terminate()
        assert cluster.daemons[node].wait().code == 0
        waits = cluster.save()  # while this node is away
        cluster.start(node)
        cluster.is_whole()
        assert of_before() == nodes[:-done]
        cluster.evaluated(waits)
        row = cluster.evaluated(cluster.save())[-1]
        assert row["workers"] == max(done, len(nodes) - done)
    assert set(cluster.living()) == set(nodes)
    assert all(row["status"] == "succeeded" for row in cluster.rows())


@pytest.mark.skipif(os.geteuid() != 0, reason="a mount of its own needs root")
def test_the_state_directory_is_away_for_ten_seconds(cluster, tmp_path, until):
    """It lies on a mount of its own; the daemons wait for it, evaluate nothing twice, and none of them ends."""
    disk, state = tmp_path / "disk", tmp_path / "state"
    disk.mkdir()
    state.mkdir()
    cluster.run_dir = disk / "ckpts"
    with mounted(disk, state):
        for node in ("worker-0", "worker-1"):
            cluster.start(node, "--state-dir", state)
        cluster.is_whole()
        cluster.evaluated(cluster.save())
    began = time.monotonic()
    saved = cluster.save()
    daemons = cluster.living().values()
    until(lambda: all(each.get("/readyz")[0] == 503 for each in daemons), "every daemon to say that it is not ready")
    assert all(str(state) in each.get("/readyz")[1] for each in daemons), cluster.words()
    time.sleep(max(0.0, began + AWAY_SECONDS - time.monotonic()))
    assert list(state.iterdir()) == []
    with mounted(disk, state):
        cluster.evaluated(saved)
        assert len(cluster.living()) == 2
        assert [row["status"] for row in cluster.rows()].count("succeeded") == 2
        for daemon in cluster.living().values():
            assert daemon.end(signal.SIGTERM).code == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can drop its privileges")
def test_a_pin_cannot_be_entered_by_a_daemon_without_privileges(cluster, until):
    """Somebody takes its permissions away: who needs them cannot read it, and who does not evaluates it."""
    words = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]  # it is asked for permission like any user
    cluster.start("worker-0", before=words)
    cluster.start("worker-1")
    cluster.held(workers=2)
    saved = cluster.save()
    pins = cluster.run_dir / "pins"
    until(lambda: list(pins.glob(f"{saved['name']}@*")), "the pin")
    (pin,) = pins.glob(f"{saved['name']}@*")
    (cluster.folder / saved["name"]).unlink()
    pin.chmod(0)
    daemon = cluster.daemons["worker-0"]
    daemon.until(lambda: any(pin.name in each for each in daemon.status()["unknown"]), "the pin to be named")
    cluster.free()
    assert cluster.evaluated(saved)[-1]["workers"] == 1


@contextlib.contextmanager
def mounted(disk, path):
    """The folder is seen at the path as long as this lasts."""
    subprocess.run(["mount", "--bind", disk, path], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)
