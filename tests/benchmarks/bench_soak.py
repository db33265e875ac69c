"""A week in ten minutes: as many evaluations as two real daemons manage, and what the daemons hold afterwards."""

import contextlib
import os
import time
from pathlib import Path

import psutil
from programs import Daemon, scratch
from table import Figure, Table

HOW = """Two daemons of one run, each with one worker process of a task without a framework whose model is one number:
an evaluation costs little more than the daemons' own work. A trainer keeps eight checkpoints waiting and removes those
that were evaluated, until there are 20,000 evaluations or ten minutes are over. Resident memory, descriptors and
threads of the publisher, which also writes views and snapshots, and of the other daemon; files and folders of the state
directory. Each evaluation is compared with the number of its model."""
COLUMNS = ("evaluations", "after s", "publisher MB", "other MB", "descriptors", "threads", "state MB", "inodes")
WAITING = 8
SETTINGS = {
    "framework": "python",
    "checkpoint_pattern": "model-*",
    "quiet_seconds": "0.2",
    "standby": "false",
}


def measure(quick):
    evaluations, step, seconds = (200, 50, 120.0) if quick else (20_000, 1_000, 600.0)
    with scratch() as folder, contextlib.ExitStack() as stack:
        checkpoints = folder / "ckpts"
        nodes = [
            stack.enter_context(Daemon(checkpoints, "tiny.py", node=f"worker-{number}", **SETTINGS))
            for number in range(2)
        ]
        for daemon in nodes:
            daemon.is_standing_by(2)
        rows = _soak(checkpoints, nodes, evaluations, step, seconds)
        _check(nodes[0])
    first, last = rows[0], rows[-1]
    later = max(1, last[0] - first[0])
    figures = [
        Figure("evaluations", last[0], evaluations, sense="at least"),
        Figure(f"publisher grows after the first {first[0]:,}", last[2] - first[2], 5, unit=" MB"),
        Figure("and by evaluation", 1e6 * (last[2] - first[2]) / later, 260, unit=" bytes"),
        Figure("descriptors more than then", last[4] - first[4], 4),
        Figure("threads more than then", last[5] - first[5], 1),
    ]
    return Table("Soak: thousands of evaluations", HOW, COLUMNS, rows, figures)


def _soak(checkpoints, nodes, evaluations, step, seconds):
    """Feed the daemons; return a row for every `step` evaluations, and one for the end."""
    begin, saved, count, rows = time.monotonic(), 0, 0, []
    outcomes = nodes[0].run_dir / "outcomes"
    while time.monotonic() < begin + seconds and count < evaluations:
        while count < saved and (outcomes / f"{count + 1:012d}.json").exists():
            count += 1
            if count % step == 0:
                rows.append(_row(count, time.monotonic() - begin, nodes))
        while saved < count + WAITING:
            saved += 1
            new = checkpoints / f".new-{saved}"
            new.write_text(str(saved))
            new.rename(checkpoints / f"model-{saved}")
            if saved > 2 * WAITING:
                (checkpoints / f"model-{saved - 2 * WAITING}").unlink()
        time.sleep(0.02)
    if not rows or rows[-1][0] != count:
        rows.append(_row(count, time.monotonic() - begin, nodes))
    return rows


def _row(count, seconds, nodes):
    publisher, other = (psutil.Process(daemon.process.pid) for daemon in nodes)
    held = publisher.memory_info().rss / 1e6, other.memory_info().rss / 1e6
    size, inodes = _used(nodes[0].run_dir)
    return count, seconds, *held, publisher.num_fds(), publisher.num_threads(), size / 1e6, inodes


def _used(folder):
    """Bytes on the disk and inodes below a folder, which daemons change meanwhile."""
    size = inodes = 0
    for path, folders, names in os.walk(folder):
        inodes += len(folders) + len(names)
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                size += (Path(path) / name).stat().st_blocks * 512
    return size, inodes


def _check(daemon):
    """Raise unless every evaluation has the number of its model: all examples are right for an even one, else none."""
    for row in daemon.successes():
        if row["metrics"]["test"]["accuracy"]["value"] != float(row["step"] % 2 == 0):
            raise RuntimeError(f"wrong: {row}")
