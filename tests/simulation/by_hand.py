"""Scenarios made by hand: what seeds draw too rarely to rely on."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from simulation.scenario import FAILURES, Fault, NodeSettings, NodeSpec, Save, Scenario

_RAISES = (FAILURES.index("task_error") + 0.5) / 89  # as `faults` chooses what a worker fails with


def nodes_of(count: int, settings: NodeSettings) -> tuple[NodeSpec, ...]:
    names = [f"worker-{number}" for number in range(count)]
    return tuple(
        NodeSpec(f"n{number}", name, "worker", 1, True, 0.0, 100.0 * number, 0.0, settings)
        for number, name in enumerate(names)
    )


def saves_of(*steps_at: tuple[int, float]) -> tuple[Save, ...]:
    return tuple(Save(at, f"ckpt-{step}", step, f"{step} at {at}") for step, at in steps_at)


def _faults(*faults: tuple[str, float, int, float, float, bool]) -> tuple[Fault, ...]:
    return tuple(Fault(number, *each) for number, each in enumerate(faults))


def scenario_of(nodes, saves, faults, done_at: float | None = None, **others) -> Scenario:
    return Scenario(
        1,
        nodes,
        saves,
        None,
        faults,
        0.02,
        events=True,
        done_at=done_at,
        sync_every=5.0,
        links=True,
        generation=2,
        **others,
    )


def varied(scenario: Scenario, count: int) -> Iterator[Scenario]:
    """The same with other delays."""
    return (replace(scenario, variation=number) for number in range(count))


def older_attempt_comes_later() -> Scenario:
    """With every_steps an older checkpoint is tried again after a newer one was planned, and one comes between them."""
    settings = NodeSettings(every_steps=200, backoff_first=6.0, backoff_last=12.0)
    faults = _faults(("worker_fails", 2.0, 0, 1.0, _RAISES, True))
    return scenario_of(nodes_of(1, settings), saves_of((200, 4.0), (400, 5.0), (500, 30.0), (900, 31.0)), faults, 60.0)


def budget_is_used_up() -> Scenario:
    """Two checkpoints are held and fail; the third finds no room."""
    settings = NodeSettings(pin_max=2, backoff_first=8.0, backoff_last=16.0)
    faults = _faults(
        ("worker_fails", 2.0, 0, 1.0, _RAISES, True),
        ("worker_fails", 8.0, 0, 1.0, _RAISES, True),
        ("worker_fails", 12.0, 0, 1.0, _RAISES, True),
    )
    return scenario_of(nodes_of(1, settings), saves_of((100, 4.0), (200, 4.5), (300, 5.0), (400, 5.5)), faults)


def dead_machine_shows_old_beats() -> Scenario:
    """A machine is gone for good in the middle of a plan, and the others read its newest two heartbeats in turn."""
    settings = NodeSettings()
    faults = _faults(
        ("reads_go_back", 3.0, 0, 60.0, 0.5, False),
        ("reads_go_back", 3.0, 1, 60.0, 0.5, False),
        ("machine_gone", 4.0, 2, 1.0, 0.5, True),
    )
    return scenario_of(nodes_of(3, settings), saves_of((100, 5.0), (200, 8.0)), faults)


def first_daemon_is_stopped() -> Scenario:
    """All ranks finish while the daemon of the first rank is stopped."""
    faults = _faults(("daemon_stop", 4.0, 0, 40.0, 0.5, True))
    return scenario_of(nodes_of(3, NodeSettings()), saves_of((100, 5.0)), faults)


def requeued_before_the_former_task_is_back() -> Scenario:
    """It failed once under a task, for good under the next, a person asks for it, and the former task is back."""
    nodes = nodes_of(1, NodeSettings(backoff_first=20.0, backoff_last=20.0))
    upgraded = tuple(
        replace(each, version="1.1", task="task-2", settings=replace(each.settings, max_attempts=1)) for each in nodes
    )
    faults = _faults(
        ("worker_fails", 2.0, 0, 1.0, _RAISES, True),
        ("upgrade", 12.0, 0, 3.0, 0.5, False),
        ("worker_fails", 16.0, 0, 1.0, _RAISES, True),
        ("upgrade", 45.0, 0, 8.0, 0.5, False),
        ("requeue", 49.0, 0, 1.0, 0.0, False),
    )
    return scenario_of(nodes, saves_of((100, 4.0)), faults, upgraded=upgraded)


def requeued_after_its_success() -> Scenario:
    """A person asks for an evaluated checkpoint again; the proposer crashes meanwhile, and training goes on."""
    faults = _faults(("requeue", 30.0, 0, 1.0, 0.0, False), ("daemon_crash", 30.5, 0, 3.0, 0.5, True))
    return scenario_of(nodes_of(2, NodeSettings()), saves_of((100, 4.0), (200, 5.0), (300, 32.0)), faults)


def old_heartbeat_shows_a_worker_of_a_replaced_group() -> Scenario:
    """The proposer cannot read another node's heartbeat while its group is formed, and replaced by one without it."""
    settings = NodeSettings(lease=25.0, settle=3.0, join=4.0, collective=30.0)
    faults = _faults(("heartbeat_unreadable", 3.2, 0, 40.0, 0.01, False))
    return scenario_of(nodes_of(3, settings), saves_of((100, 0.5), (200, 0.6), (300, 0.7), (400, 0.8)), faults)


