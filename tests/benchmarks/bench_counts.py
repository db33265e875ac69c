"""Counts over 100,000,000 examples."""

from programs import Child, scratch
from table import Figure, Table
from worker_group import Place, WorkerGroup

HOW = """Two real worker processes evaluate 10⁸ synthetic examples in batches of 99,991, all-reduced; how many the
model gets right is known by arithmetic. Beside it Keras' own accuracy metric, updated with batches of the same
sizes; and with 2²⁴ examples in large batches, then 1,000 single ones. The figure is the number of examples and of
right answers miscounted."""
COLUMNS = ("", "examples", "counted", "right", "counted right")


def measure(quick):
    examples = 3_000_000 if quick else 100_000_000
    env = {"BENCH_EXAMPLES": str(examples)}
    # Right are: 1 where the label is 0, -1 where it is 1; multiples of 7, of 3, and of both.
    sevenths, thirds, both = (-(-examples // each) for each in (7, 3, 21))
    right = examples - sevenths - thirds + 2 * both
    with scratch() as folder:
        with WorkerGroup(folder, "many.py", [Place()] * 2, env=env, cache_bytes=0) as worker_group:
            result, seconds = worker_group.evaluate(str(folder / "ckpt-1"))
        found = result.examples["test"]
        found_right = result.metrics["test"]["accuracy"].value * found
        with Child("keras_count.py", folder=folder, **env) as child:
            batches, singles = child.ask(way="batches"), child.ask(way="singles")
    rows = [
        ("two workers, all-reduced", examples, found, right, found_right),
        ("Keras, batches of 99,991", batches["examples"], batches["counted"], "", ""),
        ("Keras, 2²⁴ and 1,000 single ones", singles["examples"], singles["counted"], "", ""),
    ]
    figures = [Figure("miscounted", abs(found - examples) + abs(round(found_right) - right), 0)]
    return Table("Counts: 100,000,000 examples", HOW, COLUMNS, rows, figures, [f"The evaluation took {seconds:.0f} s."])
