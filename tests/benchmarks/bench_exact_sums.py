"""Measure what exactness costs: exact states against float32 sums."""

import statistics

from programs import Child, scratch
from table import Figure, Table

HOW = """One process evaluates the convolutional net on 10,000 examples of 32×32×3 in batches of 64 (loss and
accuracy with their intervals), in turn with this project's exact states and with a float32 sum for each output of
the same traced step. Seconds, medians; *adding* is the part of them in which states or sums take up what a step put
out. The figure is the median over the turns of how much longer the whole evaluation took."""
COLUMNS = ("", "evaluation", "adding", "share")


def measure(quick):
    rounds = 3 if quick else 25
    with scratch() as folder, Child("exact.py", folder=folder) as child:
        found = {True: [], False: []}
        for number in range(rounds + 1):
            for exact, measured in found.items():
                answer = child.ask(exact=exact)
                if number:  # the first is cold
                    measured.append((answer["seconds"], answer["adding"]))
    (exact, adding), (plain, plain_adding) = (
        tuple(statistics.median(each) for each in zip(*measured, strict=True)) for measured in found.values()
    )
    rows = [
        ("exact states", exact, adding, f"{adding / exact:.1%}"),
        ("float32 sums", plain, plain_adding, f"{plain_adding / plain:.1%}"),
    ]
    longer = statistics.median(ours / theirs for (ours, _), (theirs, _) in zip(*found.values(), strict=True)) - 1
    figures = [Figure("evaluation longer than with float32 sums by", 100 * longer, 3, unit=" %")]
    return Table("Exact sums: against float32", HOW, COLUMNS, rows, figures)
