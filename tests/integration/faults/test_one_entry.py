"""One file of the shared storage fails on one node, or hangs there: the group loses nothing, and the node says so.

Each node sees the same folder through a mount of its own, as clients of a file server do. The checkpoint in question is
deleted by training, so its pin is all that is left of it.
"""

import contextlib
import signal

import pytest
from faulty import Faulty, require_fuse
from integration.cluster import FRAMEWORKS

pytestmark = pytest.mark.timeout(900)

QUICK = {"SIDECAR_VISIBILITY_SECONDS": "6", "SIDECAR_SWEEP_SECONDS": "0.5", "SIDECAR_STORAGE_TIMEOUT_SECONDS": "4"}


@pytest.fixture(scope="module", params=FRAMEWORKS)
def new(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def mounts(new, tmp_path_factory):  # noqa: ARG001 - for each framework another disk
    require_fuse()
    folder = tmp_path_factory.mktemp("storage")
    (folder / "disk").mkdir()
    with Faulty(folder / "disk", folder / "one") as one, Faulty(folder / "disk", folder / "two") as two:
        yield {"worker-0": one, "worker-1": two}


@pytest.fixture(scope="module")
def cluster(new, mounts):
    made = new(mounts["worker-0"].source)
    for node, mount in mounts.items():
        made.start(node, folder=mount.path / "ckpts", **QUICK)
    yield made
    made.end()


@pytest.fixture(autouse=True)
def _free(cluster):
    yield
    cluster.free()


def pinned(cluster, saved, until):
    """The name of its pin's folder, once it stands; training then deletes what it saved."""
    pins = cluster.run_dir / "pins"
    until(lambda: list(pins.glob(f"{saved['name']}@*")), "the pin")
    (pin,) = pins.glob(f"{saved['name']}@*")
    (cluster.folder / saved["name"]).unlink()
    return pin.name


@pytest.mark.parametrize("error", ["EIO", "EACCES", "ESTALE", "hang"])
@pytest.mark.parametrize("node", ["worker-0", "worker-1"])
def test_a_pin_cannot_be_read_on_one_node(cluster, mounts, until, node, error):
    """It is evaluated by the other one while the error lasts; what is saved meanwhile, too; nothing is given up."""
    cluster.held(workers=2)
    saved = cluster.save()
    name = pinned(cluster, saved, until)
    daemon = cluster.daemons[node]
    with mounts[node].failing(f"/pins/{name}", error):
        daemon.until(
            lambda: any(name in each for each in daemon.status()["unknown"]), f"status to name {name} as unknown"
        )
        cluster.free()
        more = cluster.save()
        cluster.evaluated(saved)
        cluster.evaluated(more)
        assert daemon.get("/healthz") == (200, "ok\n")
    cluster.is_whole()
    daemon.until(lambda: not daemon.status()["unknown"], "status to forget it")
    assert all(row["status"] in ("succeeded", "failed") for row in cluster.rows())
    until(lambda: not (cluster.run_dir / "pins" / name).exists(), "the pin to be let go")


@pytest.mark.parametrize("path", ["/members/worker-1.json", "/snapshot.json.gz", "/result.json"])
@pytest.mark.parametrize("error", ["EIO", "EACCES", "hang"])
def test_a_file_that_nothing_rests_on_cannot_be_read(cluster, mounts, path, error):
    """Nodes that can still be seen go on evaluating."""
    cluster.is_whole()
    with mounts["worker-0"].failing(path, error):
        cluster.evaluated(cluster.save())
        assert cluster.daemons["worker-0"].get("/healthz") == (200, "ok\n")
    cluster.is_whole()


@pytest.mark.parametrize("error", ["EIO", "EACCES"])
def test_a_node_cannot_save(cluster, mounts, error):
    """It fails once and is left out; a save that hangs is bounded like every phase, and much later."""
    cluster.is_whole()
    with mounts["worker-0"].failing("/evaluations/", error, "getattr", "open", "mkdir", "create"):
        rows = cluster.evaluated(cluster.save())
        assert [row["status"] for row in rows[:-1]] in ([], ["failed"])
    cluster.is_whole()


def test_a_quota_that_statvfs_does_not_show_is_used_up(cluster, mounts, until):
    """Pins of settled checkpoints are removed to make room, and checkpoints that links can hold are evaluated."""
    cluster.is_whole()
    with contextlib.ExitStack() as stack:
        for mount in mounts.values():
            stack.enter_context(mount.quota(0))
        saved = cluster.save()
        until(
            lambda: any("quota" in (each.get("/readyz")[1]) for each in cluster.living().values()),
            lambda: f"a daemon to name the quota; they said:\n{cluster.words()}",
        )
    cluster.evaluated(saved)


def test_every_number_is_that_of_one_worker(cluster):
    """No daemon ended, and each checkpoint succeeded once."""
    assert set(cluster.living()) == {"worker-0", "worker-1"}
    succeeded = [row["checkpoint"] for row in cluster.rows() if row["status"] == "succeeded"]
    assert len(succeeded) == len(set(succeeded))
    assert all(daemon.end(signal.SIGTERM).code == 0 for daemon in cluster.living().values())
