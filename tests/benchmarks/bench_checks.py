"""Measure what the checks of models, metrics and losses cost."""

import statistics

from programs import Child, scratch
from table import Figure, Table

FRAMEWORKS = ("tensorflow", "torch", "python")
COLUMNS = ("", "first: with", "without", "ratio", "later: with", "without", "ratio")
HOW = """Seconds of a processor for an evaluation of 100 batches of 64 examples, medians: the convolutional net of
`latency` with TensorFlow and PyTorch, two dense layers of numpy with `framework = "python"`. One process with one
thread evaluates in pairs, with and without the checks: the first batch evaluated again, before and after all others,
four batches in halves, and in TensorFlow single batches replayed. *first* is the first evaluation of a worker process,
*later* any other one."""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"), "1")


def measure(quick):
    rounds = 2 if quick else 5
    rows, figures = [], []
    for framework in FRAMEWORKS:
        env = ONE_THREAD | {"BENCH_EXAMPLES": "6400"}
        with scratch() as folder, Child("checks.py", framework, folder=folder, **env) as child:
            path = child.ask(save_to=str(folder / "m-1"))["path"]
            pairs = [(child.ask(checks=True, path=path), child.ask(checks=False, path=path)) for _ in range(rounds + 1)]
        cells = []
        for which in ("first", "later"):
            ours, plain = (statistics.median(each[which] for each in side) for side in zip(*pairs[1:], strict=True))
            cells += [ours, plain, ours / plain]
        rows.append((framework, *cells))
        figures.append(Figure(f"{framework}: a later evaluation over one without", cells[-1], 1.02))
    return Table("Checks: evaluations with and without them", HOW, COLUMNS, rows, figures)
