"""Measure what it costs to watch a directory that holds much: to notice a new checkpoint, and to notice none.

The supported limit is 5,000 checkpoints in one directory, and any number of other files. One row shows 20,000.
"""

import random
import re
import shutil
import statistics
import time
from datetime import datetime

import psutil
from bench_footprint import STAND_IN
from programs import Child, Daemon, scratch, wait_until
from table import Figure, Table

HOW = """A daemon with default settings beside what was there before it: checkpoints of TensorFlow (each an index and
a data file, all named in the state file, settled by `--start new`), or files of no format. Its worker processes are
stand-ins that import nothing, so that the numbers are the daemon's own. Seconds from exec until the first scan is
done; share of a core and resident memory over the seconds after it became idle; milliseconds from the last write of a
checkpoint, put there in TensorFlow's order (data renamed, index written in place, state file renamed), to the log
line `checkpoint_found`, by which time it is pinned."""
COLUMNS = ("beside", "count", "ready after s", "share of a core", "resident MB", "noticed ms", "slowest ms")
_SKIPPED = re.compile(r"^sidecar_checkpoints_skipped_total\{.*\} (\S+)$", re.MULTILINE)
CHECKPOINT, OTHER = "checkpoints", "other files"
SUPPORTED = 5_000


def measure(quick):
    rounds, idle_seconds = (3, 5.0) if quick else (20, 30.0)
    sizes = [(CHECKPOINT, 100), (CHECKPOINT, 1_000), (CHECKPOINT, SUPPORTED), (OTHER, 100_000), (CHECKPOINT, 20_000)]
    with scratch() as folder:
        written = folder / "written"
        with Child("saver.py", "keras", "dense", folder=folder) as saver:
            saver.ask(folder=str(written), step=1)
        stand_in = folder / "python"
        stand_in.write_text(STAND_IN)
        stand_in.chmod(0o755)
        rows = [
            _row(kind, count, written, folder / f"{kind[:2]}-{count}", stand_in, rounds, idle_seconds)
            for kind, count in (sizes[:2] if quick else sizes)
        ]
        where = folder / "unheard"
        unheard = _row(CHECKPOINT, sizes[1 if quick else 2][1], written, where, stand_in, rounds, idle_seconds, "off")
    supported = [row for row in rows if row[0] == OTHER or row[1] <= SUPPORTED]
    figures = [
        *[Figure(f"noticed beside {row[1]:,} {row[0]}, slowest", row[-1], 50, unit=" ms") for row in supported],
        *[Figure(f"idle beside {row[1]:,} {row[0]}", 100 * row[3], 0.5, unit=" % of a core") for row in supported],
        *[Figure(f"resident beside {row[1]:,} {row[0]}", row[4], 70, unit=" MB") for row in supported],
        *[Figure(f"first scan beside {row[1]:,} {row[0]}", row[2], 5, unit=" s") for row in supported],
        Figure("noticed without file events, slowest", unheard[-1], 3000, unit=" ms"),
    ]
    return Table("Watching: what lies in the directory", HOW, COLUMNS, [*rows, unheard], figures)


def _row(kind, count, written, checkpoints, stand_in, rounds, idle_seconds, file_events="auto"):
    checkpoints.mkdir()
    state = _fill(kind, count, written, checkpoints)
    begin = time.monotonic()
    with Daemon(checkpoints, "dense.py", "--start", "new", worker_python=stand_in, file_events=file_events) as daemon:
        seconds = wait_until(lambda: _is_ready(daemon) and time.monotonic() - begin, "the first look")
        old = count if kind == CHECKPOINT else 0
        wait_until(lambda: _skipped(daemon) == old, "old ones to be settled")
        time.sleep(6)  # what no state file names has settled, too
        process = psutil.Process(daemon.process.pid)
        before = process.cpu_times()
        time.sleep(idle_seconds)
        after = process.cpu_times()
        share = (after.user + after.system - before.user - before.system) / idle_seconds
        resident = process.memory_info().rss / 1e6
        noticed = [1000 * _noticed(daemon, written, checkpoints, state, number) for number in range(rounds)]
    shutil.rmtree(checkpoints)
    name = f"{kind}, no file events" if file_events == "off" else kind
    return name, count, seconds, share, resident, statistics.median(noticed), max(noticed)


def _is_ready(daemon):
    try:
        return daemon.get("/readyz") == "ok\n"
    except ConnectionError:
        return False


def _skipped(daemon):
    return float(_SKIPPED.search(daemon.get("/metrics"))[1])


def _fill(kind, count, written, checkpoints):
    """Put the old files there; returns the lines of the state file."""
    if kind == OTHER:
        for number in range(count):
            (checkpoints / f"events.out.tfevents.{number}.host").touch()
        return []
    index, data = ((written / f"ckpt-1.{end}").read_bytes() for end in ("index", "data-00000-of-00001"))
    names = [f"old-{number}" for number in range(count)]
    for name in names:
        (checkpoints / f"{name}.data-00000-of-00001").write_bytes(data)
        (checkpoints / f"{name}.index").write_bytes(index)
    (checkpoints / "checkpoint").write_text(_state(names))
    return names


def _noticed(daemon, written, checkpoints, names, number):
    """Seconds from the last write of one more checkpoint until the daemon says that it found it."""
    name = f"new-{number}"
    names.append(name)
    index, data = ((written / f"ckpt-1.{end}").read_bytes() for end in ("index", "data-00000-of-00001"))
    temporary = checkpoints / f"{name}_temp"
    temporary.mkdir()
    (temporary / "part").write_bytes(data)
    (checkpoints / "checkpoint.tmp0").write_text(_state(names))
    time.sleep(random.uniform(0.1, 2.5))  # no fixed rhythm meets the sweeps'
    (temporary / "part").rename(checkpoints / f"{name}.data-00000-of-00001")
    (checkpoints / f"{name}.index").write_bytes(index)
    temporary.rmdir()
    (checkpoints / "checkpoint.tmp0").rename(checkpoints / "checkpoint")
    written_at = time.time()

    def found():
        lines = [each for each in daemon.logged("checkpoint_found") if each["checkpoint"] == name]
        return lines and datetime.fromisoformat(lines[0]["timestamp"]).timestamp() - written_at

    return wait_until(found, f"{name} to be found")


def _state(names):
    lines = [f'model_checkpoint_path: "{names[-1]}"\n', *(f'all_model_checkpoint_paths: "{name}"\n' for name in names)]
    return "".join(lines)
