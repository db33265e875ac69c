"""Several daemons of one run on this machine, and evaluations that are held up while something happens to them."""

import contextlib
import os
import shutil
from dataclasses import dataclass

import psutil
import pytest

from sidecar.coordination.journal import read_history
from sidecar.coordination.storage import PosixStorage
from sidecar.publishing.report import rows

BRISK = {
    "SIDECAR_STANDBY": "true",
    "SIDECAR_CACHE_BYTES": "0",  # else the data, and with them the gate, would be passed once only
    "SIDECAR_BEAT_SECONDS": "0.5",
    "SIDECAR_LEASE_SECONDS": "4",
    "SIDECAR_STALL_SECONDS": "8",
    "SIDECAR_DRAIN_SECONDS": "3",
    "SIDECAR_GROUP_SETTLE_SECONDS": "1",
    "SIDECAR_QUIET_SECONDS": "1",
}
"""Shorter bounds than the usual ones, still longer than what a busy machine of two cores does to a process."""

FRAMEWORKS = [
    pytest.param("new_cluster", id="numpy"),
    pytest.param("new_torch_cluster", id="torch", marks=[pytest.mark.torch, pytest.mark.nightly]),
]
"""Fixtures that make a cluster. Those of numpy come together in files, those of PyTorch are connected by gloo."""

MANY_LINES = 16
"""More than a daemon may say of one fault: a beginning, two plans, two workers that come, what was lost."""


@dataclass(frozen=True)
class Rank:
    """A member of the open plan, and its worker process."""

    rank: int
    node: str
    pid: int


