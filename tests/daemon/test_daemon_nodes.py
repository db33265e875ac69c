"""Several nodes, nodes that come and go, and the end of a run: as histories."""

from collections import Counter
from dataclasses import replace

import pytest
from fakes import TIMING, Node, done, failed, outcomes, pass_time, restarted, save
from prometheus_client import CollectorRegistry

from sidecar.coordination.heartbeats import heartbeat_path
from sidecar.daemon.storage_thread import CreatePlan, PollJournal, Sync
from sidecar.errors import MustCopyError, StorageError
from sidecar.protocol.codec import dumps, loads
from sidecar.protocol.heartbeat import Heartbeat
from sidecar.protocol.messages import Evaluate, Join, Phase
from sidecar.protocol.states import WorkerPhase
from sidecar.publishing.prometheus import Exporter


def heartbeat(node):
    return loads(Heartbeat, node.storage.storage.read(heartbeat_path(node.node)))


def two_evaluating(new_node):
    """A node each of two in the middle of plan 1, rank 0 on the first."""
    first, second = new_node("worker-1"), new_node("worker-2")
    save(first.checkpoint_dir, 5)
    first.silent = second.silent = {"Evaluate"}
    pass_time(30, first, second)
    assert [member.node for member in first.history.open.members] == ["worker-1", "worker-2"]
    return first, second


# -- several nodes ---------------------------------------------------------------------------------------------------


def test_two_nodes_form_one_group(new_node):
    """The first in natural order proposes; both let their worker join the same group; one outcome."""
    first, second = new_node("worker-2"), new_node("worker-10")
    save(first.checkpoint_dir, 5)
    first.silent = second.silent = {"Evaluate"}
    pass_time(30, first, second)
    first.silent = second.silent = set()
    pass_time(3, first, second)
    assert outcomes(first.history) == [("succeeded", "ckpt-5")]
    closed = first.history.newest
    assert (closed.plan.proposer, closed.outcome.closed_by) == ("worker-2", "worker-2")
    assert [member.node for member in closed.plan.members] == ["worker-2", "worker-10"]
    assert first.active.told(Join)[0].group == second.active.told(Join)[0].group
    assert second.of(CreatePlan) == []
    assert (first.status.publisher, second.status.publisher) == (True, False)
    assert first.state.history.newest == second.state.history.newest


def test_a_node_hears_of_a_plan_long_before_its_next_beat(new_node):
    """And of its outcome: a member that waited for its beat would hold up the others."""
    first, second = new_node("worker-1"), new_node("worker-2")
    first.checkpoint_dir.mkdir(parents=True)
    pass_time(20, first, second)
    first.silent = {"Evaluate"}
    save(first.checkpoint_dir, 5)
    first.wake()
    second.wake()
    pass_time(0.2, second, first, step=0.05)
    assert [command.plan for command in second.active.told(Evaluate)] == [1]
    first.report(first.active, done(1, first.active.told(Join)[0]))
    first.settle()
    assert first.history.open is None
    pass_time(0.1, second, step=0.05)
    assert second.state.history.newest is not None


def two_that_look_rarely(new_node):
    """Return two idle nodes; the second looks every 900 s, and when a file event tells of a change."""
    first, second = new_node("worker-1"), new_node("worker-2")
    second.daemon.schedule.timing = replace(TIMING, sweep_seconds=900.0)
    first.checkpoint_dir.mkdir(parents=True)
    pass_time(20, first, second)
    first.silent = second.silent = {"Evaluate"}
    return first, second


def test_a_member_that_found_a_checkpoint_before_its_pin_looks_for_the_pin_at_once(new_node):
    """Another node copied it; no file event tells of pins, and its own next look may come too late."""
    first, second = two_that_look_rarely(new_node)

    def refuse(found, *_, **__):
        raise MustCopyError(found.checkpoint.name)

    second.storage_thread.reconciler.pinner.make = refuse
    save(first.checkpoint_dir, 5)
    second.wake()
    pass_time(1, second)
    (found,) = second.state.complete.values()
    assert found.checkpoint.pin is None
    pass_time(10, first, second)
    assert [command.plan for command in second.active.told(Evaluate)] == [1]


