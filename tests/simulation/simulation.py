"""One schedule: builds what the scenario says, lets time pass, lets the faults happen, asks the referee."""

import contextlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from unittest.mock import patch

from sidecar.coordination import heartbeats, journal, journal_records, snapshot_store, unique_names
from sidecar.coordination.compaction import Compaction
from sidecar.daemon import request_builder, storage_schedule, storage_thread
from sidecar.daemon.events import FilesChanged, JournalChanged
from sidecar.daemon.state import DaemonState
from sidecar.errors import NodeNameTakenError, RunReplacedError, StorageLostError
from simulation import faults
from simulation.disk import Content, Disk, digest_of
from simulation.invariants import Referee
from simulation.node import Host, Life
from simulation.scenario import AFTER_PLAN, AIMS_FOR, LINGERS, Scenario
from simulation.scheduler import Scheduler
from simulation.storage import plain
from simulation.workers import Cluster

_LOOK_EVERY = 1.0
_MOST_BREAKS = 60  # changes of old plans at which a daemon may be stopped or killed
_AFTERWARDS = 3.0  # what is settled must stay so


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that did not hold, and how."""

    invariant: str
    message: str
    at: float


@dataclass(frozen=True, slots=True)
class Segmenting:
    """How the journal is moved into segments.

    `plans` are in each, `kept` closed ones stay single files. With `all_nodes` not only the publisher does it. With
    `breaks_off` daemons are stopped and killed in the middle of it.
    """

    plans: int
    kept: int
    all_nodes: bool
    breaks_off: bool

    @classmethod
    def of(cls, scenario: Scenario) -> "Segmenting | None":
        """Return how a scenario does it; None: not at all."""
        random = Random(f"{_draws(scenario)}/segments")
        if scenario.shape == "segments":
            return cls(1, 1, all_nodes=False, breaks_off=False)
        plans, kept = random.choice(((1, 1), (1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (0, 0)))
        if plans == 0 or scenario.generation == 1:
            return None
        return cls(plans, kept, random.random() < 0.5, bool(scenario.faults) and random.random() < 0.6)

    def compaction(self, storage, run: str) -> Compaction:
        """Return the compaction of a node. One whose records have another schema reads what it would not move."""
        kept = self.kept if storage.spec.schema == 1 else 10**9
        return Compaction(storage, run, kept_plans=kept, most_plans=self.plans)


@dataclass(slots=True)
class Report:
    """Hold what a schedule came to."""

    scenario: Scenario
    violation: Violation | None
    digest: int
    seconds: float
    steps: int
    plans: int
    outcomes: Counter[str]
    checked: Counter[str]
    counts: Counter[str]
    history: list[str] = field(default_factory=list)


class Simulation:
    """One schedule of one scenario."""

    def __init__(self, scenario: Scenario, *, history: bool = False) -> None:
        self.scenario = scenario
        self.segmenting = Segmenting.of(scenario)
        self.forged: dict[str, bytes] = {}  # records of the journal, by their paths
        self.random = Random(f"{_draws(scenario)}/run")
        self.scheduler = Scheduler(_draws(scenario))
        self.disk = Disk(keeps_names=scenario.bucket)
        self.referee = Referee(self)
        self.latency = scenario.latency
        self.run_dir = Path("/run")
        self.hangs_until = self.troubled_until = 0.0
        self.rewinds_after_create = 0.0  # seconds; 0: not
        self.counts: Counter[str] = Counter()
        self.breaks: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.plans = 0
        self.aimed: list = []  # faults that wait for the next plan
        self.roles: dict[str, str] = {}
        self.said: list = [()]  # what ranks said for each result
        self.clusters: dict = {}
        self.processes: dict = {}
        self.away_until = 0.0  # the mount of the state directory
        self.purged = False  # names of the journal were lost that had been durable
        # Pairs of nodes that do not reach each other's ports, and from which collective on.
        self.broken_links: dict[frozenset[str], int] = {}
        self.stuck: dict[int, float] = {}  # plans whose ranks all wait for each other: since when
        self.done: dict[int, dict[str, float]] = {}  # plans: workers that told their daemon the result, and when
        self.finished: set[int] = set()  # plans of which a rank has the result
        self.found: dict = {}
        self.lives: list[Life] = []
        self.waiters: list = []  # kept to the end: one that is dropped would run its last lines at any moment
        self.violation: Violation | None = None
        self.healed = False
        self.creating: dict[str, float] = {}  # in an object store: when objects were created last, or tried to
        self.history: list[str] | None = [] if history else None
        self.hosts = [Host(self, spec) for spec in scenario.nodes]

    # -- running ------------------------------------------------------------------------------------------------------

    def run(self) -> Report:
        """Let it all happen."""
        scenario, at = self.scenario, self.scheduler.at
        for host in self.hosts:
            at(host.spec.starts_at, host.start)
        for save in scenario.saves:
            at(save.at, lambda save=save: self._save(save))
        if scenario.done_at is not None:
            at(scenario.done_at, self._say_done)
        for fault in scenario.faults:
            at(fault.at, lambda fault=fault: self._begin(fault))
        self._sync()
        idle = patch.object(storage_schedule, "_IDLE_SECONDS", scenario.idle_seconds)
        with _memory_of_records(), idle, self._segmented():
            self.scheduler.run(scenario.quiet_after)
            if self.violation is None:
                self._heal()
                self._wait_for_all_to_be_settled()
                self.referee.journal_stands()
            if self.violation is None:
                self.referee.promises.at_the_end()
        return Report(
            scenario,
            self.violation,
            self.scheduler.digest ^ hash(tuple(sorted(map(_number, self.disk.files.values())))),
            self.scheduler.now,
            self.scheduler.steps,
            self.plans,
            self.outcomes,
            self.referee.checked,
            self.counts,
            self.history or [],
        )

    @contextlib.contextmanager
    def _segmented(self):
        """Move the journal into segments, as small as schedules are short."""
        segmenting = self.segmenting or Segmenting(1, 10**9, all_nodes=False, breaks_off=False)
        publishes = DaemonState.publishes if not segmenting.all_nodes else lambda *_: True

        def closed(builder, now):
            return (
                builder.state.history.through if builder.is_between_plans() and publishes(builder.state, now) else None
            )

        with (
            patch.object(storage_thread, "Compaction", segmenting.compaction),
            patch.object(storage_thread, "_COMPACTION_PAUSE_SECONDS", 2.0),
            patch.object(request_builder.RequestBuilder, "_closed", closed),
        ):
            yield

    def stopped_within(self, host: Host) -> bool:
        """Return whether a daemon was stopped so often that it would only stand still."""
        self.breaks[host.name] += 1
        return self.breaks[host.name] > _MOST_BREAKS

    def kill(self, life: Life, again_at: float) -> None:
        """A daemon is killed in the middle of what it does, and starts again."""
        host = life.host
        if life.over or self.healed:
            return
        host.troubled_until = max(host.troubled_until, again_at + LINGERS)
        host.daemon_troubled_until = host.troubled_until
        self.note(lambda: f"{life.name} is killed while it moves old plans")
        life.end(leaves_writes=self.random.random() < 0.5)
        self.scheduler.at(again_at, host.start)

    def removed(self, path: str, data: bytes, life: Life) -> None:
        """A single file of the journal was removed."""
        self.note(lambda: f"{life.name} removes {path}")
        self.referee.removed(path, data, life)

    def _heal(self) -> None:
        """Nothing goes wrong any more, and people start again what does not run."""
        self.note(lambda: "all faults are over")
        self.hangs_until, self.healed = 0.0, True
        for host in self.hosts:
            faults.heal(host)
            host.troubled_until = max(host.troubled_until, self.scheduler.now)
            host.daemon_troubled_until = max(host.daemon_troubled_until, self.scheduler.now)
        self.troubled_until = self.scheduler.now
        for host in self.hosts:
            self._start_again(host)

    def _start_again(self, host: Host) -> None:
        """Start a daemon, unless one of that name runs."""
        if not any(other.runs for other in self.hosts if other.name == host.name):
            host.start()

    def _wait_for_all_to_be_settled(self) -> None:
        end = self.scheduler.now + self.bound()
        book = self.referee
        while self.violation is None and self.scheduler.now < end:
            self.scheduler.run(self.scheduler.now + _LOOK_EVERY)
            if not book.unsettled() and book.book.open is None and self._one_each() and book.run is not None:
                self.scheduler.run(self.scheduler.now + _AFTERWARDS)
                if not book.unsettled() and book.book.open is None:
                    break
        if (
            self.violation is None
            and not self.purged
            and self._ends()
            and book.run is not None
            and self._all_have_turns()
        ):
            self._check_all_end(end)
        elif self.violation is None and not self.purged and (self.could_go_on() or not book.unsettled()):
            left = book.unsettled()
            book.check("all is settled", not left, lambda: f"{left} after {self.bound():.0f} s without faults")
            is_open = book.book.open is not None and self.could_go_on()
            book.check("no plan stays open", not is_open, lambda: f"{book.book.open}")
            book.check(
                "one daemon per name", self._one_each(), lambda: str([each.name for each in self.running_lives()])
            )
            end = self.scheduler.now + self.bound()
            while self.violation is None and self.scheduler.now < end and book.wrong_exports():
                self.scheduler.run(self.scheduler.now + _LOOK_EVERY)
            wrong = book.wrong_exports()
            book.check(
                "the best are exported", wrong is None, lambda: f"{wrong} after {self.bound():.0f} s without faults"
            )
        else:
            self.counts["liveness not asked for"] += self.violation is None

    def _ends(self) -> bool:
        """Return whether what ends the run comes, for those who start again, too.

        The last step does not if its checkpoint is gone or broken by now: the journal of the past ends nothing.
        """
        settings = self.hosts[0].spec.settings
        if self.disk.done_at is not None or settings.stop_idle is not None:
            return True
        known = max((life.host.spec.schema for life in self.running_lives()), default=1)
        saves = [save for save in self.scenario.saves if save.step == settings.stop_after_step]
        last = {(save.name, digest_of(save.content)) for save in saves if self.referee.counts(save)}
        there = {each.key for each in self.disk.all() if each.schema <= known} - self.referee.corrupt.keys()
        return bool(last & there)

    def _all_have_turns(self) -> bool:
        """Return whether every node could be listed: where they differ, some may wait for that for ever."""
        kinds = {(*host.spec.kind, host.spec.settings.min_workers) for host in self.hosts}
        there = sum(host.spec.replicas for host in self.worker_nodes())
        return len(kinds) == 1 and there >= self.hosts[0].spec.settings.min_workers

    def worker_nodes(self) -> list[Host]:
        """Return the nodes that evaluate, each as one host.

        Two daemons under one name are one node: at most one of them stays, and what the other one was does not count.
        """
        nodes: dict[str, Host] = {}
        for host in self.hosts:
            if not host.gone and (host.name not in nodes or host.ended > nodes[host.name].ended):
                nodes[host.name] = host
        return [host for host in nodes.values() if host.role == "worker"]

    def _check_all_end(self, end: float) -> None:
        """The run is over, and so is every daemon that evaluates."""
        book = self.referee
        while self.violation is None and self.scheduler.now < end and self.evaluating_lives():
            self.scheduler.run(self.scheduler.now + _LOOK_EVERY)
        if self.violation is None:
            left = [life.name for life in self.evaluating_lives()]
            book.check("all end", not left, lambda: f"{left} run on after {self.bound():.0f} s without faults")
            # What was saved when all had said so came too late, and so did what none of them had the time to see.
            seen = [life.ended_run_at - 2 * life.host.spec.settings.sweep - 1.0 for life in self.lives]
            left = book.unsettled(before=max(seen, default=float("inf")))
            book.check("all is settled", not left, lambda: f"{left} when all had ended")

    def evaluating_lives(self) -> list[Life]:
        """Return the daemons of worker nodes that run."""
        return [life for life in self.running_lives() if life.role == "worker"]

    def bound(self) -> float:
        """Seconds within which all must be settled once faults stopped: a sum of bounds that are settings."""
        settings = [host.spec.settings for host in self.hosts]
        longest = max(
            each.plan_cap + 9 * each.lease + each.join + each.visibility + len(settings) * each.patience
            for each in settings
        )
        longest += settings[0].stop_idle or 0.0
        each_try = 2 * settings[0].backoff_last + 15.0 + settings[0].join
        return longest + each_try * (len(self.scenario.saves) * (settings[0].max_attempts + 1) + 2)

    def could_go_on(self) -> bool:
        """Return whether enough workers of one kind run that can read the journal."""
        alike: Counter = Counter()
        for life in self.running_lives():
            if life.role == "worker" and life.host.spec.schema >= self.referee.newest_schema:
                alike[life.host.spec.kind] += life.host.spec.replicas
        needed = max(host.spec.settings.min_workers for host in self.hosts)
        return bool(alike) and max(alike.values()) >= needed

    def running_lives(self) -> list[Life]:
        """Return the daemons that run."""
        return [host.life for host in self.hosts if host.runs and host.life is not None]

    def _one_each(self) -> bool:
        newest = self.referee.newest_schema  # who cannot read that stands by, and writes nothing
        names = Counter(life.host.name for life in self.running_lives() if life.host.spec.schema >= newest)
        return max(names.values(), default=1) == 1

    # -- the world ----------------------------------------------------------------------------------------------------

    def _save(self, save) -> None:
        self.referee.promises.note()
        content = Content(save.name, digest_of(save.content), save.step, self.scheduler.now, schema=save.schema)
        before = self.disk.checkpoints.get(save.name)
        if save.begins:
            self.note(lambda: f"a second training begins: {list(self.disk.checkpoints)} are deleted")
            self.referee.gone |= {each.key for each in self.disk.checkpoints.values()}
            self.disk.checkpoints.clear()
        known = dict(self.disk.checkpoints)
        gone = self.disk.write(content, self.scenario.keep)
        self.referee.gone |= {known[name].key for name in gone} | ({before.key} if before else set())
        self.note(
            lambda: f"the trainer saves {save.name} ({content.digest[:6]})" + (f", deletes {gone}" if gone else "")
        )
        self.referee.promises.changed()
        self.tell(FilesChanged)

    def _say_done(self) -> None:
        self.note(lambda: "the trainer says that it is done")
        self.disk.done_at = self.scheduler.now
        self.tell(FilesChanged)

    def tell(self, event, but=None) -> None:
        """A file event arrives at all nodes that look, if there are any."""
        for life in self.running_lives() if self.scenario.events else ():
            if life.role == "worker" and life is not but:
                when = self.scheduler.now + 0.02 * self.random.random()
                self.scheduler.at(when, lambda life=life: life.receive(event()), life)

    def _begin(self, fault) -> None:
        """A fault that is aimed waits for a plan; if none comes it happens anyway."""
        if not fault.aimed or fault.kind.startswith(("worker_", "rewind")):
            self._strike(fault)
            return
        self.aimed.append(fault)
        self.scheduler.at(self.scheduler.now + AIMS_FOR, lambda: fault in self.aimed and self._strike(fault))

    def _strike(self, fault) -> None:
        if fault in self.aimed:
            self.aimed.remove(fault)
        self.counts[fault.kind] += 1
        self.note(lambda: str(fault))
        self.referee.promises.struck(fault)
        host = self.hosts[fault.node]
        if fault.kind not in faults.BORNE:
            host.troubled_until = max(host.troubled_until, self.scheduler.now + fault.length + LINGERS)
            if not fault.kind.startswith("worker"):
                host.daemon_troubled_until = host.troubled_until
        if fault.kind in faults.EVERYWHERE:
            self.troubled_until = max(self.troubled_until, self.scheduler.now + fault.length + LINGERS)
        faults.STRIKE[fault.kind](self, host, fault)
        self.referee.promises.changed()

    def _sync(self) -> None:
        self.disk.sync()
        self.scheduler.at(self.scheduler.now + self.scenario.sync_every, self._sync)

    def add(self, spec, role: str) -> Host:
        """Add one more machine to the simulation."""
        host = Host(self, spec)
        host.role = role
        self.hosts.append(host)
        return host

    def stop_daemon(self, host: Host, seconds: float, where: str = "") -> None:
        """SIGSTOP, and SIGCONT so much later."""
        host.stopped_until = max(host.stopped_until, self.scheduler.now + seconds)
        host.troubled_until = max(host.troubled_until, host.stopped_until + LINGERS)
        host.daemon_troubled_until = host.troubled_until
        self.note(lambda: f"the daemon of {host.spec.key} is stopped for {seconds:.1f} s {where}")

    def content_at(self, path: str, node: str) -> Content | None:
        """Return what lies on a node where a worker is told to restore from."""
        return self.disk.pins_of(node).get(Path(path).parent.name)

    def below_run(self, path: str) -> str:
        """A path relative to the state directory."""
        return path.removeprefix(f"{self.run_dir}/")

    def cluster(self, join) -> Cluster:
        """The group that a worker is told to join."""
        if join.group not in self.clusters:
            self.clusters[join.group] = Cluster(len(join.members), tells=self.random.random() < 0.5)
        return self.clusters[join.group]

    def note_result(self, said: tuple) -> int:
        """Remember what the ranks said; returns the number that stands for it."""
        self.said.append(said)
        return len(self.said) - 1

    # -- told by fakes ------------------------------------------------------------------------------------------------

    def appeared(self, path: str, data: bytes, life: Life) -> None:
        """A name was created."""
        self.note(lambda: f"{life.name} creates {path}: {_short(data)}")
        if path.startswith("segments/"):
            self.referee.appeared(path, data, life)
            return
        if self.rewinds_after_create and not path.startswith("run"):
            when, self.rewinds_after_create = self.scheduler.now + self.rewinds_after_create, 0.0
            life.storage.syncs_for = 1.5
            self.scheduler.at(when, lambda: faults.rewind(self))
        if path.startswith("plans/"):
            self.plans += 1
            for fault in self.aimed:
                when = self.scheduler.now + AFTER_PLAN * self.random.random()
                self.scheduler.at(when, lambda fault=fault: self._strike(fault))
            self.aimed.clear()
        if path.startswith("outcomes/"):
            if path in self.forged:
                self.outcomes["void"] += 1
            else:
                outcome = journal.loads(journal.Outcome, plain(data))
                self.outcomes[outcome.kind or outcome.status] += 1
        self.referee.appeared(path, data, life)
        if path.startswith(("plans/", "outcomes/")):
            self.tell(JournalChanged, life)

    def proposes(self, life: Life, plan) -> None:
        """A daemon decided to create a plan."""
        self.note(lambda: f"{life.name} decides plan {plan.plan}")
        self.referee.proposes(life, plan)

    def pinned(self, content: Content, folder: str, life: Life) -> None:
        """Note that a daemon has pinned a checkpoint."""
        self.note(lambda: f"{life.name} pins {folder}")
        self.referee.pinned(content)
        self.referee.promises.changed()

    def unpinned(self, content: Content, folder: str, life: Life, *, exported: bool = False) -> None:
        """A pin went, or became an export."""
        self.note(lambda: f"{life.name} {'exports' if exported else 'lets go'} {folder}")
        self.referee.unpinned(content, life, exported=exported)
        self.referee.promises.changed()

    def unexported(self, content: Content, folder: str, life: Life) -> None:
        """Note that a daemon has removed an export."""
        self.note(lambda: f"{life.name} removes the export {folder}")
        self.referee.unexported(content, life)
        self.referee.promises.changed()

    def tidied(self, folders, life: Life) -> None:
        """A daemon removed saves."""
        self.referee.tidied(folders, life)
        for folder in [each for each in self.disk.saves if each.startswith(tuple(f"{each}/" for each in folders))]:
            del self.disk.saves[folder]

    def joined(self, process, command) -> None:
        """A worker was told to join."""
        self.counts["joins"] += 1
        self.note(lambda: f"{process.worker} joins {command.group} as rank {command.rank}")

    def turned(self, life: Life) -> None:
        """Note that the loop of a daemon has made a turn."""
        self.counts["turns"] += 1
        self.referee.turned(life)

    def shown(self, life: Life, _, history) -> None:
        """A daemon showed its status."""
        self.referee.shown(life, history)

    def crashed(self, life: Life, error: Exception) -> None:
        """Report a violation, since the loop of a daemon raised an exception."""
        self.violate("daemons do not crash", f"{life.name}: {type(error).__name__}: {error}")

    def exited(self, life: Life, exit_) -> None:
        """A daemon ended by itself; its supervisor starts it again, unless the exit code says not to."""
        self.note(lambda: f"{life.name} ends: {exit_}")
        self.counts[f"exit: {exit_ if isinstance(exit_, int) else type(exit_).__name__}"] += 1
        self.referee.exited(life, exit_)
        restarts = not isinstance(exit_, NodeNameTakenError | StorageLostError | int)
        if isinstance(exit_, RunReplacedError):  # the process builds its daemon anew
            restarts = True
        if restarts or (isinstance(exit_, StorageLostError) and self.healed):  # by its supervisor, or by a person
            self.scheduler.at(self.scheduler.now + 2.0, life.host.start)
        elif self.healed and life.terminated:  # a signal from before: it was to be started again, and is gone only now
            self.scheduler.at(self.scheduler.now, lambda: self._start_again(life.host))

    def violate(self, invariant: str, message: str) -> None:
        """An invariant does not hold: stop here."""
        if self.violation is None:
            self.violation = Violation(invariant, message, self.scheduler.now)
            self.scheduler.stopped = True
            self.note(lambda: f"VIOLATION of {invariant!r}: {message}")

    def note(self, line) -> None:
        """Add a line to the history, if anybody wants one."""
        if self.history is not None:
            self.history.append(f"t={self.scheduler.now:8.3f}  {line()}")


def simulate(scenario: Scenario, *, history: bool = False) -> Report:
    """Run a scenario to its end, and return the report."""
    return Simulation(scenario, history=history).run()


@contextlib.contextmanager
def _memory_of_records():
    """All nodes of a simulation live in one process: what one of them wrote is not parsed by each of the others.

    Records are frozen, and what is written is read back as an equal record, as `tests/protocol/test_records.py` and
    `tests/test_snapshot.py` show. Bytes that nobody wrote so, torn ones, are parsed.
    """
    dumps, loads, known = journal.dumps, journal.loads, {}

    def remembered_dumps(record):
        data = dumps(record)
        known[type(record), data] = record
        return data

    def remembered_loads(cls, data):
        found = known.get((cls, data))
        if found is None:
            found = known[cls, data] = loads(cls, data)
        return found

    for module in (journal, heartbeats, unique_names, snapshot_store):
        module.dumps, module.loads = remembered_dumps, remembered_loads
    journal_records.dumps = remembered_dumps
    try:
        yield
    finally:
        for module in (journal, heartbeats, unique_names, snapshot_store):
            module.dumps, module.loads = dumps, loads
        journal_records.dumps = dumps


def _draws(scenario: Scenario) -> str:
    """Return what the delays and coincidences of a run are drawn from."""
    if scenario.generation == 1 and scenario.variation == 0:
        return str(scenario.seed)
    return f"{scenario.generation}/{scenario.seed}/{scenario.variation}"


def _number(data: bytes) -> int:
    return int.from_bytes(data, "little") % (2**61 - 1)


def _short(data: bytes) -> str:
    text = data.decode(errors="replace")
    return text if len(text) <= 700 else f"{text[:700]}…"
