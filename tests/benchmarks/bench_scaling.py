"""Two workers with a core each against one worker with one core."""

import contextlib
import statistics

import machine
from programs import Child, check_workers, phases, scratch, start_nodes
from table import Figure, Table

HOW = """Two daemons, each with one worker, one thread and one core, against one such daemon, side by side and in
turn: a checkpoint is saved for one, then for the other. *Compute-bound* is the convolutional net of `latency` on
more examples, kept in memory by the workers. *Input-bound* sleeps 5 ms for each example in `EvalSet.prepare`, with
`cache_bytes = 0`, so that every evaluation prepares its data again, on one thread for each worker; the sleeps alone
are 2.56 s for one worker. Seconds, medians of warm evaluations: `evaluate` is the slowest rank's phase, `latency`
is saved → served."""
COLUMNS = ("", "rounds", "evaluate: 1 worker", "2 workers", "speed-up", "latency: 1 worker", "2 workers", "speed-up")


def measure(quick):
    rounds = 2 if quick else 7
    cores = machine.cpus()[:2]
    if len(cores) < 2:
        raise RuntimeError("two cores are needed")
    with scratch() as folder, contextlib.ExitStack() as stack:
        saver = stack.enter_context(Child("saver.py", "keras", folder=folder))
        limit = _limit(saver, folder / "limit", rounds, cores)
        examples = 5_000 if quick else 30_000
        computing, first = compare(saver, folder / "computing", rounds, cores, "conv.py", examples)
        examples = 256 if quick else 512
        waiting, second = compare(saver, folder / "waiting", rounds, cores, "sleepy.py", examples, cache_bytes=0)
    rows = [("compute-bound", rounds, *computing), ("input-bound", rounds, *waiting)]
    figures = [
        Figure("compute-bound, phase evaluate", computing[2], 1.85, "at least", " ×"),
        Figure("input-bound, phase evaluate", waiting[2], 1.80, "at least", " ×"),
    ]
    notes = [
        f"Two plain processes with a core each, which know nothing of each other, do {limit:.3f} × the work of one."
    ]
    return Table("Scaling: two workers against one", HOW, COLUMNS, rows, figures, [*notes, *first, *second])


def _limit(saver, folder, rounds, cores):
    """How much more two floors get done at the same time than one alone: cores share caches, memory and power."""
    path = saver.ask(folder=str(folder), step=1)["path"]
    with contextlib.ExitStack() as stack:
        floors = [stack.enter_context(Child("floor.py", "keras", folder=folder, cores={core})) for core in cores]
        found = []
        for _ in range(2 * rounds + 1):
            alone = statistics.mean(floor.ask(path=path)["seconds"] for floor in floors)
            for floor in floors:
                floor.begin(path=path)
            found.append(2 * alone / statistics.mean(floor.answer()["seconds"] for floor in floors))
    return statistics.median(found[1:])  # the first is cold


def compare(saver, folder, rounds, cores, task, examples, **settings):
    """Medians and speed-ups of the evaluate phase and of the whole; and where their time went."""
    found, explained = {}, []
    with contextlib.ExitStack() as stack:
        usual = {"threads": 1, "standby": False, "env": {"BENCH_EXAMPLES": str(examples)}, **settings}
        publishers = {
            size: start_nodes(stack, folder / str(size), task, [{"cores": {core}, **usual} for core in cores[:size]])[0]
            for size in (1, 2)
        }
        latencies = {size: [] for size in publishers}
        for step in range(1, rounds + 3):  # two to warm up
            for size, publisher in publishers.items():
                saved = saver.ask(folder=str(folder / str(size)), step=step)
                latencies[size].append(publisher.served(step) - saved["saved"])
        for size, publisher in publishers.items():
            done = publisher.successes()[-rounds:]
            check_workers(done, size)
            evaluate = statistics.median(row["phases"]["evaluate"] for row in done)
            found[size] = evaluate, statistics.median(latencies[size][-rounds:])
            explained.append(f"{task}, {size} at work: {_told(phases(done, found[size][1]))}.")
    (alone, alone_all), (both, both_all) = found[1], found[2]
    return (alone, both, alone / both, alone_all, both_all, alone_all / both_all), explained


def _told(medians):
    return ", ".join(f"{phase} {seconds:.3f}" for phase, seconds in medians.items())
