"""Replay what becomes of checkpoints and worker processes on one node through the real loop."""

import shutil
from dataclasses import replace

import pytest
from fakes import Node, done, failed, outcomes, pass_time, restarted, save

from sidecar.coordination.journal_state import Closed
from sidecar.daemon.storage_thread import CreatePlan, JoinRun, Sync
from sidecar.errors import TaskError
from sidecar.protocol.messages import Check, Checked, Evaluate, Join, Joined, Phase, Ready
from sidecar.protocol.records import Plan
from sidecar.protocol.states import WorkerPhase


def names(node, event):
    return [fields.get("worker") or fields.get("checkpoint") for fields in node.log.of(event)]


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


@pytest.mark.parametrize("state_dir", [None, "state"])
def test_a_similar_name_is_searched_once_when_the_directory_is_missing(tmp_path, clock, state_dir):
    """Only the first answer is told, so further scans do not list the folder above; a directory that goes is news."""
    searched = []
    node = Node(tmp_path, clock, **({} if state_dir is None else {"state_dir": tmp_path / state_dir}))
    (node.checkpoint_dir.parent / "checkpoint").mkdir()

    def scans(name, call):
        searched.extend([name] * (name == "beside"))
        return call()

    node.storage_thread.scans = scans
    if state_dir is not None:
        node.run_dir.mkdir(parents=True)
    pass_time(20, node)
    assert searched == ["beside"]
    node.checkpoint_dir.mkdir(parents=True, exist_ok=True)
    pass_time(10, node)
    if state_dir is not None:
        shutil.rmtree(node.checkpoint_dir)
        pass_time(20, node)
    told = [each["remedy"] for each in node.log.of("checkpoint_dir_missing")]
    assert [each.endswith("did you mean checkpoint?") for each in told] == [True] * len(searched)
    assert len(searched) == (1 if state_dir is None else 2)


def test_a_directory_that_stays_empty_is_told_of_once(node):
    """Training may save elsewhere, if it is not the same storage; the status says so until something is seen."""
    node.checkpoint_dir.mkdir(parents=True)
    pass_time(298, node)
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


def test_only_new_checkpoints_are_evaluated_with_start_new(tmp_path, clock):
    """Checkpoints that existed at the start are skipped in the journal without a pin; later ones are evaluated."""
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


def test_an_idle_worker_that_dies_makes_the_group_form_anew(tmp_path, clock):
    """The rest of a group that lost a worker is useless: both slots join again, and no plan fails because of it."""
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
