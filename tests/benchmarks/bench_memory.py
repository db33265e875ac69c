"""Whether a worker process grows while it evaluates checkpoint after checkpoint."""

import contextlib
import statistics

import psutil
from programs import Child, scratch
from table import Figure, Table
from worker_group import Place, WorkerGroup

HOW = """Real worker processes, driven by the daemon's own messages, evaluate checkpoints one after the other: two,
in turn, so that values change; weights and states are saved each time, and deleted. Resident memory of rank 0 in MB
after each evaluation: medians of a tenth of the evaluations, and a line fitted through all after the first two
fifths (warm-up)."""
COLUMNS = ("", "evaluations", "after 2/5", "at the end", "growth MB", "slope: KB an evaluation")

PROGRAMS = {
    "tensorflow": ("dense.py", "saver.py", "keras", "dense"),
    "torch": ("dense_torch.py", "saver_torch.py", "dense_torch"),
}
"""The task, and the program that saves its checkpoints."""


def measure(quick):
    count = 50 if quick else 500
    with scratch() as folder, contextlib.ExitStack() as stack:
        found = {}
        for framework, (task, *program) in PROGRAMS.items():
            saver = stack.enter_context(Child(*program, folder=folder))
            paths = [saver.ask(folder=str(folder / framework), step=step)["path"] for step in (1, 2)]
            for name, places in {"one worker, alone": 1, "two workers in a cluster": 2}.items():
                group_folder = folder / f"{framework}-{places}"
                with WorkerGroup(group_folder, task, [Place()] * places, framework=framework) as worker_group:
                    process = psutil.Process(worker_group.pids[0])
                    sizes = []
                    for number in range(count):
                        worker_group.evaluate(paths[number % 2])
                        sizes.append(process.memory_info().rss / 1e6)
                found[f"{framework}: {name}"] = _growth(sizes)
    rows = [(name, count, *each) for name, each in found.items()]
    figures = [Figure(f"growth, {name}, after warm-up", each[2], 2.0, unit=" MB") for name, each in found.items()]
    notes = [
        "2 MB are 0.3 % of the process: what an allocator's arenas move by. A leak of one batch would be far more.",
        "Writing weights takes a buffer of 8 MB, which the C library keeps for each thread that ever wrote: hence one.",
        "In a cluster TensorFlow keeps 1.7 KB of each collective, also in two bare processes that only all-reduce.",
    ]
    return Table("Memory: a worker over many evaluations", HOW, COLUMNS, rows, figures, notes)


def _growth(sizes):
    """MB after warm-up and at the end, their difference, and KB per evaluation."""
    tenth, warm = max(1, len(sizes) // 10), sizes[2 * len(sizes) // 5 :]
    first, last = statistics.median(warm[:tenth]), statistics.median(warm[-tenth:])
    slope = statistics.linear_regression(range(len(warm)), warm).slope * 1000
    return first, last, last - first, slope
