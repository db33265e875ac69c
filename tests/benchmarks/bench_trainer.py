"""Measure what training pays for being evaluated."""

import contextlib
import statistics
import time

import machine
from programs import Child, scratch, start_nodes, wait_until
from table import Figure, Table

HOW = """A training loop over the convolutional net (batches of 64, data in memory, real checkpoints) in blocks of
some seconds: without a daemon, with one, without again. Each block with a daemon begins with a save, whose
evaluation keeps a worker busy for most of the block. Step times are medians over blocks and contain no saves.
*Pinned*: trainer and daemon have one core and one thread each. *Unpinned*: default threads on both sides, all cores
for both; the worker has the default priority. *Inline*: no daemon, and `model.evaluate` on the same data after each
block, counted into its steps: what a trainer pays that evaluates so often by itself. *PyTorch*: the same net and data,
with `torch.save`."""
COLUMNS = ("", "ms a step without", "with", "slowdown", "CPU ms without", "with", "evaluations", "time evaluating")


def measure(quick):
    blocks, seconds = (2, 2.0) if quick else (6, 3.0)
    first, second = machine.cpus()[:2]
    examples = {"BENCH_EXAMPLES": "5000" if quick else "20000"}
    with scratch() as folder:
        with Child("trainer.py", "1", folder=folder, cores={first}, **examples) as trainer:
            trainer.ask(seconds=seconds)
            daemon = {"cores": {second}, "threads": 1, "env": examples}
            pinned = _compare(trainer, folder / "pinned", daemon, blocks, seconds)
        with Child("trainer.py", "0", folder=folder, **examples) as trainer:
            trainer.ask(seconds=seconds, evaluate=True)
            unpinned = _compare(trainer, folder / "unpinned", {"env": examples}, blocks, seconds)
            inline = _inline(trainer, blocks, seconds)
        with Child("trainer_torch.py", "1", folder=folder, cores={first}, **examples) as trainer:
            trainer.ask(seconds=seconds)
            torch = _compare(trainer, folder / "torch", daemon, blocks, seconds, "conv_torch.py")
        with Child("trainer_torch.py", "0", folder=folder, **examples) as trainer:
            trainer.ask(seconds=seconds)
            torch_free = _compare(trainer, folder / "torch-free", {"env": examples}, blocks, seconds, "conv_torch.py")
    rows = [
        ("pinned", *pinned),
        ("unpinned, worker niced", *unpinned),
        ("inline model.evaluate, unpinned", *inline),
        ("PyTorch, pinned", *torch),
        ("PyTorch, unpinned, worker niced", *torch_free),
    ]
    figures = [
        Figure("step time beside the daemon, pinned", pinned[2], 1.03, unit=" ×"),
        Figure("step time beside the daemon, PyTorch, pinned", torch[2], 1.03, unit=" ×"),
    ]
    notes = [
        "Step time that grows while CPU time does not was spent waiting for a core: other programs use the machine.",
        "CPU time of a step that grows tells of caches and memory that both sides share.",
    ]
    return Table("Trainer: what evaluation costs training", HOW, COLUMNS, rows, figures, notes)


def _compare(trainer, folder, node, blocks, seconds, task="conv.py"):
    """Blocks without, with, without; and how busy the evaluator was."""
    without = [trainer.ask(seconds=seconds) for _ in range(blocks)]
    with contextlib.ExitStack() as stack:
        (daemon,) = start_nodes(stack, folder, task, [node])
        for count in (1, 2):  # cold, and beside the standby's import
            trainer.ask(seconds=0.1, save_to=str(folder))
            wait_until(lambda count=count: len(daemon.successes()) >= count, f"evaluation {count}: {daemon.said()}")
        begin = time.monotonic()
        beside = [trainer.ask(seconds=seconds, save_to=str(folder)) for _ in range(blocks + 2)]
        passed = time.monotonic() - begin
        wait_until(lambda: len(daemon.successes()) == blocks + 4, f"the last evaluation: {daemon.said()}")
        busy = [row["phases"]["evaluate"] for row in daemon.successes()[2:]]
    without += [trainer.ask(seconds=seconds) for _ in range(blocks)]
    share = f"{min(1.0, sum(busy) / passed):.0%}"
    return *_medians(without, beside), len(busy), share


def _inline(trainer, blocks, seconds):
    """The same when the trainer evaluates by itself after each block."""
    without, beside = [], []
    for _ in range(blocks):
        without.append(trainer.ask(seconds=seconds))
        beside.append(trainer.ask(seconds=seconds, evaluate=True))
    found = _medians(without, beside)
    return *found, blocks, f"{1 - found[0] / found[1]:.0%}"


def _medians(without, beside):
    """Milliseconds of a step, their ratio, and the CPU time in them."""
    before, after, *cpu = (
        statistics.median(block[key] for block in blocks) * 1000
        for key in ("step", "cpu")
        for blocks in (without, beside)
    )
    return before, after, after / before, *cpu
