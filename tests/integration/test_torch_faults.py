"""A rank of PyTorch is lost while the others wait for it in an all-reduce.

`test_faults.py` does to groups of PyTorch, nightly, what it does to those of numpy.
"""

import os
import signal

import psutil
import pytest
from integration.cluster import failure, on

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def cluster(new_torch_cluster):
    made = new_torch_cluster()
    for node in ("worker-0", "worker-1"):
        made.start(node)
    yield made
    made.free()


def waiting_in_a_sum(cluster, until):
    """A checkpoint in whose evaluation worker-0 waits in a sum and worker-1 at the gate; and the ranks."""
    saved, ranks = cluster.held(workers=2)
    cluster.hold("evaluate", on(ranks, "worker-1"))
    cluster.release("evaluate")
    first = cluster.daemons["worker-0"]
    until(lambda: {each["state"] for each in first.status()["workers"]} & {"reduce", "sum"}, "worker-0 to wait")
    return saved, ranks


@pytest.mark.nightly
def test_a_rank_is_killed_while_the_other_waits_in_a_sum(cluster, until):
    """The kernel closes its connections, so gloo ends the wait at once; the evaluation is repeated."""
    saved, ranks = waiting_in_a_sum(cluster, until)
    os.kill(on(ranks, "worker-1"), signal.SIGKILL)
    cluster.free()
    assert failure(cluster.recovers(saved))["kind"] in ("worker_died", "member_lost")


@pytest.mark.nightly
def test_a_rank_is_stopped_while_the_other_waits_in_a_sum(cluster, until):
    """Its connections stay open, so its daemon is told by the kernel."""
    saved, ranks = waiting_in_a_sum(cluster, until)
    os.kill(on(ranks, "worker-1"), signal.SIGSTOP)
    cluster.free()
    assert failure(cluster.recovers(saved))["kind"] == "stalled"


@pytest.mark.nightly
def test_workers_listen_at_their_own_address_alone(cluster):
    """The store of rank 0 is the only thing that listens on a port of the range; gloo's own ports are not in it."""
    saved, ranks = cluster.held(workers=2)
    listening = {
        (address.ip, address.port)
        for rank in ranks
        for connection in psutil.Process(rank.pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and (address := connection.laddr)
    }
    cluster.free()
    cluster.recovers(saved)
    assert {ip for ip, _ in listening} == {"127.0.0.1"}
    assert len([port for _, port in listening if 21000 <= port <= 21999]) == 1


@pytest.mark.nightly
def test_every_number_is_that_of_one_worker(cluster, sidecar):
    """All that were evaluated on the way are equal to the bit to what one process finds."""
    cluster.has_the_bits_of_one_worker(sidecar)
