"""Measure what slices, and the intervals of numbers from sums, add to an evaluation."""

import statistics

from programs import Child, scratch
from table import Figure, Table

HOW = """One thread evaluates the convolutional net with PyTorch on 4,000 examples of 32×32×3 in batches of 64 (loss and
accuracy with their intervals), in turn as it is, with slices, and with an F1 score of `Sums` and its interval. Seconds
of the processor, medians; the figures are the medians over the turns of how much longer the whole evaluation took. Rows
*Keras* are those of the same net with TensorFlow, with F1 score and area, without intervals or with those of
`Task(intervals=…)`, and with slices. Metrics with weights are updated for each slice of each batch."""
COLUMNS = ("", "slices", "evaluation", "longer by")


def measure(quick):
    found, slices = {"plain": [], "slices": [], "many slices": [], "sums": []}, {}
    with scratch() as folder, Child("slices.py", folder=folder, BENCH_EXAMPLES="4000") as child:
        for number in range((2 if quick else 9) + 1):
            for name, seconds in found.items():
                answer = child.ask(name=name)
                slices[name] = answer["slices"]
                if number:  # the first is cold
                    seconds.append(answer["seconds"])
    longer = {
        name: 100 * (statistics.median(one / plain for one, plain in zip(seconds, found["plain"], strict=True)) - 1)
        for name, seconds in found.items()
    }
    rows = [
        (name, slices[name] or "", statistics.median(seconds), "" if name == "plain" else f"{longer[name]:.1f}%")
        for name, seconds in found.items()
    ]
    rows += _of_keras(quick)
    figures = [
        Figure(f"evaluation with {slices['slices']} slices longer by", longer["slices"], 5, unit=" %"),
        Figure(f"evaluation with {slices['many slices']} slices longer by", longer["many slices"], 5, unit=" %"),
        Figure("evaluation with an interval of sums longer by", longer["sums"], 5, unit=" %"),
    ]
    return Table("Slices and intervals of sums", HOW, COLUMNS, rows, figures)


def _of_keras(quick):
    """Return rows of evaluations as they are, with intervals from a sample, and with slices, also with weights."""
    names = ("plain", "intervals=None", "intervals=True", "slices", "many slices")
    found, slices = {name: [] for name in (*names, "weights", "weights, slices", "weights, many slices")}, {}
    with scratch() as folder, Child("keras_more.py", folder=folder, BENCH_EXAMPLES="4000") as child:
        for number in range((2 if quick else 9) + 1):
            for name, seconds in found.items():
                answer = child.ask(name=name)
                slices[name] = answer["slices"]
                if number:  # the first traces
                    seconds.append(answer["seconds"])
    rows = []
    for name, seconds in found.items():
        base = "weights" if name.startswith("weights") else "plain"
        more = statistics.median(one / plain for one, plain in zip(seconds, found[base], strict=True)) - 1
        longer = "" if name == base else f"{100 * more:.1f}%"
        rows.append((f"Keras: {name}", slices[name] or "", statistics.median(seconds), longer))
    return rows
