"""More of what is killed and hung in the middle of an evaluation: see ../test_faults.py."""

import os
import signal

import pytest
from integration.cluster import FRAMEWORKS, ends_a_sum, failure, is_of, on, outcome

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module", params=FRAMEWORKS)
def cluster(request):
    made = request.getfixturevalue(request.param)()
    for node in ("worker-0", "worker-1", "worker-2"):
        made.start(node)
    yield made
    made.end()


@pytest.fixture(autouse=True)
def _free(cluster):
    """A test that fails must not hold up those that follow."""
    yield
    cluster.free()


def test_user_code_hangs(cluster):
    """A worker that makes no progress is killed when the bound is over, whatever its peers wait for."""
    saved, ranks = cluster.held(workers=3)
    cluster.hold("evaluate", on(ranks, "worker-1"))
    cluster.release("evaluate")
    lost = failure(cluster.recovers(saved))
    assert lost["kind"] == "stalled"
    assert "made no progress in evaluate" in lost["message"]
    assert outcome(cluster, lost["plan"]).node == "worker-1"


def test_the_first_rank_dies_when_the_sums_are_known(cluster):
    """Nobody wrote the result yet: the plan fails and the next one finds it."""
    saved, ranks = cluster.held(workers=3)
    cluster.hold("conclude")
    cluster.release("evaluate")
    ranks = cluster.waiting("conclude", saved)
    os.kill(ranks[0].pid, signal.SIGKILL)
    cluster.free()
    assert is_of(failure(cluster.recovers(saved)), cluster, ranks[0].node)


def test_the_proposer_dies(cluster):
    """Its worker dies with it, the next node closes the plan and proposes another; then it comes back."""
    saved, ranks = cluster.held(workers=3)
    first = cluster.daemons[ranks[0].node]
    first.end(signal.SIGKILL)
    cluster.free()
    lost = failure(cluster.recovers(saved))
    assert lost["kind"] == "member_lost"
    assert ranks[0].node in lost["message"] or ends_a_sum(lost)
    assert cluster.daemons["worker-1"].status()["publisher"]
    cluster.start(ranks[0].node)


def test_a_daemon_dies_and_is_restarted_at_once(cluster):
    """Nobody waits for a lease: the plan lists an incarnation that is no more."""
    saved, ranks = cluster.held(workers=3)
    cluster.daemons["worker-2"].end(signal.SIGKILL)
    cluster.start("worker-2")
    cluster.free()
    lost = failure(cluster.recovers(saved))
    assert lost["kind"] in ("restarted", "member_lost")  # a worker that reached for the dead one may be faster
    assert len(ranks) == 3


def test_a_node_leaves_in_the_middle(cluster):
    """SIGTERM waits as long as it may; then the plan is given up for others, and the daemon ends well."""
    saved, _ = cluster.held(workers=3)
    leaver = cluster.daemons["worker-2"]
    assert leaver.end(signal.SIGTERM).code == 0
    cluster.free()
    rows = cluster.recovers(saved)
    assert failure(rows)["kind"] == "drained"
    assert rows[-1]["workers"] == 2


def test_a_node_of_two_workers_loses_one(cluster):
    """The other one goes with it: a group is as good as its worst member."""
    cluster.start("worker-2", "--replicas", 2)
    saved, ranks = cluster.held(workers=4)
    os.kill(on(ranks, "worker-2"), signal.SIGKILL)
    cluster.free()
    rows = cluster.recovers(saved)
    assert is_of(failure(rows), cluster, "worker-2")
    assert rows[-1]["workers"] == 2


def test_every_number_is_that_of_one_worker(cluster, sidecar):
    """All that were evaluated on the way, by whatever group, are equal to the bit to what one process finds."""
    cluster.has_the_bits_of_one_worker(sidecar)
