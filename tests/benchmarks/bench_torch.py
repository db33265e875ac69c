"""PyTorch: from a saved checkpoint to the gauge, over the floor; and two workers against one."""

import contextlib

import machine
from bench_latency import COLUMNS, ours, ratio, row
from bench_scaling import compare
from programs import Child, scratch
from table import Figure, Table

HOW = """As *latency* and *scaling*, with PyTorch: the same net and data, `torch.save` of model and optimizer, and a
floor that loads the model's weights and runs one loop of forward pass, loss and accuracy. The archive is complete as
soon as its checksums agree. `evaluate` of two workers with one core and one thread each is compared with one such
worker, in turn: *compute-bound* on 30,000 examples in memory, *DataLoader-bound* on 3,000 examples that a `Dataset`
decompresses, read by a `DataLoader` without processes of its own, with `cache_bytes = 0`."""


def measure(quick):
    rounds = 3 if quick else 10
    cores = machine.cpus()[:2]
    with scratch() as folder, contextlib.ExitStack() as stack:
        floor = stack.enter_context(Child("floor_torch.py", folder=folder))
        saver = stack.enter_context(Child("saver_torch.py", folder=folder))
        one = ours(saver, floor, folder / "one", rounds, [{}], task="conv_torch.py")
        pinned = [{"cores": {core}, "threads": 1} for core in cores]
        two = ours(saver, floor, folder / "two", rounds, pinned, task="conv_torch.py")
    with scratch() as folder, contextlib.ExitStack() as stack:
        saver = stack.enter_context(Child("saver_torch.py", folder=folder))
        examples = 5_000 if quick else 30_000
        rounds = 2 if quick else 7
        computing, explained = compare(saver, folder / "computing", rounds, cores, "conv_torch.py", examples)
        examples = 500 if quick else 3_000
        loading, told = compare(saver, folder / "loading", rounds, cores, "loader_torch.py", examples, cache_bytes=0)
    rows = [row("1 worker", *one), row("2 workers, a core each", *two)]
    figures = [
        Figure("1 worker, median over the floor", ratio(one), 1.15),
        Figure("2 workers on 2 cores, median over the floor", ratio(two), 1.20),
        Figure("two workers against one, compute-bound, phase evaluate", computing[2], 1.85, "at least", " ×"),
        Figure("two workers against one, DataLoader-bound, phase evaluate", loading[2], 1.85, "at least", " ×"),
    ]
    return Table("PyTorch: latency and scaling", HOW, COLUMNS, rows, figures, [*explained, *told])