def test_the_download_of_one_member_is_not_joining_time_of_the_others(new_node):
    """Its own daemon bounds the download. Once it has joined, too, the time to form the group counts as always."""
    first, second = new_node("worker-1"), new_node("worker-2")
    second.daemon.runner.timing = replace(TIMING, transfer_seconds=1000.0)

    def download(found, *_, **__):
        raise MustCopyError(found.checkpoint.name)

    def hide_pins(scan):
        seen, by_key = scan(), {}
        for key, found in seen.by_key.items():
            by_key[key] = replace(found, checkpoint=replace(found.checkpoint, pin=None))
        return replace(seen, by_key=by_key)

    second.storage_thread.reconciler.pinner.make, second.catalog.around = download, hide_pins
    first.silent = second.silent = {"Join"}
    save(first.checkpoint_dir, 5)
    pass_time(400, first, second, step=1.0)
    assert [member.node for member in first.history.open.members] == ["worker-1", "worker-2"]
    assert (len(first.active.told(Join)), first.active.killed) == (1, False)
    second.catalog.around = None
    pass_time(115, first, second, step=1.0)
    assert (first.history.entries, len(second.active.told(Join))) == ([], 1)
    pass_time(20, first, second, step=1.0)
    assert outcomes(first.history)[0] == ("failed", "join")


def test_a_member_looks_once_more_before_it_says_that_it_did_not_see_a_checkpoint(new_node):
    """Its first look may be told what a client of NFS has cached, and no other is due for long."""
    first, second = two_that_look_rarely(new_node)
    before = second.catalog.scan()
    second.catalog.around = lambda _: before
    save(first.checkpoint_dir, 5)
    pass_time(TIMING.pin_wait_seconds / 2, first, second)
    assert second.state.history.open is not None
    second.catalog.around = None
    pass_time(TIMING.pin_wait_seconds, first, second)
    assert [command.plan for command in second.active.told(Evaluate)] == [1]


def test_who_listens_in_vain_does_so_ever_less_often(new_node):
    """The first in line says nothing for its whole patience: thousands of nodes may listen meanwhile."""
    first, second = new_node("worker-1"), new_node("worker-2")
    first.checkpoint_dir.mkdir(parents=True)
    pass_time(20, first, second)
    save(first.checkpoint_dir, 5)
    second.wake()
    before = len(second.carried)
    for _ in range(103):  # the first is there, but writes nothing but its beat
        pass_time(0.1, second, step=0.01)
        beat = heartbeat(first)
        first.storage.storage.replace(heartbeat_path("worker-1"), dumps(replace(beat, beat=beat.beat + 1)))
    heard = [type(request) for request in second.carried[before:]]
    assert heard.count(CreatePlan) == 1, "after its patience it proposes"
    assert 5 <= heard.count(PollJournal) <= 20


def test_a_node_that_comes_later_is_taken_into_the_next_group(new_node):
    """The warm group of one gives way to a group of two: every daemon that sees it replaces its worker."""
    first, second = new_node("worker-1"), new_node("worker-2")
    save(first.checkpoint_dir, 5)
    pass_time(10, first)
    alone = first.active
    pass_time(20, first, second)
    save(first.checkpoint_dir, 6)
    pass_time(20, first, second)
    assert first.history.newest.outcome.result.workers == 2
    assert alone.killed
    assert first.status.evaluation.groups_formed == 2


def test_without_standbys_a_group_grows_as_well(new_node):
    """Its workers can join no other group, so they make room for new ones when somebody comes."""
    first, second = (new_node(name, keep_standby=False) for name in ("worker-1", "worker-2"))
    save(first.checkpoint_dir, 5)
    pass_time(10, first)
    alone = first.active
    pass_time(20, first, second)
    groups = []
    for step in (6, 7):
        first.silent = second.silent = {"Evaluate"}  # no rank is done before the other has begun
        save(first.checkpoint_dir, step, keep=range(5, step))
        pass_time(10, first, second)
        groups.append((first.active, second.active))
        first.silent = second.silent = set()
        pass_time(10, first, second)
    assert first.history.newest.outcome.result.workers == 2
    assert alone.killed
    assert groups[0] == groups[1]
    assert outcomes(first.history) == [("succeeded", f"ckpt-{step}") for step in (5, 6, 7)]


