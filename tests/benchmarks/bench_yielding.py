"""Measure what training pays for evaluations that give way to it, and what these pay for that."""

import contextlib
import statistics

import psutil
from programs import Child, scratch, start_nodes, wait_until
from table import Figure, Table

HOW = """A training loop of PyTorch with default threads on all cores, in blocks: alone, next to an evaluation with the
default `yield_seconds`, alone, next to one with `yield_seconds = 0`, and so on. Each block next to an evaluation begins
with a save, whose evaluation takes longer than the block; the next block begins after its end. *computing*: batches in
memory; *reading*: each step reads its batch from the disk. Medians of blocks; *ratio* is the median, over the pairs, of
the step time in a block to that in the block before, *range* is from its lowest to its highest quarter. *Waiting* is
the time in which the threads of the trainer were ready and did not run. *evaluation*: processor time that the worker
process had in a second of a block."""
COLUMNS = (
    *("", "ms a step alone", "next to it", "ratio", "range", "CPU ms alone", "next to it"),
    *("waiting ms alone", "next to it", "evaluation, s/s"),
)
MODES = {"gives way (default)": {}, "nice 10 (yield_seconds = 0)": {"yield_seconds": 0}}
TRAINERS = {"computing": (), "reading": ("files",)}


def measure(quick):
    pairs, seconds = (2, 1.0) if quick else (15, 2.0)
    rows, figures = [], []
    for trainer, arguments in TRAINERS.items():
        with scratch() as folder:
            found = _alternate(folder, arguments, pairs, seconds, "5000" if quick else "30000")
        for mode, blocks in found.items():
            row = _row(blocks)
            rows.append((f"{trainer}, {mode}", *row))
            if not MODES[mode]:
                figures.append(Figure(f"step time next to an evaluation, {trainer}", row[2], 1.05, unit=" ×"))
    notes = ["Processors of other programs, too, are what an evaluation that gives way leaves to them."]
    return Table("Giving way: what evaluation costs training on the same cores", HOW, COLUMNS, rows, figures, notes)


def _alternate(folder, arguments, pairs, seconds, examples):
    """Blocks alone and next to an evaluation of each mode, in pairs."""
    env = {"BENCH_EXAMPLES": examples}
    batches = [str(folder)] if arguments else []
    found = {mode: [] for mode in MODES}
    with contextlib.ExitStack() as stack:
        trainer = stack.enter_context(Child("trainer_torch.py", "0", *batches, folder=folder, **env))
        trainer.ask(seconds=seconds)
        daemons = {}
        for number, (mode, settings) in enumerate(MODES.items()):
            (daemons[mode],) = start_nodes(
                stack, folder / f"mode-{number}", "conv_torch.py", [{"env": env, "standby": "false", **settings}]
            )
            _save(trainer, daemons[mode], folder / f"mode-{number}", 0.1)
            _wait_for(daemons[mode], 1)
        for pair in range(pairs):
            for number, (mode, daemon) in enumerate(daemons.items()):
                alone = trainer.ask(seconds=seconds)
                beside = _save(trainer, daemon, folder / f"mode-{number}", seconds)
                _wait_for(daemon, pair + 2)
                found[mode].append((alone, beside))
    return found


def _save(trainer, daemon, folder, seconds):
    """Save, train while it is evaluated, and return how that went, with the processor time of the evaluation."""
    before = _computed(daemon)
    block = trainer.ask(seconds=seconds, save_to=str(folder))
    return block | {"evaluation": (_computed(daemon) - before) / seconds}


def _wait_for(daemon, count):
    wait_until(lambda: len(daemon.successes()) >= count, f"evaluation {count}: {daemon.said()}", seconds=600.0)


def _computed(daemon):
    """Return the processor time of a daemon's worker processes."""
    total = 0.0
    for process in psutil.Process(daemon.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:2])
    return total


def _row(blocks):
    ratios = sorted(beside["step"] / alone["step"] for alone, beside in blocks)
    low, _, high = statistics.quantiles(ratios, n=4)

    def medians(key):
        return [statistics.median(pair[side][key] for pair in blocks) * 1000 for side in (0, 1)]

    step, cpu, wait = medians("step"), medians("cpu"), medians("wait")
    evaluation = statistics.median(beside["evaluation"] for _, beside in blocks)
    return *step, statistics.median(ratios), f"{low:.2f} to {high:.2f}", *cpu, *wait, evaluation
