"""A rank of TensorFlow is killed in the middle of an evaluation: see test_faults.py for the same with numpy.

`make test` does this to a daemon with two workers in test_daemon.py; here the ranks are on two nodes.
"""

import os
import signal

import pytest
from integration.cluster import failure, on, outcome

pytestmark = [pytest.mark.tensorflow, pytest.mark.nightly, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def cluster(new_tensorflow_cluster):
    made = new_tensorflow_cluster()
    for node in ("worker-0", "worker-1"):
        made.start(node)
    yield made
    made.free()


def test_a_worker_is_killed(cluster):
    """Its daemon reports it at once, the other rank stops waiting in the sums, and the other node goes on alone."""
    saved, ranks = cluster.held(workers=2)
    os.kill(on(ranks, "worker-1"), signal.SIGKILL)
    cluster.free()
    lost = failure(cluster.recovers(saved))
    assert lost["kind"] == "worker_died"
    assert "was killed by SIGKILL" in lost["message"]
    assert outcome(cluster, lost["plan"]).node == "worker-1"
