"""The slots of a node: who may be listed, who is held to which bound, who is replaced; processes and time are fakes."""

from types import SimpleNamespace

import pytest
from daemon.workers.slots import BOUNDS, evaluation, grouped, join
from fakes import FakeProcess

from sidecar.daemon.workers.pool import WorkerPool
from sidecar.daemon.workers.process import Exited, Halted
from sidecar.protocol.heartbeat import Slot
from sidecar.protocol.messages import Joined, Phase, Progress, Ready
from sidecar.protocol.records import Member, group_id
from sidecar.protocol.states import WorkerPhase


def test_one_standby_in_every_slot(node):
    """Each with its GPU, its port and its own name, for all time."""
    workers = node(("0", "1"))
    started = workers.fill(0.0)
    assert [each.worker for each in started] == ["n.1.1", "n.1.2"]
    assert [each.address for each in started] == ["10.0.0.7:9001", "10.0.0.7:9002"]
    assert [each.process.environment["CUDA_VISIBLE_DEVICES"] for each in started] == ["0", "1"]
    assert "RANK" not in started[0].process.environment
    assert workers.fill(1.0) == []


def test_slots_as_the_heartbeat_tells_them(node):
    """A standby once it is ready, an active worker until it is killed."""
    workers = node()
    workers.fill(0.0)
    assert workers.slots() == (Slot(worker=None, group=None, address=None, standby=None, standby_address=None),)
    workers.observe("n.1.1", Ready("tensorflow", "2"), 1.0)
    assert workers.slots() == (
        Slot(worker=None, group=None, address=None, standby="n.1.1", standby_address="10.0.0.7:9001"),
    )
    workers.join(join(), "n.1.1", 2.0)
    assert workers.fill(2.0) == [], "an import beside it would hold up the group"
    workers.observe("n.1.1", Joined("g", "t", {}), 2.5)
    workers.fill(2.5)
    workers.observe("n.1.2", Ready("tensorflow", "2"), 3.0)
    assert workers.slots() == (
        Slot(worker="n.1.1", group="g", address="10.0.0.7:9001", standby="n.1.2", standby_address="10.0.0.7:9002"),
    )
    workers.kill_all()
    assert workers.slots() == (Slot(worker=None, group=None, address=None, standby=None, standby_address=None),)


def test_without_standby(node):
    """With `standby = false` a slot is filled again only when its worker is gone."""
    workers = node(keep_standby=False)
    grouped(workers)
    assert workers.fill(1.0) == []
    workers.observe("n.1.1", Exited(-9, ""), 2.0)
    assert [each.worker for each in workers.fill(3.0)] == ["n.1.2"]
    assert workers.engine.ports.closed == [9001]


def test_active_worker_is_replaced_by_the_standby(node):
    """The old one is killed, keeps its port until it ended, and its last words change nothing."""
    workers = node()
    old = grouped(workers)
    workers.fill(1.0)
    workers.observe("n.1.2", Ready("tensorflow", "2"), 2.0)
    workers.join(join("h"), "n.1.2", 3.0)
    assert old.process.kills == 1
    assert workers.slots()[0] == Slot(
        worker="n.1.2", group="h", address="10.0.0.7:9002", standby=None, standby_address=None
    )
    assert workers.engine.ports.closed == []
    assert workers.overruns(1e9)[0].worker == "n.1.2"
    workers.observe("n.1.1", Exited(-9, ""), 4.0)
    assert workers.engine.ports.closed == [9001]
    assert [each.worker for each in workers.all()] == ["n.1.2"]


def test_commands_reach_the_worker(node):
    """Join, then what is to be evaluated."""
    workers = node()
    worker = grouped(workers)
    workers.evaluate(evaluation(), "n.1.1", 1.0)
    assert worker.process.commands == [join(), evaluation()]
    assert (worker.plan, worker.group) == (7, "g")


def test_time_without_a_processor_does_not_count(node):
    """A busy node must not kill a worker that imports, and let it begin again; one that hangs is killed as usual."""
    workers = node()
    (worker,) = workers.fill(0.0)
    for second in range(0, 1000, 5):
        worker.process.waited = {7: second * 0.9, 8: second * 0.1}  # of ten seconds it runs for one
        assert workers.overruns(float(second)) == []
    found = [overrun for second in range(1000, 1031, 5) for overrun in workers.overruns(float(second))]
    assert len(found) in range(1, 5), "soon after it does not wait any more"
    overrun = found[0]
    assert overrun.kind == "join"
    assert "s of them waiting for a processor), more than the 120 s allowed" in overrun.message
    assert overrun.message.endswith("set join_timeout_seconds = 240")


def test_a_worker_that_never_runs_is_given_up_in_the_end(node):
    """After ten times its limit and the time in which it gives way, since every wait has a bound."""
    workers = node()
    (worker,) = workers.fill(0.0)
    for second in range(0, 1501, 5):
        worker.process.waited = {7: float(second)}
        assert workers.overruns(float(second)) == []
    (overrun,) = workers.overruns(1501.0)
    assert overrun.kind == "join"


@pytest.mark.parametrize("phase", ["hello", "reduce", "evaluate"])
def test_a_halted_worker_is_given_up_whatever_it_was_doing(node, phase):
    """It says nothing of itself, also where a rank waits for others; whoever continues it in time loses nothing."""
    workers = node()
    worker = grouped(workers)
    workers.observe("n.1.1", Phase(WorkerPhase(phase), 7), 0.0)
    workers.observe("n.1.1", Halted(halted=True), 1.0)
    workers.observe("n.1.1", Halted(halted=False), 5.0)
    assert workers.overruns(12.0) == []
    workers.observe("n.1.1", Halted(halted=True), 20.0)
    assert workers.overruns(30.0) == []
    (overrun,) = workers.overruns(30.5)
    assert (overrun.worker, overrun.kind) == ("n.1.1", "stalled")
    assert overrun.message.startswith("was stopped by a signal (SIGSTOP?) for 10 s, more than the 10 s allowed; ")
    assert overrun.message.endswith("suspended_timeout_seconds = 20")
    workers.kill(worker)
    assert workers.overruns(1e9) == []


