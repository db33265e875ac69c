"""Worker processes that compute nothing but behave as real ones: they join, meet in collectives, save, hang and die.

A collective completes when every rank of the group has entered its own n-th one, and not before: so ranks of a group
that are told different plans meet in the hello, as real ones would, and find it out there. If one of them is gone the
others wait; some time later they notice, or never do.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from sidecar.daemon.workers.process import Exited
from sidecar.protocol.messages import Check, Checked, Done, Evaluate, Failed, Join, Joined, Phase, Progress, Ready
from sidecar.protocol.records import EvalData, Result, Value
from sidecar.protocol.states import WorkerPhase
from simulation.disk import Saved, is_bad, quality
from simulation.faults import befall

SIGKILL = -9
WAITING = frozenset({"standby", "idle", "hello", "reduce"})
"""Phases in which a process does nothing that could be judged: it waits for a command, or for its peers."""


@dataclass(frozen=True, slots=True)
class Said:
    """Hold what a rank brings into a collective."""

    plan: int
    digest: str  # of the checkpoint it was told
    restored: str  # of what it restored
    task: str
    profile: str
    worker: str
    code: str

    @property
    def compared(self) -> tuple[int, str, str, str, str]:
        """Return what the ranks compare before they evaluate."""
        return self.plan, self.digest, self.task, self.profile, self.code


@dataclass(slots=True)
class Cluster:
    """The processes of one group, wherever they run."""

    size: int
    ranks: dict[int, "SimulatedProcess"] = field(default_factory=dict)
    collectives: list[dict[int, Said | None]] = field(default_factory=list)
    tells: bool = True  # its runtime notices that a peer went, sooner or later


class SimulatedProcess:
    """One worker process. Everything it does is an event of its own life."""

    def __init__(self, simulation, life, worker: str, pid: int) -> None:
        self.simulation, self.life, self.host = simulation, life, life.host
        self.worker, self.pid = worker, pid
        self.over = False
        self.ended_at = 0.0
        self.hangs = False  # whatever it does next never ends
        self.hung_since: float | None = None
        self.phase = "import"
        self.stopped_until = 0.0
        self.join: Join | None = None
        self.cluster: Cluster | None = None
        self.task = ""
        self.joined = False
        self.saving: str | None = None
        self.plan = 0  # the one that it evaluates, or did last
        self._commands: list = []
        self._busy = True
        self._entered = 0
        self.then: Callable[[list[Said | None]], None] | None = None
        self._told_at = 0.0
        self._after(0.3, 1.0, self._imported)

    # -- group.process.Process ----------------------------------------------------------------------------------------

    def waits(self) -> dict[int, float]:
        """Return that no thread of the worker waits."""
        return {}

    def send(self, command) -> None:
        """Hand a command to the worker, which begins it if it is idle."""
        if isinstance(command, Join):
            if self.join is not None:
                self.simulation.violate("one group in a life", f"{self.worker} was told to join a second group")
            self.join = command
            self.simulation.joined(self, command)
        self._commands.append(command)
        if not self._busy:
            self._busy = True
            self._after(0.001, 0.01, self._next)

    def kill(self) -> None:
        """End the worker by SIGKILL."""
        self.end(SIGKILL)

    # -- what befalls it ----------------------------------------------------------------------------------------------

    def resumes_at(self) -> float:
        """As lives do: until when it is stopped."""
        return max(self.stopped_until, self.host.workers_stopped_until)

    def end(self, status: int) -> None:
        """It is gone; its peers wait for it in vain."""
        if self.over:
            return
        self.over, self.ended_at = True, self.simulation.scheduler.now
        self._report(Exited(status, ""), 0.05)
        self._abandon()

    def fail(self, kind: str) -> None:
        """It finds something wrong and says so; it does nothing any more, so its peers wait in vain."""
        if self.over or self.hangs or self.join is None:
            return
        self._failed(kind, "as it was told to by the seed")

    # -- its life -----------------------------------------------------------------------------------------------------

    def _after(self, least: float, most: float, do: Callable[[], None]) -> None:
        scheduler = self.simulation.scheduler
        when = scheduler.now + self.simulation.random.uniform(least, most) * min(self.host.slowness, 4.0)

        def step() -> None:
            if self.host.aimed_at_workers and self.cluster is not None and self.simulation.random.random() < 0.2:
                befall(self, self.host.aimed_at_workers.pop(0))
            if self.over:
                return
            if self.resumes_at() > scheduler.now:
                scheduler.at(self.resumes_at(), step, self)
            elif self.hangs:
                if self.hung_since is None and self.phase not in WAITING:
                    self.hung_since = self.simulation.scheduler.now
            else:
                do()

        scheduler.at(when, step, self)

    def _report(self, report, delay: float = 0.01) -> None:
        """One pipe: reports arrive in the order in which they were sent."""
        if isinstance(report, Phase):
            self.phase = report.phase
        scheduler, life = self.simulation.scheduler, self.life
        self._told_at = max(self._told_at + 1e-6, scheduler.now + delay * self.simulation.random.random())
        scheduler.at(self._told_at, lambda: life.receive((self.worker, report)))

    def _imported(self) -> None:
        if self.host.imports_fail:
            self.end(SIGKILL)  # as if memory were short: an exit of its own would say that the task cannot be used
            return
        self._report(Ready("tensorflow", "2"))
        self.phase = "standby"
        self._next()

    def _next(self) -> None:
        if not self._commands:
            self._busy = False
            return
        command = self._commands.pop(0)
        if isinstance(command, Check):
            self._report(Phase(WorkerPhase.IMPORT))
            self._after(0.1, 0.5, self._checked)
        elif isinstance(command, Join):
            self._report(Phase(WorkerPhase.JOIN))
            self.cluster = self.simulation.cluster(command)
            self.cluster.ranks[command.rank] = self
            self._after(0.05, 0.3, lambda: self._meet(None, self._built))
        else:
            self._evaluate(command)

    def _checked(self) -> None:
        spec = self.host.spec
        self._report(Checked(spec.task, ("test",), {"profile": spec.profile if spec.shows_profile else "x86"}))
        self._next()

    def _built(self, _) -> None:
        self._report(Phase(WorkerPhase.IMPORT))
        self.task = self.host.spec.task
        self._report(Phase(WorkerPhase.BUILD))

        def done() -> None:
            assert self.join is not None
            self.joined = True
            self.phase = "idle"
            self._report(Joined(self.join.group, self.task, {"profile": self.host.spec.profile}))
            self._next()

        self._after(0.1, 0.5, done)

    # -- an evaluation: restore, hello, evaluate, save, reduce ---------------------------------------------------------

    def _evaluate(self, command: Evaluate) -> None:
        self.plan = command.plan
        self._report(Phase(WorkerPhase.RESTORE, command.plan))
        self._after(0.05, 0.4, lambda: self._restore(command))

    def _restore(self, command: Evaluate) -> None:
        content = self.simulation.content_at(command.path, self.host.name)
        if self.host.is_wrong(f"hangs:{command.checkpoint.name}"):
            self.hangs, self.hung_since = True, self.simulation.scheduler.now
            return
        if self.host.trouble_with(f"pin:{command.checkpoint.folder}") is not None:
            self._failed("storage", f"cannot read {command.path}: Input/output error", command.plan)
            return
        if self.simulation.away_until > self.simulation.scheduler.now:
            content = None
        if content is None:
            self._failed("vanished", f"{command.path} is gone", command.plan)
            return
        if is_bad(content, self.host.name):
            self._failed("corrupt", f"{command.path}: bad checksum", command.plan)
            return
        wrong = self.host.name in content.wrong_on
        restored = f"{content.digest} with a bit that fell over on {self.host.name}" if wrong else content.digest
        spec, digest = self.host.spec, command.checkpoint.digest
        said = Said(command.plan, digest, restored, self.task, spec.profile, self.worker, spec.code)
        self._report(Phase(WorkerPhase.HELLO, command.plan))
        self._meet(said, lambda all_said: self._heard(command, said, all_said))

    def _heard(self, command: Evaluate, said: Said, all_said: list[Said]) -> None:
        told = [each.compared if each else None for each in all_said]
        if len(set(told)) > 1:
            self._failed("mismatch", "ranks are not about to do the same", command.plan, sides(told))
            return
        self._report(Phase(WorkerPhase.EVALUATE, command.plan))
        self._batch(command, said, self.simulation.random.randint(1, 3))

    def _batch(self, command: Evaluate, said: Said, left: int) -> None:
        if left:
            self._report(Progress(command.plan, 4 - left, None))
            self._after(0.05, 0.6, lambda: self._batch(command, said, left - 1))
            return
        self._report(Phase(WorkerPhase.SAVE, command.plan))
        self._after(0.02, 0.2, lambda: self._save(command, said))

    def _save(self, command: Evaluate, said: Said) -> None:
        folder = self.simulation.below_run(command.save_to)
        self.simulation.disk.saves[folder] = Saved(self.worker)
        self.saving = folder
        self._after(0.05, 0.5, lambda: self._saved(command, said, folder))

    def _saved(self, command: Evaluate, said: Said, folder: str) -> None:
        """A rank enters the last collectives only with its saves durable."""
        if folder in self.simulation.disk.saves:  # else the storage came back without it, which fsync tells
            self.simulation.disk.saves[folder].durable = True
            self.saving = None
            self._report(Phase(WorkerPhase.REDUCE, command.plan))
            self._meet(said, lambda all_said: self._compare(command, said, all_said))
        else:
            self._failed("storage", f"cannot write {folder}: Input/output error", command.plan)

    def _compare(self, command: Evaluate, said: Said, all_said: list[Said]) -> None:
        if len({each.restored if each else None for each in all_said}) > 1:
            restored = [each.restored if each else None for each in all_said]
            self._failed("mismatch", "ranks restored different values", command.plan, sides(restored))
            return
        self._meet(said, lambda _: self._done(command, all_said))

    def _done(self, command: Evaluate, all_said: list[Said]) -> None:
        assert self.join is not None
        self.simulation.finished.add(command.plan)
        token = float(self.simulation.note_result(tuple(all_said)))
        if self.host.lies:
            token += 0.5
        value = Value(value=token, hex=token.hex())
        result = Result(
            group=self.join.group,
            workers=len(self.join.members),
            examples={"test": 10},
            metrics={"test": {"accuracy": value} | self._quality(command)},
            phases={},
            variables=all_said[0].restored,
            task=self.task,
            profile={"profile": self.host.spec.profile},
            saves=(),
            data={"test": EvalData(self._fingerprint(command.plan), 1, "batches")},
        )
        self.phase = "idle"
        self.simulation.done.setdefault(command.plan, {})[self.worker] = self.simulation.scheduler.now
        self._report(Done(plan=command.plan, rank=self.join.rank, result=result, traces=1, builds=1), 0.2)
        self._next()

    def _fingerprint(self, plan: int) -> str:
        """Return that of the data at the time of a plan: all nodes read the same files."""
        lasts = max(host.spec.settings.data_last for host in self.simulation.hosts)
        return f"data {plan // lasts if lasts else 0}"

    def _quality(self, command: Evaluate) -> dict[str, Value]:
        """Return how good a checkpoint is, if its best ones are exported."""
        settings = [host.spec.settings for host in self.simulation.hosts]
        if not any(each.export_best for each in settings):
            return {}
        plan = self.simulation.referee.book.plans.get(command.plan)
        if plan is None:
            return {}  # of a run that is gone
        number = quality(plan.checkpoint.digest)
        return {"quality": Value(value=number, hex=number.hex(), goal="max")}

    def _failed(
        self, kind: str, message: str, plan: int | None = None, differ: tuple[tuple[int, ...], ...] | None = None
    ) -> None:
        cause = "seed"
        if differ is not None:
            most = max(map(len, differ))
            cause = "odd" if 2 * most > sum(map(len, differ)) else "even"
        self.simulation.referee.promises.failed_for(self.plan, kind, cause)
        self._report(
            Failed(
                kind=kind, message=message, plan=plan, rank=self.join.rank if self.join else None, sides=differ or ()
            )
        )
        self.hangs, self.phase = True, "idle"  # a real one ends its collectives' runtime, and is of no use any more
        self._abandon()

    # -- collectives --------------------------------------------------------------------------------------------------

    def _meet(self, said: Said | None, then: Callable[[list], None]) -> None:
        """Enter the next collective, go on when all ranks are in it."""
        cluster = self.cluster
        assert cluster is not None
        assert self.join is not None
        self.then, number = then, self._entered
        self._entered += 1
        if number == len(cluster.collectives):
            cluster.collectives.append({})
        there = cluster.collectives[number]
        there[self.join.rank] = said
        nodes = {member.node for member in self.join.members}
        if any(pair <= nodes and number >= least for pair, least in self.simulation.broken_links.items()):
            if number and len(there) == cluster.size:
                self.simulation.stuck.setdefault(self.plan, self.simulation.scheduler.now)
            return
        if len(there) == cluster.size and not any(each.over for each in cluster.ranks.values()):
            all_said = [there[rank] for rank in range(cluster.size)]
            for rank in range(cluster.size):
                cluster.ranks[rank].go_on(all_said)
        elif any(each.over for each in cluster.ranks.values()):
            self.peer_lost()

    def go_on(self, all_said: list) -> None:
        """Continue after a collective, with what each rank said."""
        then, self.then = self.then, None
        assert then is not None
        self._after(0.001, 0.1, lambda: then(all_said))

    def _abandon(self) -> None:
        for process in list(self.cluster.ranks.values()) if self.cluster else ():
            if process is not self and process.then is not None:
                process.peer_lost()

    def peer_lost(self) -> None:
        """The runtime tells that a peer went, sooner or later, or the rank hangs on."""
        assert self.cluster is not None
        if self.cluster.tells and self.simulation.random.random() < 0.8:
            waiting = self.then

            def notice() -> None:
                if self.then is waiting:
                    self._failed("member_lost", "a peer went away")

            self._after(0.2, 4.0, notice)


def sides(said: list) -> tuple[tuple[int, ...], ...]:
    """Return the ranks that said the same, for each thing that was said."""
    found: dict = {}
    for rank, each in enumerate(said):
        found.setdefault(each, []).append(rank)
    return tuple(map(tuple, found.values()))
