"""What becomes of checkpoints and worker processes on one node, as histories replayed through the real loop."""

import shutil
from dataclasses import replace
from itertools import pairwise

from fakes import Node, done, failed, outcomes, pass_time, restarted, save

from sidecar.coordination.journal import outcome_path
from sidecar.coordination.journal_state import Closed
from sidecar.daemon.storage_thread import CreatePlan, JoinRun, Sync
from sidecar.errors import StorageError, TaskError
from sidecar.protocol.codec import dumps
from sidecar.protocol.messages import Check, Checked, Evaluate, Join, Joined, Phase, Progress, Ready
from sidecar.protocol.records import Outcome, Plan
from sidecar.protocol.states import WorkerPhase
from sidecar.retention.pins.executor import PinExecutor
from sidecar.retention.pins.pin import pin


def names(node, event):
    return [fields.get("worker") or fields.get("checkpoint") for fields in node.log.of(event)]


# -- the way of a checkpoint -----------------------------------------------------------------------------------------


def test_the_first_checkpoint_goes_all_the_way(node):
    """Open, visit, task tried, a standby ready, settled, plan, join and evaluate, done, outcome, shown."""
    save(node.checkpoint_dir, 5)
    node.settle()
    assert isinstance(node.carried[0], JoinRun)
    assert isinstance(node.carried[1], Sync)
    probe, standby = node.processes["worker-1.i1.1"], node.processes["worker-1.i1.2"]
    assert probe.commands == [
        Check(task="task.py:task", framework="tensorflow", search_path=str(node.checkpoint_dir.parent), threads=2)
    ]
    assert probe.killed
    assert sorted(node.log.names()) == [
        *("checkpoint_found", "journal_read", "steps_found", "task_check_begun", "task_checked", "worker_ready"),
        "worker_started",
    ]
    assert node.of(CreatePlan) == []  # others may still come
    assert node.status.checkpoints.pending == 1

    pass_time(3, node)
    (request,) = node.of(CreatePlan)
    plan = request.plan
    assert (plan.plan, plan.attempt, plan.checkpoint.name, plan.checkpoint.step) == (1, 1, "ckpt-5", 5)
    assert [(each.rank, each.node, each.worker) for each in plan.members] == [(0, "worker-1", "worker-1.i1.2")]
    (join,), (evaluate,) = standby.told(Join), standby.told(Evaluate)
    assert (join.rank, join.members) == (0, plan.members)
    assert evaluate.path == str(node.run_dir / plan.checkpoint.pin / "ckpt-5")
    assert evaluate.save_to == str(node.run_dir / f"evaluations/{plan.checkpoint.folder}/plan-1/worker-0-of-1")
    opened, closed = node.log.entries
    assert isinstance(opened, Plan)
    assert isinstance(closed, Closed)
    assert closed.outcome.result.saves == (f"evaluations/{plan.checkpoint.folder}/plan-1/worker-0-of-1",)
    assert {"agree", "join", "evaluate", "publish"} <= closed.outcome.result.phases.keys()
    assert outcomes(node.history) == [("succeeded", "ckpt-5")]
    assert (
        node.status.checkpoints.pending,
        node.status.evaluation.plan,
        node.status.evaluation.group_size,
        node.status.evaluation.groups_formed,
    ) == (0, None, 1, 1)
    assert node.status.publisher
    assert node.status.unready is None


def test_the_result_is_in_the_journal_before_it_is_shown(node):
    """A gauge never shows what the journal does not hold."""
    save(node.checkpoint_dir, 5)
    node.silent = {"Evaluate"}
    pass_time(5, node)
    node.hangs = True
    node.report(node.active, done(1, node.active.told(Join)[0]))
    pass_time(5, node)
    assert node.state.history.newest is None
    node.hangs = False
    node.settle()
    assert node.state.history.newest == node.history.newest
    assert node.history.newest is not None


def test_data_that_changed_between_two_checkpoints_stand_in_the_journal(node):
    """The second result says that its numbers do not compare with those of the first."""
    node.silent = {"Evaluate"}
    for plan, examples in ((1, 1003), (2, 1004)):
        save(node.checkpoint_dir, 5 * plan)
        pass_time(5, node)
        node.report(node.active, done(plan, node.active.told(Join)[0], examples=examples))
        pass_time(5, node)
    assert [entry.outcome.result.changed for entry in node.history.entries] == [(), ("test",)]


