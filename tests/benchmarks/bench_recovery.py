"""Something is lost in the middle of an evaluation: how long until that is noticed, and until the next one goes on."""

import contextlib
import os
import signal
import statistics
import threading
import time
from datetime import datetime

import machine
from disk import Disk
from link import HOSTS, Link
from programs import POLL_SECONDS, Child, Daemon, scratch, wait_until
from table import Figure, Table

from sidecar.coordination.heartbeats import Heartbeats
from sidecar.coordination.journal import outcome_path, plan_path, read_history
from sidecar.coordination.journal_state import Closed
from sidecar.coordination.storage import PosixStorage

LEASE = 10.0  # the default, as everything here
HANG_SECONDS = 30.0
ACQUAINTANCE_SECONDS = 4.0  # a settle and half a beat: all have seen that all stand by
WITHOUT_EVENTS = ("unshare", "-Ur", "sh", "-c", 'echo 0 >/proc/sys/user/max_inotify_instances; exec "$@"', "sh")
HOW = """Two daemons with default settings, a worker process, a core and a thread each, one run. A checkpoint is saved,
and once both workers are in the middle of its evaluation (2.5 ms of sleep for each of 800 examples, shared by two) one
thing happens. *Noticed*: the failed outcome of the plan is in the journal. *Next plan*: so is the plan that follows.
*Evaluating*: a worker of that one has begun with its own data. All read one clock, every 5 ms. Seconds, the slowest of
all rounds, and in brackets the median. The link between partitioned workers drops every packet, storage stays
reachable. Of the proposer that is killed while it idles, a checkpoint is saved at that moment."""
TITLE = "Recovery: how soon a loss is noticed, how soon the work goes on"
COLUMNS = ("", "rounds", "noticed", "next plan", "evaluating")
BARE = "worker killed, no standbys"


def measure(quick):
    if os.geteuid() != 0:
        raise RuntimeError("network namespaces and a disk of its own need root")
    rounds, plans = (1, 3) if quick else (2, 20)
    found = {}
    with scratch() as folder, contextlib.ExitStack() as stack:
        saver = stack.enter_context(Child("saver.py", "keras", "dense", folder=folder))
        with Run(folder / "plain", saver) as run:
            seen = run.seen(plans)
            for name, fault in FAULTS.items():
                found[name] = [run.suffer(fault) for _ in range(rounds)]
            found["proposer killed, idle"] = [run.lose_the_proposer() for _ in range(rounds)]
        with Link() as link:
            ends = [{"before": link.within(number), "options": ("--host", HOSTS[number])} for number in range(2)]
            with Run(folder / "parted", saver, ends) as run:
                found["workers partitioned"] = [run.suffer(lambda *_: _part(link)) for _ in range(rounds)]
        with Run(folder / "bare", saver, standby=False) as run:
            found[BARE] = [run.suffer(kill_worker) for _ in range(rounds)]
        torch_saver = stack.enter_context(Child("saver_torch.py", "dense_torch", folder=folder))
        with Run(folder / "torch", torch_saver, task="marked_torch.py") as run:
            for name in ("worker killed", "worker stopped"):
                found[f"PyTorch: {name}"] = [run.suffer(FAULTS[name]) for _ in range(rounds)]
        with Run(folder / "eventless", saver, [{"before": WITHOUT_EVENTS}] * 2) as run:
            unheard = run.seen(plans)
        unready, ready = _hang(folder, saver)
    rows = [(name, len(each), *(_worst(each, column) for column in range(3))) for name, each in found.items()]
    hang = f"not ready: {unready:.2f}", "", f"ready again: {ready:.2f}"
    rows.append((f"storage hangs {HANG_SECONDS:.0f} s", 1, *hang))
    return Table(TITLE, HOW, COLUMNS, rows, _figures(found, seen, unheard, unready), _notes(seen, unheard))


def _figures(found, seen, unheard, unready):
    limits = {
        "worker killed": (1.0, None, 5.0),
        "worker stopped": (LEASE + 2, None, LEASE + 7),
        "workers partitioned": (LEASE + 2, None, LEASE + 7),
        "daemon killed with its worker": (LEASE + 2, None, LEASE + 7),
        "proposer killed": (None, LEASE + 2, None),
        "proposer killed, idle": (None, LEASE + 2, None),
        "PyTorch: worker killed": (1.0, None, 5.0),
        "PyTorch: worker stopped": (LEASE + 2, None, LEASE + 7),
    }
    told = ("noticed", "next proposal", "next group evaluating")
    figures = [
        Figure(f"{name}: {told[column]}", max(each[column] for each in found[name]), limit, unit=" s")
        for name, each in limits.items()
        for column, limit in enumerate(each)
        if limit is not None
    ]
    warm, cold = (statistics.median(each[2] for each in found[name]) for name in ("worker killed", BARE))
    return [
        *figures,
        Figure(f"storage hangs {HANG_SECONDS:.0f} s: not ready", unready, 12.0, unit=" s"),
        Figure("a plan is seen by all members, file events", max(seen), 0.05, unit=" s"),
        Figure("a plan is seen by all members, no file events", max(unheard), 2.0, unit=" s"),
        Figure("first evaluation after a loss, no standbys over standbys", cold / warm, 3.0, "at least", " ×"),
    ]


