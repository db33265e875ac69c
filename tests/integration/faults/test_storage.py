"""The storage that all nodes share hangs, is full, cannot be written; then it is as before, and nothing was lost."""

import os
import time

import pytest
from disk import Disk
from integration.cluster import FRAMEWORKS, failure, on

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="a disk of its own needs root"),
]

STORAGE_SECONDS = 4.0
HANG_SECONDS = 30.0


@pytest.fixture(scope="module", params=FRAMEWORKS)
def new(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def disk(new, tmp_path_factory):  # noqa: ARG001 - for each framework another disk
    with Disk(tmp_path_factory.mktemp("disk") / "disk") as made:
        yield made


@pytest.fixture(scope="module")
def cluster(new, disk):
    made = new(disk.path)
    for node in ("worker-0", "worker-1"):
        made.start(node, SIDECAR_STORAGE_TIMEOUT_SECONDS=str(STORAGE_SECONDS))
    yield made
    made.end()


@pytest.fixture(autouse=True)
def _free(cluster):
    yield
    cluster.free()


def unready(cluster, until, words, seconds=60):
    """Wait until every daemon says that it is not ready, and why; it is healthy all the same."""

    def look():
        answers = [daemon.get("/readyz") for daemon in cluster.living().values()]
        return all(code == 503 and words in said for code, said in answers) and answers

    until(look, lambda: f"/readyz to say {words!r}; they said:\n{cluster.words()}", seconds)
    assert all(daemon.get("/healthz") == (200, "ok\n") for daemon in cluster.living().values())


def goes_on(cluster):
    """After it is over: everybody is ready by itself, and the next checkpoint is evaluated by all, at the first try."""
    cluster.is_whole()
    (row,) = cluster.recovers(cluster.save())
    assert row["workers"] == 2


def test_storage_hangs_in_the_middle_of_an_evaluation(cluster, disk, until):
    """All that need it wait, deadlines do not: a worker that hangs meanwhile is killed when its bound is over."""
    saved, ranks = cluster.held(workers=2)
    stuck = on(ranks, "worker-1")
    cluster.hold("evaluate", stuck)
    cluster.release("evaluate")
    with disk.frozen():
        begin = time.monotonic()
        unready(cluster, until, "shared storage has not answered for", 2 + STORAGE_SECONDS)
        until(lambda: cluster.daemons["worker-1"].log("worker_overran"), "the bound to be enforced", 20)
        until(lambda: stuck not in cluster.daemons["worker-1"].children(), "the end of that process", 10)
        assert cluster.rows(saved) == []
        time.sleep(max(0.0, begin + HANG_SECONDS - time.monotonic()))
        assert all(daemon.get("/healthz") == (200, "ok\n") for daemon in cluster.living().values())
    assert failure(cluster.recovers(saved))["kind"] in ("stalled", "member_lost")
    goes_on(cluster)


@pytest.mark.parametrize("fault", ["read_only", "full"])
def test_storage_refuses_in_the_middle_of_an_evaluation(cluster, disk, until, fault):
    """Each daemon says so once, with the remedy, and goes on by itself."""
    saved, _ = cluster.held(workers=2)
    words = {"read_only": "Read-only file system", "full": "No space left on device"}[fault]
    with getattr(disk, fault)():
        unready(cluster, until, words)
        cluster.free()
        until(lambda: not cluster.phases() & {"evaluate", "save", "reduce"}, "the workers to be refused as well")
    lost = failure(cluster.recovers(saved))
    assert lost["kind"] == "storage"
    assert words in lost["message"]
    for node, daemon in cluster.living().items():
        told = [line["message"] for line in cluster.story(node) if line["event"] == "storage_failed"]
        assert 1 <= len(told) <= 3
        assert all(words in each for each in told)
        daemon.logged("storage_recovered")
    goes_on(cluster)


def test_every_number_is_that_of_one_worker(cluster, sidecar):
    """All that were evaluated on the way are equal to the bit to what one process finds."""
    cluster.has_the_bits_of_one_worker(sidecar)