def test_a_node_that_is_killed_is_lost_after_its_lease(new_node):
    """The other closes the plan and goes on without it."""
    first, second = two_evaluating(new_node)
    pass_time(9, first)
    assert first.history.open is not None
    pass_time(3, first)
    first.silent = set()
    pass_time(30, first)
    assert outcomes(first.history) == [("failed", "member_lost"), ("succeeded", "ckpt-5")]
    assert first.history.entries[0].outcome.node == "worker-2"
    assert second.exited is None


def test_nobody_settles_for_those_who_went(new_node):
    """A proposer is killed while it idles: the next one proposes without it once its lease is over, and no later."""
    first, second = new_node("worker-1"), new_node("worker-2")
    save(first.checkpoint_dir, 5)
    pass_time(30, first, second)
    assert first.history.newest.outcome.result.workers == 2
    save(first.checkpoint_dir, 6, keep=[5])
    pass_time(12.5, second, step=0.5)
    assert outcomes(second.history)[-1] == ("succeeded", "ckpt-6")
    assert second.history.newest.outcome.result.workers == 1


def waits(node, phase):
    """The node's active worker waits for the others."""
    node.report(node.active, Phase(WorkerPhase(phase), node.history.through))
    node.settle()


@pytest.mark.parametrize("phases", [("hello", "hello"), ("reduce", "reduce"), ("reduce", "hello")])
def test_ranks_that_all_wait_for_each_other_are_noticed(new_node, phases):
    """Their link is gone, no daemon's is: the plan fails, and the next one goes without one of them."""
    first, second = two_evaluating(new_node)
    for node, phase in zip((first, second), phases, strict=True):
        waits(node, phase)
    pass_time(12, first, second)
    (lost,) = first.history.entries
    assert (lost.outcome.kind, lost.outcome.node) == ("stalled", "worker-2")
    assert "every rank waited for the others for 6 s" in lost.outcome.message
    first.silent = second.silent = set()
    pass_time(30, first, second)
    assert outcomes(first.history) == [("failed", "stalled"), ("succeeded", "ckpt-5")]
    assert first.history.newest.outcome.result.workers == 1


def test_ranks_that_wait_for_one_that_works_wait_as_long_as_it_takes(new_node):
    """Only its own daemon can judge that; and who comes to the next collective was not waiting in the last."""
    first, second = two_evaluating(new_node)
    waits(first, "reduce")
    pass_time(300, first, second)
    assert first.history.open is not None
    for _ in range(10):
        waits(second, "hello")
        pass_time(3, first, second)
        waits(second, "evaluate")
        pass_time(3, first, second)
    assert first.history.open is not None


def test_a_node_without_a_heartbeat_is_lost_to_one_that_never_saw_it(new_node):
    """Its file is gone and the survivor was restarted: nobody's silence can be measured, and yet this ends."""
    first, second = two_evaluating(new_node)
    (first.run_dir / heartbeat_path("worker-1")).unlink()
    again = restarted(second, "i2")
    (first.run_dir / heartbeat_path("worker-2")).unlink()
    pass_time(30, again)
    assert outcomes(first.history)[0] in [("failed", "restarted"), ("failed", "member_lost")]
    assert outcomes(first.history)[-1] == ("succeeded", "ckpt-5")


def test_a_restarted_member_closes_its_plan_even_before_its_task_was_tried(new_node):
    """Importing the framework takes seconds that nobody should wait for."""
    _first, second = two_evaluating(new_node)
    again = restarted(second, "i2")
    again.silent = {"start"}
    pass_time(2, again)
    assert outcomes(again.history) == [("failed", "restarted")]


