"""How often the 95 % intervals of the package contain the true number."""

import zlib
from statistics import NormalDist

import numpy as np
from table import Figure, Table

from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.intervals import clustered, normal, wilson
from sidecar.evaluation.metrics import sliced
from sidecar.evaluation.metrics.confusion_intervals import Intervals
from sidecar.evaluation.metrics.random_groups import FEWEST_EXAMPLES
from sidecar.evaluation.states.group_sums import MOST_GROUPS
from sidecar.metrics import AUC, R2, EvalBatch, EvalSetInfo, Sums

HOW = """Simulated data sets with a known truth: the share of the 95 % intervals that contain it. *before* is the
interval that was there earlier: mean ± z·s/√n, or Wilson's, as if rows were independent, and none for weights. An empty
cell is no interval. Rows of a group share a part of their value; *correlation* is that between two of them. Groups of
unequal sizes have lognormal ones. *If any*: of sets that have large values, *if none*: of those that have none.
2,000 data sets for each row; each row has a seed of its own."""
COLUMNS = ("what", "examples", "groups", "correlation", "before", "now")
SETS = 2000
Z = 1.959963984540054


def measure(quick):
    rows, found = [], []
    for what, examples, groups, correlation, draw in _cases():
        random = np.random.default_rng(zlib.crc32(repr((what, examples, groups, correlation)).encode()))
        hits = np.array([draw(random) for _ in range(50 if quick else SETS)], float)
        shares = [part[~np.isnan(part)] for part in hits.T]  # of the intervals that are shown
        before, now = (f"{part.mean():.1%}" if len(part) >= len(hits) / 10 else "" for part in shares)
        rows.append((what, examples, groups or "", correlation or "", before, now))
        found.append(shares[1].mean() if now else np.nan)
    grouped = [
        100 * float(share)
        for (what, *_), share in zip(rows, found, strict=True)
        if "groups" in what and np.isfinite(share)
    ]
    figures = [
        Figure("least coverage for rows in groups", min(grouped), 93, "at least", " %"),
        Figure("largest coverage for rows in groups", max(grouped), 97, unit=" %"),
    ]
    return Table("Coverage: 95 % intervals", HOW, COLUMNS, rows, figures)


def _cases():
    """Yield what is measured, examples, groups, correlation, and a function of a generator that tells (before, now)."""
    for examples in (20, 100, 1000):
        for share in (0.5, 0.9, 0.99):
            yield (
                f"accuracy {share}",
                examples,
                0,
                0,
                lambda random, n=examples, p=share: _share(random.random(n) < p, p),
            )
        yield "mean of normal values", examples, 0, 0, lambda random, n=examples: _mean(random.normal(size=n), 0)
        yield (
            "mean of skewed values (exponential)",
            examples,
            0,
            0,
            lambda random, n=examples: _mean(random.exponential(size=n), 1),
        )
        yield (
            "mean of very skewed values (lognormal)",
            examples,
            0,
            0,
            lambda random, n=examples: _mean(random.lognormal(size=n), np.exp(0.5)),
        )
        for which in ("", ", if any", ", if none")[: 3 if examples == 100 else 1]:
            yield (
                f"mean of values, 1 % of them 100 times larger{which}",
                examples,
                0,
                0,
                lambda random, given=(examples, which): _rare(random, *given),
            )
        yield "weighted mean (exponential weights)", examples, 0, 0, lambda random, n=examples: _weighted(random, n)
        yield from _of_metrics(examples)
    for groups, size, correlation in (
        (50, 20, 0.0),
        (50, 20, 0.2),
        (50, 20, 0.5),
        (100, 10, 0.2),
        (20, 50, 0.2),
        (200, 5, 0.3),
        (1000, 4, 0.3),
    ):
        given = groups, size, correlation
        yield (
            "accuracy 0.8 of rows in groups",
            groups * size,
            groups,
            correlation,
            lambda random, given=given: _rows(random, *given, is_share=True),
        )
        yield (
            "mean of rows in groups",
            groups * size,
            groups,
            correlation,
            lambda random, given=given: _rows(random, *given, is_share=False),
        )
    for groups, size in ((20, 50), (50, 20), (200, 5)):
        given = groups, size, 0.2
        for is_share, what in ((True, "accuracy 0.8"), (False, "mean")):
            yield (
                f"{what} of rows in groups of unequal sizes",
                groups * size,
                groups,
                0.2,
                lambda random, given=given, is_share=is_share: _rows(random, *given, is_share=is_share, unequal=True),
            )


