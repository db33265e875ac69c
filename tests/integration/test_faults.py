"""Daemons and worker processes are killed, stopped and hung in the middle of an evaluation: it ends once, and right.

One run goes through all of it: two nodes at first, then three. Whatever happens, the checkpoint is evaluated exactly
once, with the numbers that Keras finds; no process is left over; the log tells it in a few lines.
"""

import json
import os
import signal

import pytest
from cluster import Cluster, outcome

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def cluster(sidecar, writer, until, tmp_path_factory):
    made = Cluster(sidecar, writer, until, tmp_path_factory.mktemp("faults"))
    made.folder.mkdir()
    for node in ("worker-0", "worker-1"):
        made.start(node)
    return made


@pytest.fixture(autouse=True)
def _free(cluster):
    """A test that fails must not hold up those that follow."""
    yield
    cluster.free()


def on(ranks, node):
    """The process of a node's first rank."""
    return next(each for each in ranks if each.node == node).pid


def failure(rows):
    """The one attempt that failed, before the one that did not."""
    assert [row["status"] for row in rows] == ["failed", "succeeded"], rows
    return rows[0]


def test_a_node_comes_while_a_plan_is_open(cluster):
    """The open plan ends as it was meant; the next lists the newcomer."""
    saved, ranks = cluster.held(workers=2)
    cluster.start("worker-2")
    first = cluster.daemons["worker-0"]
    first.until(lambda: first.status()["members"].get("starting"), "the newcomer's heartbeat")
    cluster.free()
    (row,) = cluster.evaluated(saved)
    assert row["workers"] == len(ranks) == 2
    cluster.is_whole()
    (row,) = cluster.evaluated(cluster.save())
    assert row["workers"] == 3


def test_a_worker_is_killed(cluster):
    """Its daemon says so at once; the next attempt goes without that node."""
    saved, ranks = cluster.held(workers=3)
    os.kill(on(ranks, "worker-1"), signal.SIGKILL)
    cluster.free()
    lost = failure(cluster.evaluated(saved))
    assert lost["kind"] == "worker_died"
    assert "was killed by SIGKILL" in lost["message"]
    assert outcome(cluster, lost["plan"]).node == "worker-1"
    cluster.nothing_is_left_over()


def test_a_worker_is_stopped(cluster):
    """A process that is stopped says nothing, so its daemon is told by the kernel."""
    saved, ranks = cluster.held(workers=3)
    os.kill(on(ranks, "worker-2"), signal.SIGSTOP)
    cluster.free()
    lost = failure(cluster.evaluated(saved))
    assert lost["kind"] == "stalled"
    assert "was stopped by a signal" in lost["message"]
    assert outcome(cluster, lost["plan"]).node == "worker-2"
    cluster.nothing_is_left_over()


def test_user_code_hangs(cluster):
    """A worker that makes no progress is killed when the bound is over, whatever its peers wait for."""
    saved, ranks = cluster.held(workers=3)
    cluster.hold("evaluate", on(ranks, "worker-1"))
    cluster.release("evaluate")
    lost = failure(cluster.evaluated(saved))
    assert lost["kind"] == "stalled"
    assert "made no progress in evaluate" in lost["message"]
    assert outcome(cluster, lost["plan"]).node == "worker-1"
    cluster.nothing_is_left_over()


def test_the_first_rank_dies_when_the_sums_are_known(cluster):
    """Nobody wrote the result yet: the plan fails and the next one finds it."""
    saved, ranks = cluster.held(workers=3)
    cluster.hold("conclude")
    cluster.release("evaluate")
    ranks = cluster.waiting("conclude", saved)
    os.kill(ranks[0].pid, signal.SIGKILL)
    cluster.free()
    lost = failure(cluster.evaluated(saved))
    assert lost["kind"] == "worker_died"
    cluster.nothing_is_left_over()


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
    (row,) = cluster.evaluated(saved)
    assert outcome(cluster, row["plan"]).closed_by == ranks[1].node
    cluster.nothing_is_left_over()
    cluster.start(ranks[0].node)


