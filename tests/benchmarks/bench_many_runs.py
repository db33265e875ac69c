"""Measure what each further run costs a daemon that serves many, while nothing happens."""

import json
import statistics
import sys
import time
from pathlib import Path

import psutil
from bench_footprint import STAND_IN
from programs import TASKS, Daemon, Program, environ, scratch, wait_until
from table import Figure, Table

HOW = """A daemon with default settings serves runs whose directories hold no checkpoint yet. Its worker processes are
stand-ins that import nothing, so that the numbers are the daemon's own. Share of one core and resident memory of the
daemon over the seconds after all runs are served; for each further run, the difference to one run. *A change of turns*:
two runs of one PyTorch task save in turn, so that each save needs the workers that the other run has; processor time
of all worker processes from a save to its result, and the seconds, as medians. Workers are handed over if both runs
have the same settings, and started anew if the second run has another `worker_env`."""
COLUMNS = ("runs", "resident", "for each further run", "idle share of a core", "for each further run", "threads")
RUNS = (1, 11, 51)


class ManyRuns(Daemon):
    """A daemon of all runs below a folder."""

    def __init__(self, folder, **more):
        self._address = None
        settings = {
            "runs": f"{folder}/*/ckpts",
            "http": "127.0.0.1:0",
            "log_format": "json",
            "worker_logs": folder.parent / "logs",
            "node": "worker-0",
            "role": "worker",
            "host": "127.0.0.1",
            **more,
        }
        variables = {f"SIDECAR_{name.upper()}": str(value) for name, value in settings.items()}
        words = [Path(sys.executable).with_name("sidecar"), "run"]
        Program.__init__(self, words, folder.parent / "daemon", name="daemon", env=environ(**variables))

    def serves(self, count):
        """Return whether so many runs are ready."""
        return sum(run["ready"] for run in json.loads(self.get("/api/status"))["runs"]) == count


def measure(quick):
    found = [_measure(count, 5.0 if quick else 60.0) for count in RUNS]
    resident_of_one, share_of_one, _ = found[0]
    rows = []
    for count, (resident, share, threads) in zip(RUNS, found, strict=True):
        more = max(1, count - 1)
        rows.append(
            (
                count,
                f"{resident / 1e6:.1f} MB",
                f"{(resident - resident_of_one) / more / 1e6:.2f} MB" if count > 1 else "",
                f"{share:.2%}",
                f"{(share - share_of_one) / more:.3%}" if count > 1 else "",
                threads,
            )
        )
    resident, share, _ = found[-1]
    more = RUNS[-1] - 1
    figures = [
        Figure("memory of each further run", (resident - resident_of_one) / more / 1e6, 3, unit=" MB"),
        Figure("idle share of a core of each further run", (share - share_of_one) / more * 100, 0.5, unit=" %"),
    ]
    changes = 4 if quick else 12
    (warm, warm_seconds), (cold, cold_seconds) = (_turns(changes, alike=alike) for alike in (True, False))
    figures.append(
        Figure("processor time of a change of turns, handed over / started anew", warm / cold, 0.3, unit=" ×")
    )
    notes = [
        f"A change of turns, workers handed over: {warm:.2f} s of a processor, {warm_seconds:.2f} s to the result.",
        f"A change of turns, workers started anew: {cold:.2f} s of a processor, {cold_seconds:.2f} s to the result.",
    ]
    return Table("Many runs: what each idle run costs one daemon", HOW, COLUMNS, rows, figures, notes)


def _turns(changes, *, alike):
    """Return the medians of processor seconds of worker processes, and of seconds, from a save to its result."""
    import torch
    from dense_torch import build_model

    with scratch() as folder:
        runs = [folder / "shared" / name / "ckpts" for name in ("run-0", "run-1")]
        for run in runs:
            run.mkdir(parents=True)
        if not alike:
            (runs[1] / "sidecar.toml").write_text('worker_env = {OTHER = "1"}\n')
        task = f"{TASKS / 'dense_torch.py'}:task"
        with ManyRuns(
            folder / "shared", task=task, framework="torch", run_turn_seconds=0.01, yield_seconds=0
        ) as daemon:
            wait_until(lambda: daemon.serves(2), lambda: f"two runs: {daemon.said()}", pause=0.5)
            found = []
            for number in range(changes + 2):  # the first two check the task, and start the first workers
                before, begin, run = _workers_seconds(daemon), time.monotonic(), runs[number % 2]
                torch.save({"model": build_model().state_dict()}, run / f"model-{number}.pt")
                outcomes = run / ".sidecar" / run.parent.name / "outcomes"
                wait_until(lambda: len(list(outcomes.glob("0*.json"))) > number // 2, daemon.said, pause=0.02)  # noqa: B023
                found.append((_workers_seconds(daemon) - before, time.monotonic() - begin))
            return [statistics.median(each) for each in zip(*found[2:], strict=True)]


def _workers_seconds(daemon):
    """Return the processor seconds of all worker processes so far, those that ended included."""
    process = psutil.Process(daemon.process.pid)
    own = process.cpu_times()
    children = [child.cpu_times() for child in process.children(recursive=True)]
    return own.children_user + own.children_system + sum(each.user + each.system for each in children)


def _measure(count, seconds):
    """Return resident bytes, the share of a core, and the number of threads of a daemon that serves so many runs."""
    with scratch() as folder:
        stand_in = folder / "python"
        stand_in.write_text(STAND_IN)
        stand_in.chmod(0o755)
        for number in range(count):
            (folder / "shared" / f"run-{number:02}" / "ckpts").mkdir(parents=True)
        with ManyRuns(folder / "shared", task=f"{TASKS / 'dense.py'}:task", worker_python=stand_in) as daemon:
            wait_until(lambda: daemon.serves(count), lambda: f"{count} runs: {daemon.said()}", pause=0.5)
            process = psutil.Process(daemon.process.pid)
            time.sleep(seconds / 2)
            before, begin = process.cpu_times(), time.monotonic()
            time.sleep(seconds)
            after, took = process.cpu_times(), time.monotonic() - begin
            share = (after.user + after.system - before.user - before.system) / took
            return process.memory_info().rss, share, process.num_threads()