def test_killing_groups(node):
    """The workers of one group, or of all groups but one; standbys are left alone."""
    workers = node(("0", "1"))
    workers.fill(0.0)
    for worker, group in (("n.1.1", "g"), ("n.1.2", "h")):
        workers.observe(worker, Ready("tensorflow", "2"), 0.0)
        workers.join(join(group), worker, 0.0)
        workers.observe(worker, Joined(group, "t", {}), 0.5)
    workers.fill(1.0)
    kills = lambda: [each.process.kills for each in workers.all()]  # noqa: E731
    workers.kill_group("g")
    assert kills() == [1, 0, 0, 0]
    workers.kill_group(other_than="g")
    assert kills() == [1, 0, 1, 0]


def test_statuses(node):
    """Show people a worker at work."""
    workers = node()
    grouped(workers)
    workers.observe("n.1.1", Phase(WorkerPhase.EVALUATE, 7), 0.0)
    workers.observe("n.1.1", Progress(7, 3, 9), 0.0)
    (status,) = workers.statuses()
    assert (status.worker, status.pid, status.state, status.batches, status.total_batches) == (
        "n.1.1",
        101,
        "evaluate",
        3,
        9,
    )


def test_probe_tries_the_task_beside_the_slots(node):
    """It is a process of its own, never in a slot, and its end frees its port."""
    workers = node()
    workers.probe(0.0)
    workers.probe(1.0)
    (probe,) = workers.all()
    assert workers.is_probe(probe.worker)
    assert not workers.is_probe("n.1.9")
    assert workers.slots() == (Slot(worker=None, group=None, address=None, standby=None, standby_address=None),)
    workers.observe(probe.worker, Exited(0, ""), 2.0)
    assert list(workers.all()) == []
    assert workers.engine.ports.closed == [9001]


def test_idle_workers_leave_the_gpu(node):
    """Those idle since the given time, not those at work."""
    workers = node(("0", "1"))
    workers.fill(0.0)
    for worker in ("n.1.1", "n.1.2"):
        workers.observe(worker, Ready("tensorflow", "2"), 0.0)
        workers.join(join(), worker, 0.0)
        workers.observe(worker, Joined("g", "t", {}), 10.0)
    workers.observe("n.1.2", Phase(WorkerPhase.EVALUATE, 7), 10.0)
    workers.release(9.0)
    assert not any(each.killed for each in workers.all())
    workers.release(10.0)
    assert [each.killed for each in workers.all()] == [True, False]


def test_strangers_are_not_heard(node):
    """A report of a worker that is no longer ours changes nothing."""
    workers = node()
    workers.observe("n.0.9", Ready("tensorflow", "2"), 0.0)
    assert list(workers.all()) == []


def test_group_id_is_of_workers_in_order():
    """The same workers in the same order are the same group, wherever they are."""
    one, two = Member(0, "a", "a.1.1", "x:1"), Member(1, "b", "b.1.1", "y:1")
    assert group_id([one, two]) == group_id([one, Member(1, "c", "b.1.1", "z:2")])
    assert group_id([one, two]) != group_id([two, one])
    assert group_id([one]) != group_id([one, two])


class Cluster:
    """An engine that grants a machine when a test says so."""

    slots, granted = 2, False

    def __init__(self):
        self.placed = []

    def place(self, *_, **__):
        """Note a worker, which has no address yet."""
        process = FakeProcess(pid=0, environment={})
        placed = SimpleNamespace(process=process, address="", host=None, phase=WorkerPhase.PLACE, close=lambda: None)
        self.placed.append(placed)
        return placed

    def grant(self, number, host):
        """Give a worker its machine."""
        self.placed[number].address, self.placed[number].host = f"{host}:1", host


def test_a_wait_for_a_machine_has_no_limit_and_no_slot():
    """A cluster may need an hour; the heartbeat lists a slot once it has a machine, so that no group waits for it."""
    engine = Cluster()
    workers = WorkerPool(engine=engine, bounds=BOUNDS, name="n.1", post=print)
    workers.fill(0.0)
    assert workers.overruns(1e9) == []
    assert workers.slots() == ()
    engine.grant(1, "10.0.0.9")
    workers.observe("n.1.2", Phase(WorkerPhase.IMPORT), 3600.0)
    workers.observe("n.1.2", Ready("torch", "2"), 3601.0)
    slot = Slot(worker=None, group=None, address=None, standby="n.1.2", standby_address="10.0.0.9:1", host="10.0.0.9")
    assert workers.slots() == (slot,)
    workers.observe("n.1.2", Exited(-9, ""), 3602.0)
    assert workers.slots() == ()


def test_the_import_on_a_machine_has_its_limit():
    """It begins when the machine is there."""
    engine = Cluster()
    workers = WorkerPool(engine=engine, bounds=BOUNDS, name="n.1", post=print)
    workers.fill(0.0)
    engine.grant(0, "10.0.0.9")
    workers.observe("n.1.1", Phase(WorkerPhase.IMPORT), 3600.0)
    assert workers.overruns(3719.0) == []
    assert [overrun.worker for overrun in workers.overruns(3721.0)] == ["n.1.1"]