def test_the_result_is_written_by_the_next_rank_if_rank_0s_node_left(new_node):
    """Every rank holds it; who is first in line writes at once, the next as soon as that node is known to be gone."""
    first, second = two_evaluating(new_node)
    second.report(second.active, done(1, second.active.told(Join)[0]))
    pass_time(3, second)
    assert second.history.entries == []
    gone = heartbeat(first)
    first.storage.storage.replace(heartbeat_path("worker-1"), dumps(replace(gone, state="left", beat=gone.beat + 1)))
    pass_time(3, second)
    assert outcomes(second.history) == [("succeeded", "ckpt-5")]
    assert second.history.newest.outcome.closed_by == "worker-2"


def test_the_result_is_written_by_the_next_rank_if_rank_0s_node_says_nothing(new_node):
    """After its patience at the latest."""
    _first, second = two_evaluating(new_node)
    second.report(second.active, done(1, second.active.told(Join)[0]))
    pass_time(11, second)
    assert outcomes(second.history) == [("succeeded", "ckpt-5")]


def test_a_standby_that_stood_in_a_failed_plan_is_replaced_though_it_never_joined(new_node):
    """Its node reads of plan and failure at once; the id is never listed again, so its slot must be freed."""
    first, second = new_node("worker-1"), new_node("worker-2")
    first.checkpoint_dir.mkdir(parents=True)
    pass_time(10, first, second)
    standby = second.standby
    second.hangs = True
    save(first.checkpoint_dir, 5)
    first.silent = {"Evaluate"}
    pass_time(4, first, second)
    assert len(first.history.open.members) == 2
    first.report(first.active, failed("stalled"))
    pass_time(1, first)
    second.hangs, first.silent = False, set()
    pass_time(20, first, second)
    assert standby.killed
    assert outcomes(first.history) == [("failed", "stalled"), ("succeeded", "ckpt-5")]
    assert [member.node for member in first.history.newest.plan.members] == ["worker-2"]  # the other lost it


def test_the_next_in_line_publishes_the_same_numbers_within_a_lease(new_node):
    """Gauges do not end with the node that showed them; they come from the journal, without another evaluation."""
    first, second = new_node("worker-1"), new_node("worker-2")
    save(first.checkpoint_dir, 5)
    pass_time(30, first, second)
    before = shown(first)
    assert before["sidecar_eval_metric"] == 0.75
    assert "sidecar_eval_metric" not in shown(second)
    silent_since = second.clock.now()
    while not second.status.publisher:
        pass_time(1, second)
    assert second.clock.now() - silent_since <= 10 + 2  # a lease, and a beat until it is looked at
    assert shown(second) == before
    assert len(second.history.entries) == 1


def shown(node):
    """Return what a scrape of a node finds of the newest evaluation."""
    registry = CollectorRegistry()
    Exporter(registry, process_metrics=False).update(node.status, node.state.history)
    samples = (sample for family in registry.collect() for sample in family.samples)
    return {sample.name: sample.value for sample in samples if sample.name.startswith("sidecar_eval_")}


def test_the_next_in_line_proposes_when_the_proposer_does_not(new_node):
    """It sees the work undone for its patience; whose turn it was may be stuck in storage."""
    first, second = new_node("worker-1"), new_node("worker-2")
    first.checkpoint_dir.mkdir(parents=True)
    pass_time(30, first, second)
    save(first.checkpoint_dir, 5)
    first.storage.fails = {"create"}
    pass_time(9, first, second)
    assert second.of(CreatePlan) == []
    pass_time(6, first, second)
    assert len(second.of(CreatePlan)) == 1


def test_a_retry_covers_the_same_eval_sets_though_another_node_proposes_it(new_node):
    """The count of evaluations before stands in the plan, is told to the workers, and no failure moves it."""
    first, second = new_node("worker-1"), new_node("worker-2")
    save(first.checkpoint_dir, 5)
    pass_time(30, first, second)
    first.silent = second.silent = {"Evaluate"}
    save(first.checkpoint_dir, 6, keep=[5])
    pass_time(5, first, second)
    pass_time(30, second)  # the first one was killed
    second.silent = set()
    pass_time(30, second)
    save(first.checkpoint_dir, 7, keep=[5, 6])
    pass_time(10, second)
    closed = second.history.entries
    assert [(each.plan.proposer, each.plan.checkpoint.name, each.outcome.status) for each in closed] == [
        ("worker-1", "ckpt-5", "succeeded"),
        ("worker-1", "ckpt-6", "failed"),
        ("worker-2", "ckpt-6", "succeeded"),
        ("worker-2", "ckpt-7", "succeeded"),
    ]
    assert [each.plan.evaluated for each in closed] == [0, 1, 1, 2]
    told = [command for process in second.processes.values() for command in process.told(Evaluate)]
    assert [(command.plan, command.evaluated) for command in told] == [(2, 1), (3, 1), (4, 2)]  # 1 was too quick