def _notes(seen, unheard):
    events, none = (f"{statistics.median(each) * 1000:.0f} ms" for each in (seen, unheard))
    return [
        f"A plan is seen by all members: median {events} with file events, {none} without, of {len(seen)} plans.",
        "A failed attempt is followed by the next one after backoff_first_seconds, 1 s.",
        "Storage hangs as a frozen filesystem does (fsfreeze): whoever writes waits, reading goes on.",
    ]


def _worst(each, column):
    values = [one[column] for one in each if one[column] is not None]
    return f"{max(values):.2f} ({statistics.median(values):.2f})" if values else ""


# -- what happens: each returns what makes it good again --------------------------------------------------------------


def kill_worker(run, plan):
    os.kill(run.pid(plan.members[1]), signal.SIGKILL)
    return lambda: None


def stop_worker(run, plan):
    os.kill(run.pid(plan.members[1]), signal.SIGSTOP)
    return lambda: None


def kill_daemon(run, _plan):
    run.kill(1)
    return lambda: run.start(1)


def kill_proposer(run, _plan):
    run.kill(0)
    return lambda: run.start(0)


def _part(link):
    link.parted = True

    def mend():
        link.parted = False

    return mend


FAULTS = {
    "worker killed": kill_worker,
    "worker stopped": stop_worker,
    "daemon killed with its worker": kill_daemon,
    "proposer killed": kill_proposer,
}