def failed_under_one_task() -> Scenario:
    """It fails for good under the task of two nodes, and a third has another task."""
    nodes = nodes_of(3, NodeSettings(max_attempts=1))
    nodes = (*nodes[:2], replace(nodes[2], task="task-2"))
    return scenario_of(nodes, saves_of((100, 4.0), (200, 20.0)), _faults(("worker_fails", 2.0, 0, 1.0, _RAISES, True)))


def pin_is_unreadable() -> Scenario:
    """The only node cannot read the pin of what training deleted, for longer than a vanished one is waited for."""
    settings = NodeSettings(visibility=4.0)
    saves = saves_of((100, 4.0), (200, 4.3), (300, 9.0), (400, 14.0), (500, 20.0))
    faults = _faults(("pin_unreadable", 5.0, 0, 14.0, 1.5 / 83, False))
    return replace(scenario_of(nodes_of(1, settings), saves, faults), keep=1)


def first_node_reads_it_damaged() -> Scenario:
    """The node whose turn it is finds it corrupt before any group is formed; the other reads it whole."""
    settings = NodeSettings(visibility=2.0, settle=9.0)
    faults = _faults(("corrupt_on_one", 4.03, 0, 1.0, 0.0, False))
    return replace(scenario_of(nodes_of(2, settings), saves_of((100, 4.0)), faults), events=False)


def record_is_created_late() -> Scenario:
    """A daemon is stopped before it creates a record, until the record that decided instead is in a segment."""
    saves = saves_of(*((100 * number, 1.0 + 3.0 * number) for number in range(1, 16)))
    faults = _faults(
        ("stop_before_create", 6.0, 0, 45.0, 0.5, False),
        ("stop_before_create", 12.0, 1, 40.0, 0.5, False),
    )
    return scenario_of(nodes_of(3, NodeSettings()), saves, faults, shape="segments")


def one_profile_against_one() -> Scenario:
    """Two nodes that compute in different ways, and nothing is wrong."""
    nodes = nodes_of(2, NodeSettings())
    nodes = (nodes[0], replace(nodes[1], profile="arm"))
    return scenario_of(nodes, saves_of(*((100 * number, 4.0 + 6.0 * number) for number in range(1, 9))), ())


def one_code_against_one() -> Scenario:
    """Two nodes whose versions read the same, although they run different code."""
    nodes = nodes_of(2, NodeSettings())
    nodes = tuple(replace(each, version="1.1", evaluation_code=f"code of {each.key}") for each in nodes)
    return scenario_of(nodes, saves_of(*((100 * number, 4.0 + 6.0 * number) for number in range(1, 9))), ())


def two_commits_of_the_same_code() -> Scenario:
    """Three nodes of other commits with the same code are needed together; one runs a release that tells no code."""
    old, *others = nodes_of(4, NodeSettings(min_workers=3))
    new = [replace(each, version=f"1.1.dev{each.key}", evaluation_code="code-1.1") for each in others]
    return scenario_of((old, *new), saves_of((100, 5.0), (200, 8.0)), ())


def vanished_is_back() -> Scenario:
    """It is moved away with its pin for longer than what is gone is waited for, and moved back."""
    settings = NodeSettings(visibility=4.0, settle=20.0)
    faults = _faults(("moved_away", 6.0, 0, 14.0, 0.0, False))
    return scenario_of(nodes_of(1, settings), saves_of((100, 4.0)), faults)


def copied_for_long_after_it_was_deleted() -> Scenario:
    """Training deletes what is being copied, and says that it is done: the copy takes longer than broken files may."""
    settings = NodeSettings(visibility=3.0, settle=0.5)
    faults = _faults(("checkpoint_deleted", 6.5, 0, 1.0, 0.5, False))
    scenario = scenario_of(nodes_of(2, settings), saves_of((100, 4.0)), faults, 7.0, copies_slowly=True)
    return replace(scenario, links=False)


def old_heartbeat_shows_a_worker_that_lost() -> Scenario:
    """The proposer cannot read another node's heartbeat while their plan fails."""
    settings = NodeSettings(lease=25.0, settle=3.0, join=4.0, collective=30.0)
    faults = _faults(
        ("heartbeat_unreadable", 3.2, 0, 40.0, 0.01, False),
        ("worker_fails", 3.0, 2, 1.0, _RAISES, True),
    )
    return scenario_of(nodes_of(3, settings), saves_of((100, 0.5), (200, 0.6), (300, 0.7)), faults)


def forging(scenario: Scenario, count: int = 3) -> Scenario:
    """The same, and somebody forges records of the journal now and then. Seeds do not draw that."""
    random = Random(f"{scenario.seed}/{scenario.generation}/forged")
    last = max((each.at for each in scenario.saves), default=0.0)
    forged = tuple(
        Fault(1000 + number, "forged", 2.0 + last * random.random(), 0, 0.0, random.random(), random.random() < 0.7)
        for number in range(count)
    )
    return replace(scenario, faults=(*scenario.faults, *forged))


def exporting(scenario: Scenario, count: int = 2, *, data_last: int = 0) -> Scenario:
    """The same with settings that export the best checkpoints, which seeds do not draw."""
    nodes = (
        replace(node, settings=replace(node.settings, export_best=count, data_last=data_last))
        for node in scenario.nodes
    )
    return replace(scenario, nodes=tuple(nodes))