def test_nodes_with_other_code_do_not_mix(new_node):
    """Three nodes, one of which has another task: the two alike evaluate, and no plan fails as a mismatch."""
    nodes = [new_node(f"worker-{number}") for number in (1, 2, 3)]
    nodes[0].task = "t0"
    save(nodes[0].checkpoint_dir, 5)
    pass_time(30, *nodes)
    assert outcomes(nodes[0].history) == [("succeeded", "ckpt-5")]
    newest = nodes[0].history.newest
    assert [member.node for member in newest.plan.members] == ["worker-2", "worker-3"]
    assert (newest.plan.proposer, newest.plan.task) == ("worker-2", "t1")


def test_what_another_nodes_task_still_needs_is_not_let_go(new_node):
    """It failed for good under one task; a node with the corrected one is there, so the pin stays for it."""
    first = new_node("worker-1", max_attempts=1)
    save(first.checkpoint_dir, 5)
    first.reply = failing(first)
    pass_time(10, first)
    assert outcomes(first.history)[-1] == ("failed", "ckpt-5")
    second = new_node("worker-2", max_attempts=1)
    second.task = "t2"
    first.hangs = True
    pass_time(2, second)
    save(first.checkpoint_dir, 6)  # the trainer deletes ckpt-5
    first.hangs = False
    pass_time(40, first, second)
    assert ("succeeded", "ckpt-5") in outcomes(first.history)


def failing(node):
    reply = node.reply
    return lambda process, command: failed("task_error") if isinstance(command, Evaluate) else reply(process, command)


def test_a_member_that_is_chief_is_never_used(new_node):
    """The plan that lists it is closed by whoever sees that."""
    first, second = two_evaluating(new_node)
    as_chief = replace(heartbeat(second), role="chief", beat=10**6)
    first.storage.storage.replace(heartbeat_path("worker-2"), dumps(as_chief))
    pass_time(3, first)
    assert outcomes(first.history) == [("failed", "chief_listed")]


# -- the chief -------------------------------------------------------------------------------------------------------


def test_the_chief_only_says_that_it_is_there(new_node):
    """No workers, no process, no look at checkpoints, no proposal; a heartbeat with its role; healthy and ready."""
    chief, worker = new_node("chief-0", role="chief"), new_node("worker-0")
    save(chief.checkpoint_dir, 5)
    pass_time(30, chief, worker)
    assert chief.processes == {}
    assert {type(request).__name__ for request in chief.carried} == {"JoinRun", "Sync"}
    assert not any(request.scan for request in chief.of(Sync))
    assert (heartbeat(chief).role, heartbeat(chief).state, heartbeat(chief).slots) == ("chief", "ready", ())
    assert chief.status.unready is None
    assert not chief.status.publisher
    assert outcomes(worker.history) == [("succeeded", "ckpt-5")]
    assert [member.node for member in worker.history.newest.plan.members] == ["worker-0"]


def test_the_chief_ends_when_it_is_told_to(new_node):
    """It has nothing to finish."""
    chief = new_node("chief-0", role="chief")
    chief.checkpoint_dir.mkdir(parents=True)
    pass_time(5, chief)
    chief.terminate()
    chief.settle()
    assert chief.exited == 0
    assert heartbeat(chief).state == "left"


# -- stopping --------------------------------------------------------------------------------------------------------


def test_an_idle_node_that_is_told_to_stop_leaves_at_once(new_node):
    """It says left, then ends with 0."""
    node = new_node()
    save(node.checkpoint_dir, 5)
    pass_time(10, node)
    node.terminate()
    node.settle()
    assert node.exited == 0
    assert heartbeat(node).state == "left"