class Cluster:
    """The daemons, by node; what they evaluate and what they say.

    `trainer` saves the checkpoints, and `task` evaluates them with these `settings`: of numpy or of TensorFlow.
    """

    def __init__(self, sidecar, trainer, until, folder, gate, *, task, settings):
        self._sidecar, self._trainer, self._until = sidecar, trainer, until
        self._task, self._settings = task, settings
        self.folder = folder / "ckpts"
        self.gate = gate
        self.folder.mkdir()
        self.run_dir = self.folder / ".sidecar" / "ckpts"
        self.daemons = {}
        self._saved = []
        self._read = {}  # by node: how many lines of its log belong to what happened before

    # -- daemons -----------------------------------------------------------------------------------------------------

    def start(self, node, *options, host="127.0.0.1", folder=None, **more):
        """A daemon under a name that is free; `folder` is where its node sees the checkpoints, if elsewhere."""
        daemon = self._sidecar.run(
            folder or self.folder,
            *("--node", node, "--role", "worker", "--host", host, *options),
            task=self._task,
            **BRISK | self._settings | {"GATE": str(self.gate)} | more,
        )
        self.daemons[node] = daemon
        self._read[node] = 0
        return daemon

    def end(self):
        """Kill all daemons, and their workers with them."""
        for daemon in self.living().values():
            daemon.process.kill()
            daemon.wait()
        self.free()

    def living(self):
        """The daemons that run."""
        return {node: daemon for node, daemon in self.daemons.items() if daemon.process.poll() is None}

    def phases(self):
        """Return what the worker processes are doing."""
        return {each["state"] for daemon in self.living().values() for each in daemon.status().get("workers", [])}

    def is_whole(self):
        """Wait until all know each other and nobody waits for a worker process."""
        living = self.living()
        count = len(living)

        def look():
            for daemon in living.values():
                status = daemon.status()
                standing = {each["worker"] for each in status.get("workers", []) if each["state"] == "standby"}
                busy = [each for each in status.get("workers", []) if each["state"] not in ("standby", "idle")]
                if not status.get("ready") or status["members"].get("ready") != count or busy or not standing:
                    return False
            return True

        self._until(look, lambda: f"{count} nodes with workers; they said:\n{self.words()}")

    # -- evaluations -------------------------------------------------------------------------------------------------

    def hold(self, place, pid=None):
        """Nobody passes this place, or this process does not."""
        self._bar(place, pid).touch()

    def release(self, place, pid=None):
        """Let processes pass the place that `hold` closed."""
        self._bar(place, pid).unlink()

    def free(self):
        """All gates are open, and nobody was ever there."""
        shutil.rmtree(self.gate)
        self.gate.mkdir()

    def save(self):
        """One more checkpoint, with which a new story begins; the plain numbers of it."""
        for node, daemon in self.living().items():
            self._read[node] = len(daemon.log())
        self._saved += self._trainer.save(self.folder, 10 * len(self._saved) + 10)
        return self._saved[-1]

    def held(self, *, workers=None):
        """A checkpoint in the middle of its evaluation: the plain numbers of it, and the ranks, all waiting.

        All nodes take part in it, since there is nothing that they have to recover from any more.
        """
        self.is_whole()
        self.free()
        self.hold("evaluate")
        saved = self.save()
        return saved, self.waiting("evaluate", saved, workers=workers)

    def waiting(self, place, saved, *, workers=None):
        """The ranks, once all of them wait at a place in the evaluation of a checkpoint."""

        def look():
            plan = read_history(PosixStorage(self.run_dir)).open
            if plan is None or plan.checkpoint.name != saved["name"]:
                return None
            pids = {
                each["worker"]: each["pid"]
                for daemon in self.living().values()
                for each in daemon.status().get("workers", [])
            }
            ranks = [Rank(each.rank, each.node, pids.get(each.worker, 0)) for each in plan.members]
            there = all((self.gate / f"at-{place}-{each.pid}").exists() for each in ranks)
            return ranks if there and workers in (None, len(ranks)) else None

        return self._until(look, lambda: f"all ranks in {place} of {saved['name']}; they said:\n{self.words()}")

    def evaluated(self, saved):
        """The rows of a checkpoint, once it succeeded."""
        found = self._until(
            lambda: self.rows(saved)[-1:] and self.rows(saved)[-1]["status"] == "succeeded" and self.rows(saved),
            lambda: f"the evaluation of {saved['name']}; they said:\n{self.words()}",
        )
        *lost, done = found
        assert [row["status"] for row in lost] == ["failed"] * len(lost)
        assert done["examples"] == {"test": saved["examples"]}
        assert done["metrics"]["test"]["accuracy"]["value"] == saved["correct"] / saved["examples"]
        assert done["metrics"]["test"]["loss"]["value"] == pytest.approx(saved["loss"], rel=1e-6)
        return found

    def rows(self, saved=None):
        """The rows of `sidecar history`, of one checkpoint or all."""
        found = rows(read_history(PosixStorage(self.run_dir)))
        return [row for row in found if saved is None or row["checkpoint"] == saved["name"]]

    def has_the_bits_of_one_worker(self, sidecar):
        """Every checkpoint succeeded once, with the numbers of a daemon that is alone with one worker process."""
        state = self.folder.parent / "alone"
        environ = self._settings | {"GATE": str(self.gate / "open"), "SIDECAR_STANDBY": "false"}
        alone = sidecar.run(self.folder, "--no-wait", "--state-dir", state, task=self._task, **environ)
        assert alone.wait().code == 0
        listed = rows(read_history(PosixStorage(state / "ckpts")))
        expected = {row["checkpoint"]: _bits(row) for row in listed}
        found = [row for row in self.rows() if row["status"] == "succeeded"]
        assert {row["checkpoint"]: _bits(row) for row in found} == expected
        assert len(found) == len(expected) == len(self._saved)

    # -- afterwards --------------------------------------------------------------------------------------------------

    def recovers(self, saved):
        """The rows of a checkpoint, once it is evaluated, no process is left over, and the log has told the story."""
        found = self.evaluated(saved)
        self._until(lambda: not self._strays(), lambda: f"processes to end: {self._strays()}", 30)
        lost = [row["plan"] for row in found[:-1]]
        for node, daemon in self.living().items():
            lines = self.story(node)
            assert "Traceback" not in daemon.err
            assert len(lines) <= MANY_LINES, self.words()
            assert [line["plan"] for line in lines if line["event"] == "plan_failed"] in (lost, []), self.words()
        return found

    def story(self, node):
        """Lines that a daemon wrote since the checkpoint was saved."""
        return self.daemons[node].log()[self._read[node] :]

    def words(self):
        """Return what every daemon said last."""
        return "\n".join(f"{node}: {daemon.err[-1500:]}" for node, daemon in self.daemons.items())

    def _strays(self):
        living = self.living().values()
        daemons = {daemon.pid for daemon in living}
        sessions = {each["pid"] for daemon in living for each in daemon.status().get("workers", [])}
        strays = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                ours = process.environ().get("GATE") == str(self.gate)
                known = process.pid in daemons or os.getsid(process.pid) in sessions or process.ppid() in sessions
                if ours and not known and process.status() != psutil.STATUS_ZOMBIE:
                    strays[process.pid] = process.cmdline()[-6:]
        return strays

    def _bar(self, place, pid):
        return self.gate / (f"hold-{place}" if pid is None else f"hold-{place}-{pid}")


def outcome(cluster, plan):
    """The record of how a plan ended."""
    return next(
        each.outcome
        for each in read_history(PosixStorage(cluster.run_dir)).entries
        if each.plan.plan == plan and hasattr(each, "outcome")
    )


def on(ranks, node):
    """The process of a node's first rank."""
    return next(each for each in ranks if each.node == node).pid


def is_of(lost, cluster, node):
    """Return whether a failed attempt is about the worker of a node that was killed, or about its connection."""
    named = outcome(cluster, lost["plan"]).node == node
    return ends_a_sum(lost) or (lost["kind"] == "worker_died" and "was killed by SIGKILL" in lost["message"] and named)


def ends_a_sum(lost):
    """Return whether a rank of PyTorch lost a peer in a sum.

    It notices the end of a connection as soon as the daemons notice the end of a process or of a daemon, but gloo does
    not say whose connection it was.
    """
    return lost["kind"] == "member_lost" and "could not be reached in a sum" in lost["message"]


def failure(found):
    """The one attempt that failed, before the one that did not."""
    assert [row["status"] for row in found] == ["failed", "succeeded"], found
    return found[0]


def _bits(row):
    return {name: each["hex"] for name, each in row["metrics"]["test"].items()}
