"""Evaluate the open plan with this node's workers, and close it whatever becomes of them."""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

from fakes import Node, done, failed, outcomes, pass_time, save

from sidecar.coordination.journal import outcome_path
from sidecar.daemon.storage_thread import CreatePlan
from sidecar.protocol.codec import dumps
from sidecar.protocol.messages import Evaluate, Join, Phase, Progress
from sidecar.protocol.records import Outcome
from sidecar.protocol.states import WorkerPhase


def test_an_exception_in_the_users_code_fails_that_checkpoint_and_no_other(node):
    """The traceback is in the journal, the group is killed and formed anew, the queue goes on between the attempts."""
    save(node.checkpoint_dir, 5)
    reply, spent = node.reply, []

    def raise_for_five(process, command):
        if isinstance(command, Evaluate) and command.checkpoint.step == 5:
            spent.append(process)
            return failed("task_error", "Traceback: ValueError: no such label", command.plan, 0)
        return reply(process, command)

    node.reply = raise_for_five
    pass_time(5, node)
    save(node.checkpoint_dir, 6, keep=[5])
    pass_time(60, node)
    assert outcomes(node.history) == [
        ("failed", "task_error"),
        ("succeeded", "ckpt-6"),
        *[("failed", "task_error")] * 2,
        ("failed", "ckpt-5"),
    ]
    assert all(process.killed for process in spent)
    assert len({process.worker for process in spent}) == 3
    assert "no such label" in node.history.entries[0].outcome.message
    assert node.history.verdicts.is_settled(next(iter(node.history.verdicts.settled)), "t1")
    assert node.exited is None


def test_retries_come_ever_later(tmp_path, clock):
    """One second after the first loss, two after the second, then four: with what the group needs to settle between."""
    node = Node(tmp_path, clock, max_losses=7)
    save(node.checkpoint_dir, 5)
    reply, tried = node.reply, []

    def die(process, command):
        if isinstance(command, Evaluate):
            tried.append(node.clock.now())
            return failed("out_of_memory")
        return reply(process, command)

    node.reply = die
    pass_time(100, node, step=1.0)
    pauses = [later - earlier for earlier, later in pairwise(tried)]
    assert pauses == [3.0, 3.0, 4.0, 8.0, 16.0, 32.0]  # at first the time that a group needs to settle is longer
    assert outcomes(node.history)[-1] == ("failed", "ckpt-5")


def test_a_worker_that_is_killed_fails_the_plan_and_is_replaced(node):
    """Exited without a report: the machines' fault, tried again with another process."""
    save(node.checkpoint_dir, 5)
    node.silent = {"Evaluate"}
    pass_time(5, node)
    first = node.active
    node.end(first, -9)
    node.silent = set()
    pass_time(10, node)
    assert outcomes(node.history) == [("failed", "worker_died"), ("succeeded", "ckpt-5")]
    assert "SIGKILL" in node.history.entries[0].outcome.message
    assert node.active is not first


def test_a_worker_that_makes_no_progress_is_killed(node):
    """After five times its slowest batch, but a minute at least."""
    save(node.checkpoint_dir, 5)
    node.silent = {"Evaluate"}
    pass_time(5, node)
    first = node.active
    node.report(first, Phase(WorkerPhase.EVALUATE, 1))
    node.report(first, Progress(1, 1, 100))
    pass_time(59, node)
    assert not first.killed
    pass_time(2, node)
    assert first.killed
    node.silent = set()
    pass_time(10, node)
    assert outcomes(node.history) == [("failed", "stalled"), ("succeeded", "ckpt-5")]


def test_a_group_that_does_not_form_is_given_up(node):
    """The bound for joining is two minutes."""
    save(node.checkpoint_dir, 5)
    node.silent = {"Join"}
    pass_time(100, node)
    assert node.history.open.plan == 1
    pass_time(25, node)
    assert outcomes(node.history)[0] == ("failed", "join")


def test_a_lost_member_waits_for_the_better_explanation(tmp_path, clock):
    """A rank reports that a peer went; a moment later that peer says why, and this is what the journal keeps."""
    node = Node(tmp_path, clock, replicas=2)
    save(node.checkpoint_dir, 5)
    node.silent = {"Evaluate"}
    pass_time(5, node)
    first, second = (node.processes[slot.worker] for slot in node.daemon.supervisor.workers.slots())
    node.report(first, failed("member_lost", "rank 1 is gone", 1, 0))
    node.settle()
    assert node.history.entries == []
    node.report(second, failed("task_error", "ValueError: bad label", 1, 1))
    node.settle()
    assert outcomes(node.history) == [("failed", "task_error")]


def test_a_lost_member_that_nobody_explains_is_the_reason_after_a_beat(node):
    """Waiting for a better one has an end."""
    save(node.checkpoint_dir, 5)
    node.silent = {"Evaluate"}
    pass_time(5, node)
    node.report(node.active, failed("member_lost", "a peer is gone", 1, 0))
    pass_time(3, node)
    assert outcomes(node.history) == [("failed", "member_lost")]


def test_a_standby_that_dies_between_plan_and_start_fails_the_plan(node):
    """It was alive when it was listed; the next attempt lists another."""
    save(node.checkpoint_dir, 5)
    node.settle()
    standby = node.standby
    pass_time(2, node)
    node.clock.seconds += 1
    node.hangs = True
    node.settle()
    assert isinstance(node.requests[0], CreatePlan)
    node.end(standby, -9)
    node.hangs = False
    pass_time(20, node)
    assert outcomes(node.history) == [("failed", "worker_died"), ("succeeded", "ckpt-5")]


