"""Carry out this node's part in a plan, and decide how the plan ends."""

import signal
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from fakes import done, failed
from records import make_plan

from sidecar.daemon.plan_execution import PlanExecution, PlanTimes, Success, odd_nodes
from sidecar.daemon.workers.command_specs import EvaluateSpec, TaskSpec
from sidecar.daemon.workers.process import Exited
from sidecar.protocol.messages import Failed, Join, Joined, Phase, Ready
from sidecar.protocol.records import Checkpoint, Member, group_id
from sidecar.protocol.states import WorkerPhase

CHECKPOINT = Checkpoint(name="ckpt-5", digest="d" * 64, step=5, format="tf_object", pin="pins/x")
MEMBERS = (Member(0, "n1", "n1.i.1", "h:1"), Member(1, "n2", "n2.i.1", "h:2"), Member(2, "n2", "n2.i.2", "h:3"))
GROUP = group_id(MEMBERS)


@dataclass
class Worker:
    """Hold what a part asks about one."""

    group: str | None = None
    killed: bool = False


@dataclass
class FakeWorkers:
    """Keeps what it is told."""

    there: dict
    joined: list = field(default_factory=list)
    evaluated: list = field(default_factory=list)

    def find(self, worker):
        """The worker of that name."""
        return self.there.get(worker)

    def join(self, command, worker, _now):
        """Note which worker joins, with its rank and its group."""
        self.joined.append((worker, command.rank, command.group))

    def evaluate(self, command, worker, _now):
        """Note which worker evaluates, and to which folder it saves."""
        self.evaluated.append((worker, command.save_to))


def new_part(node="n2", task="t1", members=MEMBERS, **there):
    plan = make_plan(7, CHECKPOINT, nonce="p", members=members, task=task)
    workers = FakeWorkers(there or {"n2.i.1": Worker(), "n2.i.2": Worker()})
    return PlanExecution(
        plan=plan,
        checkpoint=CHECKPOINT,
        node=node,
        workers=workers,
        task=TaskSpec(task="task.py:task", framework="tensorflow", search_path=".", threads=2),
        evaluate=EvaluateSpec(save_weights="all", progress_seconds=1.0),
        run_dir=Path("/run"),
        opened_at=0.0,
        result_turn_seconds=10.0,
        second_thought_seconds=2.0,
    )


def result(rank):
    return done(
        7,
        Join(
            group=GROUP,
            members=MEMBERS,
            rank=rank,
            task="task.py:task",
            framework="tensorflow",
            search_path=".",
            threads=2,
        ),
    )


def test_a_nodes_workers_join_with_their_own_ranks_and_folders():
    """Each saves where nobody else writes."""
    part = new_part()
    part.start("/pins/x/ckpt-5", 1.0)
    assert part.workers.joined == [("n2.i.1", 1, GROUP), ("n2.i.2", 2, GROUP)]
    assert part.workers.evaluated == [
        ("n2.i.1", f"/run/evaluations/{CHECKPOINT.folder}/plan-7/worker-1-of-3"),
        ("n2.i.2", f"/run/evaluations/{CHECKPOINT.folder}/plan-7/worker-2-of-3"),
    ]
    assert part.ending is None


def test_warm_workers_do_not_join_again():
    """A worker joins one group in its life."""
    part = new_part(**{"n2.i.1": Worker(GROUP), "n2.i.2": Worker(GROUP)})
    part.start("path", 1.0)
    assert part.workers.joined == []
    assert len(part.workers.evaluated) == 2


@pytest.mark.parametrize(
    ("worker", "kind"), [(None, "worker_died"), (Worker(killed=True), "worker_died"), (Worker("another"), "join")]
)
def test_a_plan_fails_if_a_listed_worker_cannot_join(worker, kind):
    """It died since it was listed, or stands in another group: what the proposer read was old."""
    part = new_part(**{"n2.i.1": worker, "n2.i.2": Worker()})
    part.start("path", 1.0)
    assert (part.ending.fail.kind, part.ending.fail.node, part.ending.fail.rank) == (kind, "n2", 1)
    assert part.workers.joined == []