def test_the_proposer_dies(cluster):
    """Its worker dies with it, the next node closes the plan and proposes another; then it comes back."""
    saved, ranks = cluster.held(workers=3)
    first = cluster.daemons[ranks[0].node]
    first.end(signal.SIGKILL)
    cluster.free()
    lost = failure(cluster.evaluated(saved))
    assert lost["kind"] == "member_lost"
    assert ranks[0].node in lost["message"]
    cluster.nothing_is_left_over()
    assert cluster.daemons["worker-1"].status()["publisher"]
    cluster.start(ranks[0].node)


def test_a_daemon_dies_and_is_restarted_at_once(cluster):
    """Nobody waits for a lease: the plan lists an incarnation that is no more."""
    saved, ranks = cluster.held(workers=3)
    cluster.daemons["worker-2"].end(signal.SIGKILL)
    cluster.start("worker-2")
    cluster.free()
    lost = failure(cluster.evaluated(saved))
    assert lost["kind"] in ("restarted", "member_lost")  # a worker that reached for the dead one may be faster
    cluster.nothing_is_left_over()
    assert len(ranks) == 3


def test_a_daemon_is_stopped_for_longer_than_its_lease(cluster):
    """The others go on without it. When it wakes it kills what it had, and takes part in the next evaluation."""
    saved, ranks = cluster.held(workers=3)
    sleeper = cluster.daemons["worker-1"]
    sleeper.process.send_signal(signal.SIGSTOP)
    cluster.free()
    lost = failure(cluster.evaluated(saved))
    sleeper.process.send_signal(signal.SIGCONT)
    assert lost["kind"] == "member_lost"
    assert "worker-1" in lost["message"]
    sleeper.logged("loop_was_stopped")
    cluster.nothing_is_left_over()
    assert on(ranks, "worker-1") not in sleeper.children()


def test_a_node_leaves_in_the_middle(cluster):
    """SIGTERM waits as long as it may; then the plan is given up for others, and the daemon ends well."""
    saved, _ = cluster.held(workers=3)
    leaver = cluster.daemons["worker-2"]
    assert leaver.end(signal.SIGTERM).code == 0
    cluster.free()
    rows = cluster.evaluated(saved)
    assert failure(rows)["kind"] == "drained"
    assert rows[-1]["workers"] == 2
    cluster.nothing_is_left_over()


def test_a_node_of_two_workers_loses_one(cluster):
    """The other one goes with it: a group is as good as its worst member."""
    cluster.start("worker-2", "--replicas", 2)
    saved, ranks = cluster.held(workers=4)
    os.kill(on(ranks, "worker-2"), signal.SIGKILL)
    cluster.free()
    rows = cluster.evaluated(saved)
    assert failure(rows)["kind"] == "worker_died"
    assert rows[-1]["workers"] == 2
    cluster.nothing_is_left_over()


def test_every_number_is_that_of_one_worker(cluster, sidecar, tmp_path):
    """All that were evaluated on the way, by whatever group, are equal to the bit to what one process finds."""
    state = tmp_path / "state"
    alone = sidecar.run(
        cluster.folder, "--no-wait", "--state-dir", state, task="gated.py", GATE=str(tmp_path), SIDECAR_STANDBY="false"
    )
    assert alone.wait().code == 0
    listed = sidecar.command("history", "--checkpoint-dir", cluster.folder, "--state-dir", state, "--json")
    expected = {row["checkpoint"]: _bits(row) for row in json.loads(listed.out)}
    found = [row for row in cluster.rows() if row["status"] == "succeeded"]
    assert {row["checkpoint"]: _bits(row) for row in found} == expected
    assert len(found) == len(expected) == len(cluster.saved)


def _bits(row):
    return {name: each["hex"] for name, each in row["metrics"]["test"].items()}