def _of_metrics(examples):
    """Yield what `_cases` does of metrics whose numbers are no means."""
    for classes, accuracy in ((2, 0.95), (10, 0.8), (10, 0.97)):
        for place, name in enumerate(("precision_macro", "f1_macro", "f1_weighted", "f1 of the rarest class")):
            given = classes, accuracy, place
            yield (
                f"{name}, {classes} classes, accuracy {accuracy}",
                examples,
                0,
                0,
                lambda random, n=examples, given=given: _matrix(random, n, *given),
            )
    for area in (0.7, 0.9):
        given = examples, area
        yield f"AUC {area}", examples, 0, 0, lambda random, given=given: _area(random, *given)
    yield "R² 0.5", examples, 0, 0, lambda random, n=examples: _r2(random, n)
    if examples >= FEWEST_EXAMPLES:
        for metric, name in ((F1, "F1"), (CORRELATION, "correlation")):
            given = examples, metric
            yield f"Sums: {name}", examples, 0, 0, lambda random, given=given: _sums(random, *given)
    for share in (0.1, 0.5):
        truth = _average_precision(share, 0.9)
        yield (
            f"average precision of AUC 0.9, {share:.0%} positives",
            examples,
            0,
            0,
            lambda random, given=(examples, 0.9, share, truth): _area(random, *given),
        )


def _contains(interval, truth):
    return np.nan if interval[0] is None else interval[0] <= truth <= interval[1]


def _share(right, truth):
    interval = wilson(int(right.sum()), len(right))
    return _contains(interval, truth), _contains(interval, truth)


def _by_z(values):
    half = Z * values.std(ddof=1) / np.sqrt(len(values))
    return values.mean() - half, values.mean() + half


def _mean(values, truth):
    now = normal(*(float((values**power).sum()) for power in (1, 2)), len(values), float((values**3).sum()))
    return _contains(_by_z(values), truth), _contains(now, truth)


def _rare(random, examples, which):
    """Values of which few are large; `which`: of sets that have any, or none."""
    large = random.random(examples) < 0.01
    if (which == ", if any" and not large.any()) or (which == ", if none" and large.any()):
        return np.nan, np.nan
    return _mean(random.exponential(size=examples) * np.where(large, 100, 1), 0.99 + 1)


def _of_groups(values, weights, numbers, *, is_share=False):
    numbers = numbers % MOST_GROUPS
    sums = [np.bincount(numbers, part).tolist() for part in (values * weights, weights)]
    return clustered(*sums, is_proportion=is_share)


def _weighted(random, examples):
    values, weights = random.normal(size=examples), random.exponential(size=examples)
    return np.nan, _contains(_of_groups(values, weights, np.arange(examples)), 0)


def _area(random, examples, area, positives=None, truth=None):
    """Scores of a normal distribution, of which that of positives is moved so far that the area is the given one.

    With a share of `positives`, which are drawn, it is the average precision that has the interval.
    """
    y = np.arange(examples) % 2 if positives is None else (random.random(examples) < positives).astype(int)
    scores = random.normal(size=examples) + y * np.sqrt(2) * NormalDist().inv_cdf(area)
    metric = AUC()
    states = metric.states(EvalSetInfo(examples, Shard(0, 1)))
    metric.add(states, EvalBatch(y, scores, None, 0))
    found = metric.compute(states).values["roc_auc" if positives is None else "pr_auc"]
    return np.nan, _contains((found.lower, found.upper), area if truth is None else truth)


def _r2(random, examples):
    predictions = random.normal(size=examples)
    metric, y = R2(), predictions + random.normal(size=examples)
    states = metric.states(EvalSetInfo(examples, Shard(0, 1)))
    metric.add(states, EvalBatch(y, predictions, None, 0))
    found = metric.compute(states).values["r2"]
    return np.nan, _contains((found.lower, found.upper), 0.5)


def _matches(y, predictions):
    return {"both": (y & predictions).sum(), "found": predictions.sum(), "there": y.sum()}


def _moments(y, predictions):
    products = {"yy": y * y, "pp": predictions * predictions, "yp": y * predictions}
    return {"n": len(y), "y": y.sum(), "p": predictions.sum()} | {name: each.sum() for name, each in products.items()}