def test_the_second_checkpoint_reuses_the_warm_workers(node):
    """No new process, no second join: only the command to evaluate."""
    save(node.checkpoint_dir, 5)
    pass_time(5, node)
    worker, processes = node.active, len(node.processes)
    save(node.checkpoint_dir, 6, keep=[5])
    pass_time(5, node)
    assert outcomes(node.history) == [("succeeded", "ckpt-5"), ("succeeded", "ckpt-6")]
    assert node.active is worker
    assert len(node.processes) == processes
    assert len(worker.told(Join)) == 1
    assert [command.plan for command in worker.told(Evaluate)] == [1, 2]
    assert node.status.evaluation.groups_formed == 1


def test_ten_checkpoints_saved_quickly_are_all_evaluated_once(node):
    """The trainer keeps two; what was seen is pinned before it is deleted, and the queue drains in order."""
    node.silent = {"Evaluate"}
    for step in range(1, 11):
        save(node.checkpoint_dir, step, keep=[step - 1])
        node.wake()
        pass_time(1, node, step=0.1)
    assert len(list((node.run_dir / "pins").iterdir())) == 10
    node.silent = set()
    pass_time(30, node)
    assert outcomes(node.history) == [("succeeded", f"ckpt-{step}") for step in range(1, 11)]
    assert list((node.run_dir / "pins").iterdir()) == []


def test_a_pin_goes_only_after_the_journal_says_that_it_is_settled(node):
    """While the outcome cannot be written the checkpoint is held, whatever the workers say."""
    save(node.checkpoint_dir, 5)
    node.silent = {"Evaluate"}
    pass_time(5, node)
    node.storage.fails = {"create"}
    node.silent = set()
    save(node.checkpoint_dir, 6)  # the trainer deletes ckpt-5
    pass_time(20, node)
    assert len(list((node.run_dir / "pins").iterdir())) == 2
    node.storage.fails = set()
    pass_time(20, node)
    assert outcomes(node.history) == [("succeeded", "ckpt-5"), ("succeeded", "ckpt-6")]
    assert list((node.run_dir / "pins").iterdir()) == []


def test_a_checkpoint_directory_that_is_missing_is_waited_for(node):
    """The daemon says so, does not create it, and evaluates what appears."""
    pass_time(5, node)
    assert not node.checkpoint_dir.exists()
    assert node.status.unready == "the checkpoint directory does not exist yet"
    assert node.log.names().count("checkpoint_dir_missing") == 1
    save(node.checkpoint_dir, 5)
    pass_time(10, node)
    assert outcomes(node.history) == [("succeeded", "ckpt-5")]
    assert node.status.unready is None


def test_a_directory_that_stays_empty_is_told_of_once(node):
    """Training may save elsewhere, if it is not the same storage; the status says so until something is seen."""
    node.checkpoint_dir.mkdir(parents=True)
    pass_time(299, node)
    assert "nothing_seen" not in node.log.names()
    pass_time(300, node)
    (told,) = node.log.of("nothing_seen")
    assert (told["seconds"], told["remedy"]) == (300.0, "is this path shared with the chief?")
    assert node.status.hint == "no checkpoint was seen in 300 s: is this path shared with the chief?"
    assert node.status.unready is None
    save(node.checkpoint_dir, 5)
    pass_time(10, node)
    assert node.status.hint is None
    shutil.rmtree(node.checkpoint_dir)
    node.checkpoint_dir.mkdir()
    pass_time(700, node)
    assert node.log.names().count("nothing_seen") == 1


def test_something_that_is_not_complete_is_not_nothing(node):
    """Nor is what a former daemon evaluated and training deleted since."""
    save(node.checkpoint_dir, 5)
    (node.checkpoint_dir / "ckpt-5.index").write_bytes(b"")
    pass_time(400, node)
    again = restarted(node, "i2")
    for path in node.checkpoint_dir.glob("c*"):
        path.unlink()
    pass_time(400, again)
    assert "nothing_seen" not in node.log.names() + again.log.names()