def test_the_first_rank_done_gives_the_result_with_every_ranks_folder():
    """All ranks hold the same; a second one changes nothing."""
    part = new_part()
    part.observe("n2.i.1", result(1), 5.0)
    ending = part.ending
    assert ending.result.saves == tuple(f"{part.folder}/worker-{rank}-of-3" for rank in range(3))
    part.observe("n2.i.2", result(2), 6.0)
    assert part.ending == ending


@pytest.mark.parametrize(("node", "before", "at"), [("n1", (), 5.0), ("n2", ("n1",), 15.0)])
def test_nodes_write_the_result_in_turn(node, before, at):
    """Rank 0's first, the others if it does not."""
    part = new_part(node, **{"n1.i.1": Worker(), "n2.i.1": Worker()})
    part.observe(f"{node}.i.1", result(0), 5.0)
    assert (part.before, part.ending.at) == (before, at)


@pytest.mark.parametrize(
    ("report", "kind"),
    [
        (failed("task_error", "ValueError", 7, 1), "task_error"),
        (failed("join", "no peer"), "join"),
        (failed("task_error", "late", 6, 1), "worker_died"),
        (Exited(-9, "Killed"), "worker_died"),
        (Joined(GROUP, "t2", {}), "mismatch"),
    ],
    ids=["raised", "before any plan", "of the plan before", "killed", "other code"],
)
def test_what_a_worker_reports_ends_the_plan(report, kind):
    """At once; and a result that comes later does not undo it."""
    part = new_part()
    part.observe("n2.i.1", report, 5.0)
    assert (part.ending.at, part.ending.fail.kind, part.ending.fail.rank) == (5.0, kind, 1)
    part.observe("n2.i.2", result(2), 5.0)
    assert part.ending.fail.kind == kind


@pytest.mark.parametrize(
    ("status", "attempt", "phases", "kind"),
    [
        (-signal.SIGABRT, 1, ["read", "restore"], "crashed"),
        (-signal.SIGSEGV, 2, ["read", "restore"], "crashed"),
        (-signal.SIGABRT, 1, ["read"], "crashed"),
        (-signal.SIGABRT, 2, ["read"], "worker_died"),
        (-signal.SIGABRT, 1, ["read", "restore", "hello"], "worker_died"),
        (-signal.SIGABRT, 1, [], "worker_died"),
        (-signal.SIGKILL, 1, ["read", "restore"], "worker_died"),
        (1, 1, ["read", "restore"], "worker_died"),
    ],
)
def test_a_crash_while_the_checkpoint_is_read_is_the_checkpoints(status, attempt, phases, kind):
    """The first attempt reads data and checkpoint at once; SIGKILL is somebody else's, and any other phase is later."""
    part = new_part()
    part.plan = replace(part.plan, attempt=attempt)
    for phase in phases:
        part.observe("n2.i.1", Phase(WorkerPhase(phase), 7), 4.0)
    part.observe("n2.i.2", Phase(WorkerPhase.RESTORE, 6), 4.0)
    part.observe("n2.i.1", Exited(status, "Type not set"), 5.0)
    assert (part.ending.fail.kind, part.ending.fail.node) == (kind, "n2")
    assert "Type not set" in part.ending.fail.message


@pytest.mark.parametrize(
    "report",
    [
        Ready("tensorflow", "2"),
        Joined(GROUP, "t1", {}),
        done(6, Join(group=GROUP, members=MEMBERS, rank=1, task="", framework="", search_path="", threads=2)),
    ],
)
def test_other_reports_end_nothing(report):
    """Least of all the result of another plan."""
    part = new_part()
    part.observe("n2.i.1", report, 5.0)
    part.observe("n9.i.1", failed("task_error"), 5.0)
    assert part.ending is None


