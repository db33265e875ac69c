"""How often a run of equally good checkpoints gets a false best one, and how well a better checkpoint is found."""

import statistics

import numpy as np
from table import Figure, Table

from sidecar.retention.saves.comparison import CONFIDENCE, Pairs, confidence_after

CHECKPOINTS = 50
HOW = """Simulated runs of 50 checkpoints, compared example by example with the best one before, as with
`best_by = "significant"`. Each checkpoint answers all examples anew, or only 30 % of them. *false best*: all
checkpoints are equally good, and one of them is called better. *found*: from a checkpoint on, all are better by two
points, as many as 4 % of the answers of 1,000 examples differ, and the best one at the end of the run is one of those;
*at once*: the first better one is called better. *usual* is an interval of 95 % at each look, *many looks* the longer
one that counts looks. Seeds are fixed."""
COLUMNS = ("runs", "examples", "accuracy", "answers drawn anew", "better from", "usual", "many looks")
RULES = (lambda _: CONFIDENCE, confidence_after)


def measure(quick):
    rows, shares = [], []
    for examples, accuracy, redrawn in ((1000, 0.9, 1.0), (1000, 0.9, 0.3), (200, 0.7, 1.0), (200, 0.7, 0.3)):
        runs = [_equal(seed, examples, accuracy, redrawn) for seed in range(20 if quick else 1000)]
        found = [statistics.mean(_best_of(run, rule) > 0 for run in runs) for rule in RULES]
        rows.append(("false best", examples, accuracy, f"{redrawn:.0%}", "", *map(_percent, found)))
        shares.append(found[1])
    powers = []
    for better_from in (1, 5, 10, 25, 40):
        runs = [_improving(seed, better_from) for seed in range(20 if quick else 1000)]
        for name, end in (("found", CHECKPOINTS), ("at once", better_from + 1)):
            found = [statistics.mean(_best_of(run[:end], rule) >= better_from for run in runs) for rule in RULES]
            rows.append((name, 1000, 0.9, "", better_from, *map(_percent, found)))
            powers += [found[1] / found[0]] if name == "found" else []
    figures = [
        Figure("runs with a false best one", 100 * max(shares), 5, unit=" %"),
        Figure("better checkpoints found, over the usual interval", min(powers), 0.8, "at least"),
    ]
    return Table("Many looks: a false best checkpoint", HOW, COLUMNS, rows, figures)


def _percent(share):
    return f"{share:.1%}"


def _equal(seed, examples, accuracy, redrawn):
    """Return whether each checkpoint (rows) answers each example right, if all are equally good."""
    random = np.random.default_rng(seed)
    rows = [random.random(examples) < accuracy]
    for _ in range(1, CHECKPOINTS):
        fresh = random.random(examples) < accuracy
        rows.append(np.where(random.random(examples) < redrawn, fresh, rows[-1]))
    return np.array(rows)


def _improving(seed, better_from):
    """Return the answers of checkpoints that differ in 4 % of 1,000 examples, and are better by 2 % from one on."""
    random = np.random.default_rng(seed)
    # Of each checkpoint, 2 % of the examples of an easy kind are answered wrong by chance, and of a hard kind right.
    right = random.random(1000) < 0.9
    rows = []
    for number in range(CHECKPOINTS):
        chance = np.where(right, 0.99, 0.01 * 9) if number < better_from else np.where(right, 0.99, 0.29)
        rows.append(random.random(1000) < chance)
    return np.array(rows)


def _best_of(run, confidence):
    """Return the number of the checkpoint that is the best one by more than noise after the run."""
    best = 0
    for number in range(1, len(run)):
        larger, smaller = (int(np.count_nonzero(each)) for each in (run[number] & ~run[best], run[best] & ~run[number]))
        if larger > smaller:
            pairs = Pairs(count=run.shape[1], totals=[larger - smaller], larger=larger, smaller=smaller)
            if pairs.difference(confidence(number - best)).is_better("max"):
                best = number
    return best