def test_a_checkpoint_directory_that_goes_and_comes_back(tmp_path, clock):
    """With the state elsewhere: nothing has vanished, nothing is evaluated again, and what is new is."""
    node = Node(tmp_path, clock, state_dir=tmp_path / "state")
    node.run_dir.mkdir(parents=True)
    save(node.checkpoint_dir, 5)
    pass_time(10, node)
    node.silent = {"Evaluate"}
    save(node.checkpoint_dir, 6, keep=[5])
    pass_time(3, node)
    save(node.checkpoint_dir, 7, keep=[5, 6])
    (node.checkpoint_dir / "ckpt-8.index").write_bytes(b"torn")
    pass_time(3, node)
    node.checkpoint_dir.rename(tmp_path / "away")
    pass_time(20, node)
    assert node.status.unready == "the checkpoint directory does not exist yet"
    assert node.log.names().count("checkpoint_dir_missing") == 1
    (tmp_path / "away").rename(node.checkpoint_dir)
    pass_time(10, node)
    assert node.status.unready is None
    node.report(node.active, failed("stalled"))
    node.silent = set()
    pass_time(30, node)
    save(node.checkpoint_dir, 9, keep=[5, 6, 7, 8])
    (node.checkpoint_dir / "ckpt-8.index").write_bytes(b"torn")
    pass_time(90, node)
    ends = [end for end in outcomes(node.history) if end[0] != "failed"]
    assert sorted(ends) == [("corrupt", "ckpt-8"), *(("succeeded", f"ckpt-{step}") for step in (5, 6, 7, 9))]


def test_a_checkpoint_directory_that_goes_with_the_state_in_it(tmp_path, clock):
    """Unmounted, say: nothing is written meanwhile, which would create it, and the run goes on when it is back."""
    node = Node(tmp_path, clock, pin_max_bytes=1)
    save(node.checkpoint_dir, 5)
    pass_time(10, node)
    node.silent = {"Evaluate"}
    save(node.checkpoint_dir, 6, keep=[5])
    pass_time(3, node)
    (node.checkpoint_dir / "checkpoint").unlink()
    save(node.checkpoint_dir, 7, keep=[5, 6])
    (node.checkpoint_dir / "checkpoint").unlink()  # nobody names it: it counts since it stays as it is
    pass_time(10, node)
    assert node.status.checkpoints.pending == 2
    node.checkpoint_dir.rename(tmp_path / "away")
    node.report(node.active, failed("stalled"))  # the outcome cannot be written now
    pass_time(30, node)
    assert node.exited is None
    assert not node.checkpoint_dir.exists()
    assert "waiting until it is back" in node.status.unready
    assert node.log.names().count("storage_failed") == 1
    node.silent = set()
    (tmp_path / "away").rename(node.checkpoint_dir)
    pass_time(60, node)
    assert node.status.unready is None
    ends = [end for end in outcomes(node.history) if end[0] != "failed"]
    assert ends == [("succeeded", "ckpt-5"), ("succeeded", "ckpt-6"), ("succeeded", "ckpt-7")]


def test_a_new_run_into_the_same_directory(node):
    """Old ones deleted, new ones under old names with other steps and content: each is another checkpoint."""
    for step in (5, 6):
        save(node.checkpoint_dir, step, keep=range(5, step))
        pass_time(5, node)
    other = node.checkpoint_dir.parent / "other"
    for name, step in (("ckpt-5", 1), ("ckpt-6", 2)):
        for path in node.checkpoint_dir.glob("c*"):
            if name == "ckpt-5":
                path.unlink()
        save(other, step)
        for path in other.glob("ckpt-*"):
            path.rename(node.checkpoint_dir / path.name.replace(f"ckpt-{step}", name))
        (node.checkpoint_dir / "checkpoint").write_text(f'model_checkpoint_path: "{name}"')
        pass_time(5, node)
    assert outcomes(node.history) == [("succeeded", name) for name in ("ckpt-5", "ckpt-6", "ckpt-5", "ckpt-6")]
    steps = [entry.plan.checkpoint.step for entry in node.history.entries]
    assert steps == [5, 6, 1, 2]
    assert node.status.checkpoints.newest.step == 2