def _correlation(totals):
    n, y, p = totals["n"], totals["y"], totals["p"]
    return (totals["yp"] - y * p / n) / np.sqrt((totals["yy"] - y * y / n) * (totals["pp"] - p * p / n))


F1 = Sums(_matches, lambda totals: 2 * totals["both"] / (totals["found"] + totals["there"]), name="found")
CORRELATION = Sums(_moments, _correlation, name="found")


def _sums(random, examples, metric):
    """F1 of a class with a fifth of the labels, of which 9 of 10 are right, as of the others; correlation 0.8."""
    if metric is F1:
        y = random.random(examples) < 0.2
        predictions, truth = y ^ (random.random(examples) < 0.1), 2 * 0.18 / (0.18 + 0.08 + 0.2)
    else:
        y, truth = random.normal(size=examples), 0.8
        predictions = 0.8 * y + 0.6 * random.normal(size=examples)
    states = sliced.new_states(metric, EvalSetInfo(examples, Shard(0, 1)))
    sliced.add(metric, states, [EvalBatch(y, predictions, None, 0)])
    found = sliced.computed(metric, states).values["found"]
    return np.nan, _contains((found.lower, found.upper), truth)


def _average_precision(positives, area):
    """The average precision of all examples, by integration over the thresholds of positives."""
    moved = np.sqrt(2) * NormalDist().inv_cdf(area)
    normal = NormalDist()
    higher = [normal.inv_cdf((at + 0.5) / 10_000) + moved for at in range(10_000)]  # quantiles of positives
    true = positives * (1 - (np.arange(10_000) + 0.5) / 10_000)
    false = (1 - positives) * np.array([1 - normal.cdf(at) for at in higher])
    return float((true / (true + false)).mean())


def _matrix(random, examples, classes, accuracy, place):
    """Labels of classes of which the first is three times as frequent as the last; all errors are alike."""
    shares = np.geomspace(3, 1, classes)
    cells = np.full((classes, classes), (1 - accuracy) / (classes - 1))
    np.fill_diagonal(cells, accuracy)
    cells *= (shares / shares.sum())[:, np.newaxis]
    truth, _ = _numbers(cells)[place]
    counts = random.multinomial(examples, cells.ravel()).reshape(cells.shape).astype(float)
    intervals = Intervals.of(counts, are_independent=True)
    found = (
        intervals.macro("precision"),
        intervals.macro("f1"),
        intervals.weighted("f1"),
        intervals.by_class("f1")[-1],
    )[place]
    number, error = _numbers(counts)[place]
    return _contains((number - Z * error, number + Z * error), truth), _contains(found, truth)


def _numbers(cells):
    """Macro precision, macro F1, weighted F1 and F1 of the last class, each with the error of a mean of as many."""
    right, predicted, actual = np.diagonal(cells), cells.sum(axis=0), cells.sum(axis=1)
    with np.errstate(all="ignore"):
        precision, f1 = np.nan_to_num(right / predicted), np.nan_to_num(2 * right / (predicted + actual))
    found = precision.mean(), f1.mean(), (f1 * actual).sum() / actual.sum(), f1[-1]
    return [(number, np.sqrt(number * (1 - number) / cells.sum())) for number in found]


def _rows(random, groups, size, correlation, *, is_share, unequal=False):
    numbers = np.arange(groups * size) // size
    if unequal:
        shares = random.lognormal(size=groups)
        numbers = np.sort(random.choice(groups, groups * size, p=shares / shares.sum()))
    if not is_share:
        shared = random.normal(size=groups)[numbers] * np.sqrt(correlation)
        values = shared + random.normal(size=groups * size) * np.sqrt(1 - correlation)
        return _contains(_by_z(values), 0), _contains(_of_groups(values, np.ones(len(values)), numbers), 0)
    # Rows copy the answer of their group with a probability whose square is the correlation.
    copies = random.random(groups * size) < np.sqrt(correlation)
    right = np.where(copies, (random.random(groups) < 0.8)[numbers], random.random(groups * size) < 0.8)
    now = _of_groups(right * 1.0, np.ones(len(right)), numbers, is_share=True)
    return _contains(wilson(int(right.sum()), len(right)), 0.8), _contains(now, 0.8)