def test_who_lost_a_peer_is_believed_only_if_nobody_knows_better():
    """For a moment; a cause replaces it, a further consequence does not."""
    part = new_part()
    part.observe("n2.i.1", failed("member_lost"), 5.0)
    part.observe("n2.i.2", failed("member_lost"), 6.0)
    assert (part.ending.at, part.ending.fail.node, part.ending.fail.rank) == (7.0, "n1", 0)  # they did not cause it
    part.observe("n2.i.2", failed("out_of_memory"), 6.5)
    assert (part.ending.at, part.ending.fail.kind) == (6.5, "out_of_memory")


def test_the_rank_that_could_not_be_reached_is_to_blame():
    """TensorFlow names it, mostly; else it is some rank of another node, and none if there is no other node."""
    named, unnamed = new_part("n1", **{"n1.i.1": Worker()}), new_part("n1", **{"n1.i.1": Worker()})
    named.observe("n1.i.1", Failed(kind="member_lost", message="rank 1 is gone", lost=1), 5.0)
    unnamed.observe("n1.i.1", failed("member_lost"), 5.0)
    assert [(each.ending.fail.node, each.ending.fail.rank) for each in (named, unnamed)] == [("n2", 1), ("n2", 2)]


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_ranks_that_do_not_come_together_blame_the_same_node(node):
    """If each blamed itself, or the other, nobody would ever learn that they do not reach each other."""
    part = new_part(node, **{"n1.i.1": Worker(), "n2.i.1": Worker()})
    part.observe(
        f"{node}.i.1", Failed(kind="join", message="the worker was forming the group for 120 s", phase="join"), 5.0
    )
    assert (part.ending.fail.kind, part.ending.fail.node, part.ending.fail.rank) == ("join", "n2", 2)
    alone = new_part(node, **{"n1.i.1": Worker(), "n2.i.1": Worker()})
    alone.observe(f"{node}.i.1", Failed(kind="join", message="no such framework", phase="import"), 5.0)
    assert alone.ending.fail.node == node


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_the_nodes_that_differ_are_told(node):
    """By each rank alike; the first of them is to blame."""
    part = new_part(node, **{"n1.i.1": Worker(), "n2.i.1": Worker()})
    part.observe(f"{node}.i.1", Failed(kind="mismatch", message="because", plan=7, rank=1, sides=((0,), (1, 2))), 5.0)
    assert (part.ending.fail.odd, part.ending.fail.node, part.ending.fail.rank) == (("n2",), "n2", 1)


@pytest.mark.parametrize(
    ("nodes", "sides", "odd"),
    [
        ("abc", [[0, 1], [2]], ("c",)),
        ("abc", [[0], [1, 2]], ("a",)),
        ("abcd", [[0], [1, 2], [3]], ("a", "d")),
        ("ab", [[0], [1]], ("a",)),
        ("abcd", [[0, 1], [2, 3]], ("c", "d")),
        ("xyz", [[0, 2], [1]], ("y",)),
        ("xy", [[0], [1]], ("y",)),
        ("abc", [[0], [1], [2]], ()),
        ("abcd", [[0, 1], [2], [3, 9]], ("c", "d")),
        ("aab", [[0], [1, 2]], ("a",)),
        ("aaab", [[0, 1, 2], [3]], ("a",)),
        ("aa", [[0], [1]], ()),
        ("abc", [], ()),
    ],
    ids=[
        *("one of three", "the first of three", "two of four", "one against one: not the proposer", "two against two"),
        *("the proposer has no rank", "one against one without the proposer", "all differ", "an unknown rank"),
        *("one of a node's two", "nodes count, not ranks", "a node differs from itself", "nothing was compared"),
    ],
)
def test_the_odd_nodes_are_those_that_differ_from_most(nodes, sides, odd):
    """The nodes outside the majority are the odd ones; in a tie the side of the proposer, node b, is in the right."""
    members = tuple(Member(rank, node, f"{node}.i.{rank}", "h:1") for rank, node in enumerate(nodes))
    assert (
        odd_nodes(
            make_plan(7, CHECKPOINT, nonce="p", members=members, proposer="b"),
            sides,
        )
        == odd
    )