def test_what_was_given_up_is_told_though_no_pin_can_be_written(node, monkeypatch):
    """An error about one checkpoint is no word about another."""
    save(node.checkpoint_dir, 5)
    (node.checkpoint_dir / "ckpt-5.index").write_bytes(b"broken")
    pass_time(58, node)

    def full(*_, **__):
        raise StorageError("cannot pin: No space left on device")

    monkeypatch.setattr(node.storage_thread.reconciler.pinner, "make", full)
    save(node.checkpoint_dir, 6, keep=[5])
    (node.checkpoint_dir / "ckpt-5.index").write_bytes(b"broken")
    pass_time(70, node)
    assert outcomes(node.history) == [("corrupt", "ckpt-5")]
    assert ["No space" in why for why in node.state.tracker._scan.failed.values()] == [True]
    monkeypatch.undo()
    pass_time(40, node)
    assert outcomes(node.history) == [("corrupt", "ckpt-5"), ("succeeded", "ckpt-6")]


def test_what_was_given_up_is_told_though_storage_fails_then(node, monkeypatch):
    """The look that gives it up may fail in the end: the next one tells of it."""
    save(node.checkpoint_dir, 5)
    (node.checkpoint_dir / "ckpt-5.index").write_bytes(b"broken")
    pass_time(58, node)

    def fail(*_, **__):
        raise StorageError("cannot list: Input/output error")

    monkeypatch.setattr(PinExecutor, "pin", fail)
    pass_time(70, node)
    assert outcomes(node.history) == []
    monkeypatch.undo()
    pass_time(20, node)
    assert outcomes(node.history) == [("corrupt", "ckpt-5")]


def test_a_checkpoint_that_vanishes_before_it_is_pinned_is_settled_once(node, monkeypatch):
    """It was complete and is gone: the journal says vanished, and it is not asked for again."""
    save(node.checkpoint_dir, 5)
    pass_time(5, node)
    look = node.storage_thread.reconciler.checkpoints.catalog.scan

    def look_and_delete():
        seen = look()
        for path in node.checkpoint_dir.glob("ckpt-6.*"):
            path.unlink()
        return seen

    monkeypatch.setattr(node.storage_thread.reconciler.checkpoints.catalog, "scan", look_and_delete)
    save(node.checkpoint_dir, 6, keep=[5])
    pass_time(58, node)
    assert outcomes(node.history) == [("succeeded", "ckpt-5")], "it may be seen again"
    pass_time(20, node)
    assert outcomes(node.history) == [("succeeded", "ckpt-5"), ("vanished", "ckpt-6")]
    assert node.status.checkpoints.pending == 0


def test_what_another_node_pinned_in_time_has_not_vanished(node, monkeypatch):
    """A look that finds nothing is not enough: the pin of a node that was faster shows in the next one."""
    save(node.checkpoint_dir, 5)
    pass_time(5, node)
    other = restarted(node, "i2")
    look = node.storage_thread.reconciler.checkpoints.catalog.scan

    def look_too_late():
        seen = look()
        monkeypatch.undo()
        other.storage_thread.reconciler.checkpoints.catalog.scan()
        other_pin(other)
        for path in node.checkpoint_dir.glob("ckpt-6.*"):
            path.unlink()
        (pins,) = [path for path in (node.run_dir / "pins").iterdir() if path.name.startswith("ckpt-6@")]
        pins.rename(pins.with_name(".tmp-away"))
        return seen

    monkeypatch.setattr(node.storage_thread.reconciler.checkpoints.catalog, "scan", look_too_late)
    save(node.checkpoint_dir, 6, keep=[5])
    for _ in range(20):
        pass_time(1, node)
        away = node.run_dir / "pins" / ".tmp-away"
        if away.exists():
            (pinned,) = {found.checkpoint.folder for found in other.found if found.checkpoint.name == "ckpt-6"}
            away.rename(away.with_name(pinned))
    assert outcomes(node.history) == [("succeeded", "ckpt-5"), ("succeeded", "ckpt-6")]


def other_pin(other):
    """The other node pins all that it finds."""
    other.found = [
        pin(found, other.run_dir / "pins") for found in other.storage_thread.reconciler.checkpoints.catalog.scan().found
    ]


