"""What exactness costs: exact states against float32 sums."""

import statistics

from programs import Child, scratch
from table import Figure, Table

HOW = """One process evaluates the convolutional net on 10,000 examples of 32×32×3 in batches of 64 (loss and
accuracy with their intervals), in turn with this project's exact states and with a float32 sum for each output of
the same traced step. Seconds, medians; *adding* is the time between a step's outputs and the next step. The figure
compares the adding, since the difference of two whole evaluations drowns in noise; both are shown."""
COLUMNS = ("", "evaluation", "adding", "share")


def measure(quick):
    rounds = 3 if quick else 15
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
    figures = [
        Figure(
            "exact adding over float32 adding, of an evaluation", 100 * (adding - plain_adding) / plain, 3, unit=" %"
        )
    ]
    notes = [f"Whole evaluations differ by {100 * (exact - plain) / plain:+.1f} %."]
    return Table("Exact sums: against float32", HOW, COLUMNS, rows, figures, notes)