class Run:
    """Two nodes, and what their journal tells; `with` ends them."""

    def __init__(self, folder, saver, ends=({}, {}), task="marked.py", **settings):
        folder.mkdir()
        self._task = task
        self.checkpoints, self.marks = folder / "ckpts", folder / "marks"
        self.run_dir = self.checkpoints / ".sidecar" / "ckpts"
        self.marks.touch()
        self._storage = PosixStorage(self.run_dir)
        self._saver, self._ends, self._settings = saver, ends, {"cache_bytes": 0, "threads": 1, **settings}
        self._daemons = {}
        self._step = 0

    def __enter__(self):
        self.start(0)
        self.start(1)
        self.save()  # the run's folders are made by its first evaluation
        wait_until(lambda: self.history().newest, "a first evaluation", pause=0.5)
        return self

    def __exit__(self, *_):
        for daemon in self._daemons.values():
            daemon.__exit__()

    def start(self, number):
        """Start the daemon of a node on a core of its own."""
        end = self._ends[number]
        cores = machine.cpus()
        self._daemons[number] = Daemon(
            self.checkpoints,
            self._task,
            *end.get("options", ()),
            node=f"worker-{number}",
            before=end.get("before", ()),
            cores={cores[number % len(cores)]},
            env={"MARKS": str(self.marks)},
            **self._settings,
        )

    def kill(self, number):
        """SIGKILL of a daemon; its worker processes go with it."""
        self._daemons[number].process.kill()
        self._daemons[number].process.wait()

    def pid(self, member):
        """The process of a member of a plan."""
        number = int(member.node.removeprefix("worker-"))
        return next(
            line["pid"] for line in self._daemons[number].logged("worker_started") if line["worker"] == member.worker
        )

    def history(self):
        """Return the journal of the run, read from storage."""
        return read_history(self._storage)

    def save(self):
        """One more checkpoint; how its name ends."""
        self._step += 1
        return self._saver.ask(folder=str(self.checkpoints), step=self._step)["path"].rpartition("/")[2]

    def stand_by(self):
        """Wait until a group of all is warm, no process is on its way, and all know that."""
        wait_until(self._stands_by, lambda: f"standbys; {self._said()}", pause=0.5)
        time.sleep(ACQUAINTANCE_SECONDS)
        self._ends_once(self.save())  # if a group is formed for it, that takes standbys, which are replaced
        wait_until(self._stands_by, lambda: f"standbys; {self._said()}", pause=0.5)
        time.sleep(1.0)

    def suffer(self, fault):
        """Seconds from a fault in the middle of an evaluation until the three happenings of the table."""
        self.stand_by()
        name, before = self.save(), self._marked()
        self._until(lambda: self._marked() > before, "an evaluation")
        plan = self.history().open
        if plan is None or len(plan.members) != len(self._daemons):
            raise RuntimeError(f"expected an evaluation by all, found {plan}")
        before, begin = self._marked(), time.monotonic()
        mend = fault(self, plan)
        noticed = self._until((self.run_dir / outcome_path(plan.plan)).exists, "an outcome") - begin
        if plan.checkpoint.key in self.history().verdicts.succeeded:
            raise RuntimeError("the evaluation was over before anything happened to it")
        proposed = self._until((self.run_dir / plan_path(plan.plan + 1)).exists, "the next plan") - begin
        evaluating = self._until(lambda: self._marked() > before, "the next evaluation") - begin
        self._ends_once(name)
        mend()
        return noticed, proposed, evaluating

    def lose_the_proposer(self):
        """The same of a proposer that idles when it is killed: nothing is open that could be noticed."""
        self.stand_by()
        before, through, begin = self._marked(), self.history().through, time.monotonic()
        self.kill(0)
        name = self.save()
        proposed = self._until((self.run_dir / plan_path(through + 1)).exists, "the next plan") - begin
        evaluating = self._until(lambda: self._marked() > before, "the next evaluation") - begin
        self._ends_once(name)
        self.start(0)
        return None, proposed, evaluating

    def seen(self, count):
        """Seconds from when a plan is in the journal until the last of the members has read it."""
        self.stand_by()
        made = {}
        through = self.history().through
        over = threading.Event()
        thread = threading.Thread(target=self._look_out, args=(through, count, made, over))
        thread.start()
        try:
            for _ in range(count):
                self._ends_once(self.save())
        finally:
            over.set()
            thread.join()
        found = []
        for plan, at in made.items():
            read = [_when(daemon, plan) for daemon in self._daemons.values()]
            found.append(max(read) - at)
        return found

    def _look_out(self, through, count, made, over):
        """Note when plans appear."""
        for plan in range(through + 1, through + count + 1):
            path = self.run_dir / plan_path(plan)
            while not path.exists():
                if over.wait(0.001):
                    return
            made[plan] = time.time()

    def _ends_once(self, name):
        """Wait until a checkpoint is evaluated; raise unless once."""

        def look():
            closed = [each for each in self.history().entries if isinstance(each, Closed)]
            return [each for each in closed if each.outcome.status == "succeeded" and each.plan.checkpoint.name == name]

        if len(wait_until(look, lambda: f"{name}; {self._said()}")) != 1:
            raise RuntimeError(f"{name} was evaluated more than once")

    def _stands_by(self):
        there = {each.node: each for each in Heartbeats(self._storage, self.history_run()).read_all().heartbeats}
        for number, daemon in self._daemons.items():
            ready = {line["worker"] for line in daemon.logged("worker_ready")}
            found = there.get(f"worker-{number}")
            if found is None or found.state != "ready":
                return False
            usual = self._settings.get("standby", True)
            if not all((slot.standby if usual else slot.standby or slot.worker) in ready for slot in found.slots):
                return False
        return self.history().open is None

    def history_run(self):
        """Return the id of the run, from its first plan."""
        return next(iter(self.history().entries)).plan.run

    def _said(self):
        return "\n".join(daemon.said() for daemon in self._daemons.values())

    def _marked(self):
        """How many evaluations have begun."""
        return self.marks.read_bytes().count(b"\n")

    def _until(self, condition, what):
        """When that became true."""
        wait_until(condition, lambda: f"{what}; {self._said()}", pause=POLL_SECONDS)
        return time.monotonic()


def _when(daemon, plan):
    """When a daemon read a plan, in seconds since 1970."""
    line = next(line for line in daemon.logged("plan_opened") if line["plan"] == plan)
    return datetime.fromisoformat(line["timestamp"]).timestamp()


def _hang(folder, saver):
    """A node whose storage hangs: seconds until it says that it is not ready, and from the end until it is again."""
    with Disk(folder / "disk") as disk, Daemon(disk.path / "ckpts", "dense.py") as daemon:
        daemon.is_standing_by()
        saver.ask(folder=str(disk.path / "ckpts"), step=1)
        wait_until(daemon.successes, "an evaluation")
        wait_until(lambda: daemon.get("/readyz") == "ok\n", "readiness")
        with disk.frozen():
            begin = time.monotonic()
            wait_until(lambda: daemon.get("/readyz") != "ok\n", "/readyz to say no", pause=POLL_SECONDS)
            unready = time.monotonic() - begin
            if daemon.get("/healthz") != "ok\n":
                raise RuntimeError("the loop hangs with its storage")
            time.sleep(max(0.0, begin + HANG_SECONDS - time.monotonic()))
        thawed = time.monotonic()
        wait_until(lambda: daemon.get("/readyz") == "ok\n", "readiness", pause=POLL_SECONDS)
        ready = time.monotonic() - thawed
        saver.ask(folder=str(disk.path / "ckpts"), step=2)
        wait_until(lambda: len(daemon.successes()) == 2, "an evaluation after that")
    return unready, ready