def test_a_corrupt_checkpoint_is_told_once_and_settled(node):
    """Named and broken for as long as storage may take to show it whole: then given up, and the queue goes on."""
    save(node.checkpoint_dir, 5)
    (node.checkpoint_dir / "ckpt-5.index").write_bytes(b"broken")
    pass_time(50, node)
    assert node.history.entries == []
    pass_time(30, node)
    assert outcomes(node.history) == [("corrupt", "ckpt-5")]
    save(node.checkpoint_dir, 6, keep=[5])
    (node.checkpoint_dir / "ckpt-5.index").write_bytes(b"broken")
    pass_time(90, node)
    assert outcomes(node.history) == [("corrupt", "ckpt-5"), ("succeeded", "ckpt-6")]


def test_only_new_checkpoints_are_evaluated_with_start_new(tmp_path, clock):
    """What lay there is skipped in the journal, without being pinned; what comes later counts."""
    node = Node(tmp_path, clock, start_new=True)
    save(node.checkpoint_dir, 5)
    pass_time(5, node)
    save(node.checkpoint_dir, 6, keep=[5])
    pass_time(5, node)
    assert outcomes(node.history) == [("skipped", "ckpt-5"), ("succeeded", "ckpt-6")]


def test_a_directory_that_appears_after_the_start_is_all_new_with_start_new(tmp_path, clock):
    """Nothing can have been there before: however much training saved until this daemon saw the directory."""
    node = Node(tmp_path, clock, start_new=True)
    pass_time(5, node)
    for step in (5, 6):
        save(node.checkpoint_dir, step, keep=[5])
    pass_time(20, node)
    assert outcomes(node.history) == [("succeeded", "ckpt-5"), ("succeeded", "ckpt-6")]


def test_pins_stay_within_the_users_bound(tmp_path, clock):
    """Beyond it nothing more is pinned; the oldest that waits is skipped for the newest, never all of them."""
    save(tmp_path / "checkpoints", 1)
    one = sum(path.stat().st_size for path in (tmp_path / "checkpoints").glob("ckpt-1.*"))
    node = Node(tmp_path, clock, pin_max_bytes=2 * one)
    node.silent = {"Evaluate"}
    for step in (2, 3):
        pass_time(3, node)
        save(node.checkpoint_dir, step, keep=range(1, step))
    pass_time(3, node)
    assert node.status.disk.pins_bytes == 2 * one
    assert node.status.checkpoints.pending == 3
    node.report(node.active, failed("stalled"))
    node.silent = set()
    pass_time(30, node)
    assert outcomes(node.history) == [
        *(("failed", "stalled"), ("skipped", "ckpt-1"), ("succeeded", "ckpt-2"), ("succeeded", "ckpt-3")),
    ]
    assert "pin_max_bytes" in node.history.entries[1].settlement.reason


def test_what_found_no_room_and_was_deleted_has_vanished(tmp_path, clock):
    """Nothing that was seen complete is left without an end."""
    save(tmp_path / "checkpoints", 1)
    node = Node(tmp_path, clock, pin_max_bytes=1)
    node.silent = {"Evaluate"}
    pass_time(5, node)
    save(node.checkpoint_dir, 2)
    pass_time(5, node)
    save(node.checkpoint_dir, 3)
    pass_time(5, node)
    node.silent = set()
    pass_time(70, node)
    assert outcomes(node.history) == [("succeeded", "ckpt-1"), ("succeeded", "ckpt-3"), ("vanished", "ckpt-2")]


# -- failures --------------------------------------------------------------------------------------------------------


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
    pass_time(100, node)
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


def test_an_idle_worker_that_dies_makes_the_group_form_anew(tmp_path, clock):
    """What is left of a group without it cannot be used: both slots join again, and no plan fails for it."""
    node = Node(tmp_path, clock, replicas=2)
    save(node.checkpoint_dir, 5)
    pass_time(5, node)
    first, second = (node.processes[slot.worker] for slot in node.daemon.supervisor.workers.slots())
    node.end(second, -9)
    pass_time(2, node)
    assert first.killed
    save(node.checkpoint_dir, 6)
    pass_time(10, node)
    assert outcomes(node.history) == [("succeeded", "ckpt-5"), ("succeeded", "ckpt-6")]
    assert node.history.newest.outcome.result.workers == 2


