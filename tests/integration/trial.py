"""A training and daemons on which something is inflicted, and the judgment that is the same whatever it was.

`judge` asserts what must hold after every fault: each checkpoint was evaluated once and right, no daemon logged a
traceback or many lines, none needs much memory, each ends with 0, and neither a process nor a file is left over.
"""

import contextlib
import os
import signal
from pathlib import Path

import psutil
import pytest
from numpy_trainer import NUMPY

from sidecar.coordination.journal import read_history
from sidecar.coordination.storage import TEMPORARY, PosixStorage
from sidecar.publishing.report import rows

MOST_MEGABYTES = 110
"""Twice what an idle daemon needs, and far less than what a fault that is noted without a bound would take."""

MOST_LINES = 60
"""Lines of a daemon's log in a trial: those of ten evaluations, and a few of each fault."""

PATIENCE_SECONDS = 240.0
"""For what takes 10 s on an idle machine."""

_MARK = "TRIAL"  # a variable of the environment that all processes of a trial inherit


class Trial:
    """The daemons by node, and what was saved for them.

    Args:
        sidecar: Starts the daemons.
        trainer: Saves the checkpoints.
        until: Waits for a condition, with a bound.
        folder: Where all of it lies; `state` is the state directory if that is elsewhere.
        state: See above.
    """

    def __init__(self, sidecar, trainer, until, folder, state=None):
        self._sidecar, self._trainer, self._until = sidecar, trainer, until
        self.folder = Path(folder) / "ckpts"
        self.folder.mkdir(exist_ok=True)
        self.run_dir = (self.folder / ".sidecar" if state is None else Path(state)) / "ckpts"
        self.daemons, self.saved, self.ended = {}, [], []
        self._peaks = {}

    def start(self, node="worker-0", *options, task="numpy_plain.py", **more):
        """Start a daemon; `more`: variables, and arguments of `Sidecar.run`. Without a node it has its host's name."""
        environ = NUMPY | {_MARK: str(self.folder), "SIDECAR_STALL_SECONDS": "20"} | more
        daemon = self._sidecar.run(self.folder, *(("--node", node) if node else ()), *options, task=task, **environ)
        daemon.run_dir = self.run_dir
        self.daemons[node] = daemon
        self.ended.append(daemon)
        return daemon

    def living(self):
        """Return the daemons that run."""
        return {node: daemon for node, daemon in self.daemons.items() if daemon.process.poll() is None}

    def save(self, count=1, **more):
        """Save that many checkpoints, and return the plain numbers of them."""
        first = len(self.saved)
        made = self._trainer.save(self.folder, *(10 * (first + n) + 10 for n in range(count)), **more)
        self.saved += made
        return made

    def rows(self):
        """Return the rows of `sidecar history`."""
        return rows(read_history(PosixStorage(self.run_dir)))

    def evaluated(self, *saved):
        """Wait until these checkpoints, or all, are evaluated."""
        names = {each["name"] for each in saved or self.saved}

        def look():
            found = names <= {row["checkpoint"] for row in self.rows() if row["status"] == "succeeded"}
            if not found and all(daemon.process.poll() is not None for daemon in self.ended):
                pytest.fail(f"no daemon is left; they said:\n{self.words()}")
            return found

        self._until(look, lambda: f"evaluations of {names}; they said:\n{self.words()}", PATIENCE_SECONDS)

    def end(self):
        """Kill what a test that failed left over."""
        for daemon in self.living().values():
            daemon.process.kill()
            daemon.wait()
        for pid in self.strays():
            kill(pid)

    def words(self):
        """Return what every daemon said last."""
        return "\n\n".join(daemon.err[-3000:] for daemon in self.ended)

    def strays(self):
        """Return the processes of the trial that no daemon in it needs."""
        needed = {pid for each in self.living().values() for pid in (each.pid, *each.children())}
        found = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                ours = process.environ().get(_MARK) == str(self.folder)
                if ours and process.pid not in needed and process.status() != psutil.STATUS_ZOMBIE:
                    found[process.pid] = process.cmdline()[-6:]
        return found

    def note_memory(self):
        """Note the most memory that each daemon had so far: afterwards the kernel does not know it any more."""
        for node, daemon in self.living().items():
            status = Path(f"/proc/{daemon.pid}/status").read_text()
            self._peaks[node] = int(status.partition("VmHWM:")[2].split()[0]) // 1024

    def judge(self, *said, failures=0, code=0, lines=MOST_LINES, unfinished=False):
        """Assert what must hold after each fault.

        Args:
            said: Texts that a line of some daemon's log has: the name of the fault, and the remedy.
            failures: The most attempts that may have failed.
            code: How each living daemon ends after SIGTERM.
            lines: The most lines of a daemon's log.
            unfinished: Whether unfinished writes may be left for a day, as of a daemon that was killed.
        """
        self.evaluated()
        self.note_memory()
        self._until(lambda: not list((self.run_dir / "pins").glob("*")), lambda: f"pins to go:\n{self.words()}")
        for daemon in self.living().values():
            assert daemon.end(signal.SIGTERM).code == code, daemon.err[-3000:]
        self._until(lambda: not self.strays(), lambda: f"processes to end: {self.strays()}", 30)
        self.judge_numbers(failures)
        for daemon in self.ended:
            # Within a line there may be one of a worker: what the task did is told to whom it concerns.
            assert not any(line.startswith("Traceback") for line in daemon.err.splitlines()), daemon.err[-6000:]
            assert '"exception"' not in daemon.err, daemon.err[-6000:]
            assert len(daemon.err.splitlines()) <= lines, daemon.err
        log = "\n".join(daemon.err for daemon in self.ended)
        for text in said:
            assert text in log, f"{text!r} is not in:\n{log[-6000:]}"
        left = [str(path) for path in self.folder.parent.rglob("*") if path.name.startswith(TEMPORARY)]
        assert unfinished or not left, f"unfinished writes are left over: {left}"
        assert max(self._peaks.values(), default=0) <= MOST_MEGABYTES, self._peaks

    def judge_numbers(self, failures):
        """Assert that each checkpoint was evaluated once and right, and that few attempts failed."""
        found = {}
        for row in self.rows():
            found.setdefault(row["checkpoint"], []).append(row)
        assert set(found) == {each["name"] for each in self.saved}
        failed = [row for each in found.values() for row in each if row["status"] != "succeeded"]
        assert len(failed) <= failures, failed
        for each in self.saved:
            (row,) = [row for row in found[each["name"]] if row["status"] == "succeeded"]
            assert row["examples"] == {"test": each["examples"]}
            assert row["metrics"]["test"]["accuracy"]["value"] == each["correct"] / each["examples"]
            assert row["metrics"]["test"]["loss"]["value"] == pytest.approx(each["loss"], rel=1e-9)


def kill(pid):
    """End a process as nothing can refuse."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