def test_a_node_that_is_told_to_stop_finishes_its_evaluation(new_node):
    """It is draining meanwhile: not listed, proposing nothing, starting no process."""
    node = new_node()
    save(node.checkpoint_dir, 5)
    node.silent = {"Evaluate"}
    pass_time(5, node)
    save(node.checkpoint_dir, 6, keep=[5])
    processes = len(node.processes)
    node.terminate()
    pass_time(10, node)
    assert node.exited is None
    assert heartbeat(node).state == "draining"
    assert node.status.unready == "the daemon is draining"
    node.silent = set()
    node.settle()
    assert node.exited == 0
    assert outcomes(node.history) == [("succeeded", "ckpt-5")]
    assert len(node.processes) == processes


def test_a_node_that_cannot_finish_in_time_closes_its_plan_as_drained(new_node):
    """The next daemon tries again; it is the machine's fault."""
    node = new_node()
    save(node.checkpoint_dir, 5)
    node.silent = {"Evaluate"}
    pass_time(5, node)
    node.terminate()
    pass_time(24, node)
    assert node.exited is None
    pass_time(2, node)
    assert node.exited == 0
    assert outcomes(node.history) == [("failed", "drained")]


def test_a_second_signal_ends_the_daemon_at_once(new_node):
    """A person who sends it does not want to wait."""
    node = new_node()
    save(node.checkpoint_dir, 5)
    node.silent = {"Evaluate"}
    pass_time(5, node)
    node.terminate()
    node.terminate()
    assert node.exited == 0
    assert node.history.open is not None


def test_a_node_without_a_part_does_not_wait_for_the_plan_of_others(new_node):
    """It may take hours, and the unit's time to stop is short."""
    first, second = new_node("worker-1"), new_node("worker-2")
    save(first.checkpoint_dir, 5)
    first.silent = {"Evaluate"}
    pass_time(10, first)
    pass_time(10, first, second)
    assert second.status.evaluation.plan == 1
    second.terminate()
    second.settle()
    assert second.exited == 0


@pytest.mark.parametrize("when", ["from the start", "while it evaluates"])
def test_a_node_that_is_told_to_stop_ends_in_time_though_storage_hangs(new_node, when):
    """No wait without a bound: a unit's manager would kill it, and its workers, a moment later."""
    node = new_node()
    node.silent = {"Evaluate"}
    save(node.checkpoint_dir, 5)
    if when == "while it evaluates":
        pass_time(5, node)
    node.hangs = True
    pass_time(5, node)
    node.terminate()
    pass_time(30, node)
    assert node.exited == 0


def test_a_plan_that_is_being_proposed_when_the_signal_comes_is_finished(new_node):
    """It lists this node: leaving before its answer would make the others wait a lease for nothing."""
    node = new_node()
    save(node.checkpoint_dir, 5)
    pass_time(2, node)
    node.clock.seconds += 1
    node.hangs = True
    node.settle()
    assert isinstance(node.requests[0], CreatePlan)
    node.terminate()
    node.settle()
    node.hangs = False
    node.settle()
    assert node.exited == 0
    assert outcomes(node.history) == [("succeeded", "ckpt-5")]


def test_a_draining_node_writes_the_result_it_holds_without_waiting_for_its_turn(new_node):
    """Writing it twice is harmless, losing it is not."""
    _first, second = two_evaluating(new_node)
    second.terminate()
    second.report(second.active, done(1, second.active.told(Join)[0]))
    second.settle()
    assert second.exited == 0
    assert outcomes(second.history) == [("succeeded", "ckpt-5")]


# -- the end of a run ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_ends_with_its_last_step(new_node, fails):
    """With 0 if all that was there was evaluated, with 1 if something failed for good."""
    node = new_node(stop_after_step=6, max_attempts=1)
    save(node.checkpoint_dir, 5)
    if fails:
        node.reply = failing(node)
    pass_time(10, node)
    assert node.exited is None
    save(node.checkpoint_dir, 6, keep=[5])
    pass_time(20, node)
    assert node.exited == (1 if fails else 0)
    assert heartbeat(node).state == "left"