def test_without_standbys_an_idle_worker_that_dies_is_replaced_with_its_group(tmp_path, clock):
    """The slot whose worker lives would otherwise wait for ever beside one that was started anew."""
    node = Node(tmp_path, clock, replicas=2, keep_standby=False)
    save(node.checkpoint_dir, 5)
    pass_time(5, node)
    node.end(node.active, -9)
    save(node.checkpoint_dir, 6)
    pass_time(10, node)
    assert node.history.newest.plan.checkpoint.name == "ckpt-6"
    assert node.history.newest.outcome.result.workers == 2


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


def test_standbys_that_die_at_import_are_started_ever_later(node):
    """A broken installation must not turn into a hot loop."""
    save(node.checkpoint_dir, 5)
    node.settle()
    node.end(node.standby, 1)
    for _ in range(130):
        for process in node.alive():
            node.end(process, 1)
        node.silent = {"start"}
        pass_time(1, node)
    assert 7 <= len(node.processes) <= 10
    assert node.log.names().count("worker_exited") == len(node.processes) - 1 - len(node.alive())
    assert node.exited is None


def test_standbys_that_die_once_they_are_ready_are_started_ever_later_too(node):
    """Being ready is no proof: the next must not start at once for ever."""
    node.checkpoint_dir.mkdir(parents=True)
    node.settle()
    for _ in range(130):
        for process in node.alive():
            if process.is_ready:
                node.end(process, -9)
        pass_time(1, node)
    assert 7 <= len(node.processes) <= 10


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


def test_a_task_that_cannot_be_used_ends_the_daemon(node):
    """The user hears of it at the start, with what the task's import said."""
    node.checkpoint_dir.mkdir(parents=True)
    node.reply = lambda _process, _command: failed("task_error", "No module named 'my_eval'")
    node.settle()
    assert isinstance(node.exited, TaskError)
    assert "my_eval" in str(node.exited)


def test_a_task_that_hangs_at_import_ends_the_daemon(node):
    """Trying the task has a bound like everything else."""
    node.checkpoint_dir.mkdir(parents=True)
    node.silent = {"Check"}
    node.settle()
    (probe,) = node.processes.values()
    node.report(probe, Phase(WorkerPhase.IMPORT))
    pass_time(122, node)
    assert isinstance(node.exited, TaskError)


# -- restarts --------------------------------------------------------------------------------------------------------


def test_a_restart_repeats_nothing_that_is_settled(node):
    """The next daemon reads the journal first: no plan, no pin, no command to evaluate."""
    save(node.checkpoint_dir, 5)
    pass_time(10, node)
    again = restarted(node, "i2")
    pass_time(20, again)
    assert again.of(CreatePlan) == []
    assert again.log.names().count("checkpoint_found") == 0
    assert not list((node.run_dir / "pins").iterdir())
    assert again.state.history.newest == node.history.newest


def test_a_restart_closes_the_plan_that_its_former_life_left_open(node):
    """Killed in the middle: the plan failed as restarted, and the checkpoint is evaluated after all."""
    save(node.checkpoint_dir, 5)
    node.silent = {"Evaluate"}
    pass_time(5, node)
    save(node.checkpoint_dir, 6)
    again = restarted(node, "i2")
    pass_time(20, again)
    assert outcomes(node.history) == [("failed", "restarted"), ("succeeded", "ckpt-5"), ("succeeded", "ckpt-6")]


def test_a_restart_rebuilds_the_view_of_the_newest_result(node):
    """Nobody is left who could do it otherwise."""
    save(node.checkpoint_dir, 5)
    pass_time(10, node)
    (view,) = node.run_dir.glob("evaluations/*/result.json")
    view.unlink()
    restarted(node, "i2").settle()
    assert view.exists()


# -- commands by hand ------------------------------------------------------------------------------------------------


def test_reports_of_unknown_workers_change_nothing(node):
    """A process that is long gone may have left a message in the queue."""
    save(node.checkpoint_dir, 5)
    pass_time(5, node)
    before = replace(node.status)
    for report in (
        Ready("tensorflow", "2"),
        Checked("t9", (), {}),
        Joined("g", "t9", {}),
        done(1, node.active.told(Join)[0]),
    ):
        node.daemon.observe(("worker-1.i0.1", report))
    node.settle()
    assert node.status == before
