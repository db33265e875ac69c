"""Measure what the checks of models, metrics and losses cost."""

from programs import Child, scratch
from table import Figure, Table

FRAMEWORKS = ("tensorflow", "torch", "python")
COLUMNS = ("", "first: with", "without", "ratio", "later: with", "without", "ratio")
HOW = """Seconds of a processor for an evaluation of 100 batches of 64 examples: the convolutional net of `latency` with
TensorFlow and PyTorch, two dense layers of numpy with `framework = "python"`. One process with one thread evaluates in
pairs, with and without the checks, in alternating order; the smallest of each side counts. *first* is the first
evaluation of a worker process: three examples of each of eight batches are evaluated alone, and with PyTorch and numpy
the first batch again after all others, and some of its examples several times. *later* is any other evaluation."""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"), "1")


def measure(quick):
    rounds = 1 if quick else 5
    rows, figures = [], []
    for framework in FRAMEWORKS:
        env = ONE_THREAD | {"BENCH_EXAMPLES": "6400"}
        with scratch() as folder, Child("checks.py", framework, folder=folder, **env) as child:
            path = child.ask(save_to=str(folder / "m-1"))["path"]
            pairs = []
            for number in range(2 * rounds + 1):
                order = (True, False) if number % 2 else (False, True)
                pairs.append({checks: child.ask(checks=checks, path=path) for checks in order})
        cells = []
        for which in ("first", "later"):
            ours, plain = (min(pair[checks][which] for pair in pairs[1:]) for checks in (True, False))
            cells += [ours, plain, ours / plain]
        rows.append((framework, *cells))
        figures.append(Figure(f"{framework}: a later evaluation over one without", cells[-1], 1.02))
    return Table("Checks: evaluations with and without them", HOW, COLUMNS, rows, figures)
