"""Daemons and worker processes are killed and stopped in the middle of an evaluation: it ends once, and right.

One run of three nodes goes through it. The checkpoint is always evaluated exactly once, with the numbers
that a plain loop finds; no process is left over; the log tells it in a few lines. Longer ones are in faults/.
"""

import os
import signal

import pytest
from integration.cluster import FRAMEWORKS, failure, is_of, on, outcome

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


@pytest.mark.nightly
def test_a_node_comes_while_a_plan_is_open(cluster):
    """The open plan ends as it was meant; the next lists the newcomer, and once it has left, nobody waits for it."""
    saved, ranks = cluster.held(workers=3)
    cluster.start("worker-3")
    first = cluster.daemons["worker-0"]
    first.until(lambda: sum(first.status()["members"].values()) == 4, "the newcomer's heartbeat")
    cluster.free()
    (row,) = cluster.recovers(saved)
    assert row["workers"] == len(ranks) == 3
    cluster.is_whole()
    (row,) = cluster.evaluated(cluster.save())
    assert row["workers"] == 4
    cluster.daemons["worker-3"].end(signal.SIGTERM)
    (row,) = cluster.evaluated(cluster.save())
    assert row["workers"] == 3


def test_a_worker_is_killed(cluster):
    """Its daemon says so at once; the next attempt goes without that node."""
    saved, ranks = cluster.held(workers=3)
    os.kill(on(ranks, "worker-1"), signal.SIGKILL)
    cluster.free()
    assert is_of(failure(cluster.recovers(saved)), cluster, "worker-1")


def test_a_worker_is_stopped(cluster):
    """A process that is stopped says nothing, so its daemon is told by the kernel."""
    saved, ranks = cluster.held(workers=3)
    os.kill(on(ranks, "worker-2"), signal.SIGSTOP)
    cluster.free()
    lost = failure(cluster.recovers(saved))
    assert lost["kind"] == "stalled"
    assert "was stopped by a signal" in lost["message"]
    assert outcome(cluster, lost["plan"]).node == "worker-2"


def test_the_first_daemon_dies_when_the_sums_are_known(cluster):
    """It is the proposer, too. Another daemon, whose rank holds the same result, writes it: there is no second plan."""
    saved, ranks = cluster.held(workers=3)
    cluster.hold("conclude")
    cluster.release("evaluate")
    ranks = cluster.waiting("conclude", saved)
    first = cluster.daemons[ranks[0].node]
    assert first.status()["publisher"]
    first.end(signal.SIGKILL)
    cluster.free()
    (row,) = cluster.recovers(saved)
    assert outcome(cluster, row["plan"]).closed_by == ranks[1].node
    cluster.start(ranks[0].node)


def test_a_daemon_is_stopped_for_longer_than_its_lease(cluster, until):
    """The others go on without it. When it wakes it kills what it had, and takes part in the next evaluation."""
    saved, ranks = cluster.held(workers=3)
    sleeper = cluster.daemons["worker-1"]
    sleeper.process.send_signal(signal.SIGSTOP)
    until(lambda: cluster.rows(saved), "the others to give it up")
    cluster.free()
    cluster.evaluated(saved)
    sleeper.process.send_signal(signal.SIGCONT)
    lost = failure(cluster.recovers(saved))
    assert lost["kind"] == "member_lost"
    assert "worker-1" in lost["message"]
    sleeper.logged("loop_was_stopped")
    until(lambda: on(ranks, "worker-1") not in sleeper.children(), "the end of what was lost")


def test_every_number_is_that_of_one_worker(cluster, sidecar):
    """All that were evaluated on the way, by whatever group, are equal to the bit to what one process finds."""
    cluster.has_the_bits_of_one_worker(sidecar)