def test_a_result_proves_that_no_peer_was_lost():
    """The reduction came to its end on one rank, so it had everything."""
    part = new_part()
    part.observe("n2.i.1", failed("member_lost"), 5.0)
    part.observe("n2.i.2", result(2), 6.0)
    assert isinstance(part.ending, Success)
    part.observe("n2.i.2", Exited(1, ""), 6.5)
    assert isinstance(part.ending, Success)


def test_times_are_taken_from_commands_and_reports():
    """Joining begins with the command and ends with the report; a warm group does not join."""
    part = new_part()
    part.start("path", 1.0)
    part.observe("n2.i.1", Joined(GROUP, "t1", {}), 3.0)
    part.observe("n2.i.1", result(1), 5.0)
    assert part.times == PlanTimes(joining_since=1.0, joined_at=3.0, done_at=5.0)
    warm = new_part()
    warm.observe("n2.i.1", result(1), 5.0)
    assert warm.times == PlanTimes(done_at=5.0)


def test_a_failure_that_lasts_is_told_as_the_reporting_nodes_own():
    """Ranks that only disagree, or a rank that was lost, prove nothing of the kind."""
    part = new_part()
    part.observe("n2.i.1", Failed(kind="mismatch", message="because", plan=7, rank=1, lasting="checkpoint"), 5.0)
    assert (part.ending.fail.node, part.ending.fail.lasting) == ("n2", "checkpoint")
    part = new_part()
    part.observe(
        "n2.i.1",
        Failed(kind="mismatch", message="because", plan=7, rank=1, sides=((0,), (1, 2)), lasting="checkpoint"),
        5.0,
    )
    assert (part.ending.fail.odd, part.ending.fail.lasting) == (("n2",), None)


def test_the_daemon_adds_what_only_it_knows():
    """Detection, agreement, joining and writing come from the daemon; the rest comes from the workers."""
    times = PlanTimes(agree_seconds=0.25, joining_since=1.0, joined_at=3.0, done_at=5.0)
    assert times.durations({"evaluate": 0.5}, 0.125, 5.5) == {
        "detect": 0.125,
        "agree": 0.25,
        "join": 2.0,
        "evaluate": 0.5,
        "publish": 0.5,
    }


def test_a_warm_group_that_another_node_proposed():
    """Nothing joined, nothing was agreed here, and nobody watched the checkpoint appear."""
    assert PlanTimes(done_at=5.0).durations({}, None, 5.0) == {"join": 0.0, "publish": 0.0}


ON_A_CLUSTER = tuple(Member(rank, "n2", f"n2.i.{rank + 1}", f"{host}:1", host) for rank, host in enumerate("xyz"))


@pytest.mark.parametrize(
    ("report", "blamed"),
    [
        (Exited(-9, "", why="its machine y has not answered for 8 s"), "n2/y"),
        (replace(failed("member_lost"), lost=2), "n2/z"),
        (failed("member_lost"), "n2/z"),
        (replace(failed("mismatch"), sides=((0, 2), (1,))), "n2/y"),
    ],
    ids=["the machine that failed", "the one that was lost", "the last of the others", "the one that differs"],
)
def test_the_machine_of_a_cluster_is_to_blame_and_not_its_daemon(report, blamed):
    """Otherwise one bad machine would exclude all of them."""
    part = new_part(members=ON_A_CLUSTER, **{member.worker: Worker() for member in ON_A_CLUSTER})
    part.start("path", 1.0)
    part.observe("n2.i.2", report, 2.0)
    assert part.ending.fail.node == blamed
    assert part.ending.fail.odd in ((), (blamed,))