def test_a_run_ends_when_nothing_happens_any_more(new_node):
    """The time counts from the start, not from the beginning of the clock; and from the last thing that happened."""
    node = new_node(stop_idle_seconds=60.0)
    node.checkpoint_dir.mkdir(parents=True)
    pass_time(50, node)
    save(node.checkpoint_dir, 5)
    pass_time(59, node)
    assert node.exited is None
    pass_time(10, node)
    assert node.exited == 0
    assert outcomes(node.history) == [("succeeded", "ckpt-5")]


def test_without_waiting_what_is_there_is_evaluated_and_that_is_all(new_node):
    """--no-wait ends once everything is settled, and leaves nothing held behind."""
    node = new_node(wait=False)
    save(node.checkpoint_dir, 5)
    save(node.checkpoint_dir, 6, keep=[5])
    pass_time(20, node)
    assert node.exited == 0
    assert outcomes(node.history) == [("succeeded", "ckpt-5"), ("succeeded", "ckpt-6")]
    assert list((node.run_dir / "pins").iterdir()) == []


def test_without_waiting_what_is_incomplete_gets_its_time(new_node):
    """A checkpoint that is being written is waited for; one that stays broken is a failure, not overlooked."""
    node = new_node(wait=False)
    save(node.checkpoint_dir, 5)
    whole = (node.checkpoint_dir / "ckpt-5.index").read_bytes()
    (node.checkpoint_dir / "ckpt-5.index").write_bytes(whole[:20])
    pass_time(30, node)
    assert node.exited is None
    pass_time(40, node)
    assert outcomes(node.history) == [("corrupt", "ckpt-5")]
    assert node.exited == 1


def test_a_run_that_ends_while_storage_fails_ends_all_the_same(new_node):
    """Nobody may hear that this node left; they count it out after a lease."""
    node = new_node(wait=False)
    save(node.checkpoint_dir, 5)
    write = node.storage.storage.replace

    def refuse(path, data):
        if b'"left"' in data:
            raise StorageError("disk full")
        write(path, data)

    node.storage.storage.replace = refuse
    pass_time(30, node)
    assert node.exited == 0
    assert "left_unheard" in node.log.names()


@pytest.mark.seconds
@pytest.mark.parametrize("count", [24, pytest.param(64, marks=pytest.mark.nightly)])
def test_many_nodes_ask_little_of_storage(tmp_path, clock, count):
    """Less than 20 things per node and second, also while they evaluate a checkpoint."""
    nodes = [Node(tmp_path, clock, f"worker-{number}") for number in range(count)]
    asked = Counter()
    for node in nodes:
        node.storage_thread.storage = Counting(node.storage, node.node, asked)
    save(nodes[0].checkpoint_dir, 1)
    pass_time(12, *nodes)
    asked.clear()
    save(nodes[0].checkpoint_dir, 2, keep=[1])
    pass_time(10, *nodes)
    assert len(nodes[0].history.verdicts.succeeded) == 2
    assert max(asked.values()) < 20 * 10


class Counting:
    """Storage that counts what a node asks of it."""

    def __init__(self, storage, node, asked):
        self._storage, self._node, self._asked = storage, node, asked

    def __getattr__(self, method):
        def call(*arguments):
            self._asked[self._node] += 1
            return getattr(self._storage, method)(*arguments)

        return call


def test_an_event_in_the_journal_is_read_at_once(new_node):
    """Nobody waits for the next beat: where file events arrive, a plan is seen when it is made."""
    first, second = new_node("worker-1"), new_node("worker-2")
    pass_time(20, first, second)
    save(first.checkpoint_dir, 5)
    first.silent = second.silent = {"Evaluate"}
    first.wake()
    while first.history.open is None:
        pass_time(0.1, first, step=0.1)
    assert second.state.history.open is None
    second.hear()
    second.settle()
    assert second.state.history.open is not None
    before = len(second.carried)
    second.settle()
    assert len(second.carried) == before, "it is heard once"