def test_a_late_result_does_not_make_a_busy_worker_look_idle(tmp_path, clock):
    """Another node closed plan 1 before this rank said done; it has been told of plan 2 by then, and is held to it."""
    node = Node(tmp_path, clock)
    save(node.checkpoint_dir, 5)
    node.silent = {"Evaluate"}
    pass_time(5, node)
    save(node.checkpoint_dir, 6, keep=[5])
    late = done(1, node.active.told(Join)[0])
    close_for_another(node, late)
    pass_time(5, node)
    worker = node.active
    assert [command.plan for command in worker.told(Evaluate)] == [1, 2]
    node.report(worker, late)
    assert node.status.workers[0].state == "restore"
    pass_time(1810, node, step=5)
    assert worker.killed
    assert outcomes(node.history)[:2] == [("succeeded", "ckpt-5"), ("failed", "deadline")]


def close_for_another(node, report):
    """The outcome of the open plan, with that rank's result, as another node writes it."""
    plan = node.history.open
    outcome = Outcome(
        plan=plan.plan,
        run=plan.run,
        nonce="theirs",
        status="succeeded",
        closed_by="worker-0",
        completed_at="now",
        result=report.result,
    )
    node.storage.storage.create(outcome_path(plan.plan), dumps(outcome))


def test_a_result_that_another_node_wrote_stands_and_its_view_is_rebuilt(node):
    """Its writer died before it put result.json there; whoever reads the outcome does."""
    save(node.checkpoint_dir, 5)
    node.silent = {"Evaluate"}
    pass_time(5, node)
    close_for_another(node, done(1, node.active.told(Join)[0], accuracy=0.5))
    pass_time(3, node)
    assert node.history.newest.outcome.closed_by == "worker-0"
    (view,) = node.run_dir.glob("evaluations/*/result.json")
    assert b"0.5" in view.read_bytes()
    assert not node.active.killed


def test_a_worker_that_fails_after_its_plan_was_closed_is_not_used_again(node):
    """It could not end plan 1, which another rank ended: the next plan gets another process, and no failure."""
    save(node.checkpoint_dir, 5)
    node.silent = {"Evaluate"}
    pass_time(5, node)
    worker = node.active
    close_for_another(node, done(1, worker.told(Join)[0]))
    pass_time(3, node)
    node.report(worker, failed("task_error", "in result()", 1, 0))
    node.silent = set()
    save(node.checkpoint_dir, 6)
    pass_time(10, node)
    assert worker.killed
    assert outcomes(node.history) == [("succeeded", "ckpt-5"), ("succeeded", "ckpt-6")]


def test_the_changed_code_of_a_task_is_used_from_the_next_attempt_on(node):
    """A worker that joins imports what lies there now: a mismatch; then the new digest is the task."""
    save(node.checkpoint_dir, 5)
    node.settle()
    node.task = "t2"
    pass_time(20, node)
    assert outcomes(node.history) == [("failed", "mismatch"), ("succeeded", "ckpt-5")]
    assert [entry.plan.task for entry in node.history.entries] == ["t1", "t2"]
    assert node.log.names().count("task_changed") == 1


def _stores_saves(node, answers):
    """Let the state of a node lie in a bucket: its storage thread gives these answers, and then the last one again."""
    node.daemon.runner.timing = replace(node.daemon.runner.timing, transfer_seconds=30.0)
    asked = []

    def store(plan):
        asked.append(plan.plan)
        return answers.pop(0) if len(answers) > 1 else answers[0]

    node.storage_thread.reconciler.saves = SimpleNamespace(store=store, tidy=node.storage_thread.reconciler.saves.tidy)
    return asked


def test_no_outcome_says_success_before_all_saves_are_in_the_bucket(node):
    """The node asks again and again, and writes the result once; the journal goes on to be read meanwhile."""
    asked = _stores_saves(node, [False, False, True])
    save(node.checkpoint_dir, 5)
    pass_time(20, node)
    assert (outcomes(node.history), asked) == ([("succeeded", "ckpt-5")], [1, 1, 1])


def test_saves_that_never_come_fail_the_plan(node):
    """After the time that a transfer may take, so that no plan stays open for ever: the fault is that of storage."""
    _stores_saves(node, [False])
    save(node.checkpoint_dir, 5)
    pass_time(25, node)
    assert outcomes(node.history) == []
    pass_time(20, node)
    assert outcomes(node.history)[0] == ("failed", "storage")


def test_a_checkpoint_that_is_still_downloaded_is_waited_for(node):
    """Where each node has pins of its own, one that was found may take longer than a pin of all takes to be seen."""
    runner = node.daemon.runner
    save(node.checkpoint_dir, 5)
    node.silent = {"Evaluate"}
    pass_time(5, node)
    (found,) = node.state.complete.values()
    runner.execution.started, runner.execution.opened_at = False, node.clock.now() - 1000.0
    unpinned = replace(found, checkpoint=replace(found.checkpoint, pin=None))
    runner.state = SimpleNamespace(complete={found.checkpoint.key: unpinned}, tracker=node.state.tracker)
    runner.timing = replace(runner.timing, transfer_seconds=2000.0)
    runner.advance(node.clock.now(), answered=True)
    assert runner.ending is None
    runner.timing = replace(runner.timing, transfer_seconds=None)
    runner.advance(node.clock.now(), answered=True)
    assert runner.ending is not None
