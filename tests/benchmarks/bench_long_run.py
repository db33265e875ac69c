"""Measure what a journal of many evaluations costs a daemon and the commands that read it."""

import time

import psutil
from command_costs import costs
from long_journal import write_long_journal
from programs import Daemon, environ, scratch, wait_until
from table import Figure, Table

from sidecar.coordination import snapshot_store
from sidecar.coordination.storage import PosixStorage

HOW = """A journal of evaluations that all succeeded, each with ten metrics and a group of two, as daemons leave it:
segments, the newest 1,000 to 2,000 plans as single files, and a snapshot that is 150 plans old. A daemon starts next to
it, on a chief, so that no worker process is part of the numbers: seconds from exec until the journal is read, its
resident memory and its share of a core over the seconds after that. The commands run one after the other, and write
into a pipe: processor seconds and the most memory that was resident."""
COLUMNS = ("", "evaluations", "snapshot MB", "seconds", "CPU s", "resident MB", "share of a core")


COMMANDS = (
    ("status", "--no-observe"),
    ("history", "--last", "50"),
    ("history", "--plot"),
    ("export",),
    ("export", "--format", "openmetrics"),
)


def measure(quick):
    plans, idle_seconds = (2_000, 3.0) if quick else (100_000, 20.0)
    rows = [_daemon("daemon, short run", 10, idle_seconds)]
    with scratch() as folder:
        checkpoints = folder / "ckpts"
        storage = PosixStorage(checkpoints / ".sidecar" / "ckpts")
        write_long_journal(storage, plans)
        found = len(storage.read(snapshot_store.PATH)) / 1e6
        rows.append(_started("daemon, long run", checkpoints, plans, found, idle_seconds))
        rows += [
            (" ".join(command), plans, found, *_command(*command, "--checkpoint-dir", checkpoints), 0.0)
            for command in COMMANDS
        ]
    short, daemon, status, history, *whole = rows
    figures = [
        Figure("a daemon has read a long run", daemon[3], 5.0, unit=" s"),
        Figure("a daemon has read a long run, beyond a short one", daemon[3] - short[3], 1.0, unit=" s"),
        Figure("resident, daemon of a long run", daemon[5], 90, unit=" MB"),
        Figure("share of a core, daemon of a long run, percent", 100 * daemon[6], 1.0, unit=" %"),
        Figure("CPU of status", status[4], 1.0, unit=" s"),
        Figure("CPU of history --last 50", history[4], 1.0, unit=" s"),
        Figure("the most memory of a command that reads all", max(row[5] for row in whole), 150, unit=" MB"),
    ]
    return Table("A long run: what its journal costs", HOW, COLUMNS, rows, figures)


def _daemon(name, plans, idle_seconds):
    with scratch() as folder:
        checkpoints = folder / "ckpts"
        write_long_journal(PosixStorage(checkpoints / ".sidecar" / "ckpts"), plans, snapshot=False)
        return _started(name, checkpoints, plans, 0.0, idle_seconds)


def _started(name, checkpoints, plans, snapshot, idle_seconds):
    begin = time.monotonic()
    with Daemon(checkpoints, "dense.py", "--role", "chief") as daemon:
        seconds = wait_until(lambda: daemon.logged("journal_read") and time.monotonic() - begin, "the journal")
        process = psutil.Process(daemon.process.pid)
        time.sleep(2)
        before = process.cpu_times()
        time.sleep(idle_seconds)
        after = process.cpu_times()
        share = (after.user + after.system - before.user - before.system) / idle_seconds
        used, resident = before.user + before.system, process.memory_info().rss / 1e6
    return name, plans, snapshot, seconds, used, resident, share


def _command(*arguments):
    begin = time.monotonic()
    seconds, resident, _ = costs(*arguments, env=environ())
    return time.monotonic() - begin, seconds, resident * 2**20 / 1e6
