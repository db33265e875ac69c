"""How often the 95 % intervals of numbers of frameworks, from a sample of the examples, contain the truth."""

import zlib
from statistics import NormalDist

import numpy as np
from table import Figure, Table

from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.metrics.example_sample import add_to_sample, new_sample, with_intervals
from sidecar.evaluation.metrics.metric import EvalSetInfo, MetricResult, value

HOW = """Simulated data sets with a known truth, of which the numbers of torchmetrics and Keras have an interval from a
sample of the examples. *Shown*: the share of the sets whose number has an interval, *contain*: the share of these that
contain the truth. The package leaves out the numbers that are *left out*, whatever the data: this table is why. Errors
are those expected in 100 examples. 2,000 data sets for each row, which the numbers of one kind of data share."""
COLUMNS = ("number", "data", "examples", "left out", "shown", "contain")
SETS = 2000
LEFT_OUT = ("precision", "recall", "specificity", "average precision")
_FEW = "10 classes, 2 errors"
_WANTED = (93, 97)


def measure(quick):
    rows = []
    for what, draw, numbers_of, truth in _data():
        for examples in (100, 1000):
            random = np.random.default_rng(zlib.crc32(repr((what, examples)).encode()))
            found = [
                _contain(draw(random, examples), numbers_of, truth, is_area=what.startswith("area"))
                for _ in range(20 if quick else SETS)
            ]
            for name in truth:
                hits = np.array([each[name] for each in found], float)
                hits = hits[~np.isnan(hits)]
                contain = f"{hits.mean():.1%}" if len(hits) >= len(found) / 10 else ""
                left_out = "yes" if name in LEFT_OUT else ""
                rows.append((name, what, examples, left_out, f"{len(hits) / len(found):.0%}", contain))
    kept = [float(row[-1][:-1]) for row in rows if row[-1] and not row[3] and not (row[1] == _FEW and row[2] == 100)]
    least, most = _WANTED
    figures = [
        Figure("least coverage of a number that is not left out", min(kept), least, "at least", " %"),
        Figure("largest coverage of a number that is not left out", max(kept), most, unit=" %"),
    ]
    return Table("Coverage: numbers of frameworks", HOW, COLUMNS, rows, figures)


def _contain(arrays, numbers_of, truth, *, is_area):
    """Return for each number whether its interval contains the truth; NaN: it has none."""
    info = EvalSetInfo(len(arrays[0]), Shard(0, 1), intervals=True)
    states = new_sample(info, ["all"])
    add_to_sample(states, 0, arrays)
    plain = MetricResult({name: value(number, "none") for name, number in numbers_of(arrays, 1).items()})
    found = with_intervals(plain, states, {"all": numbers_of}, "all", is_area=is_area).values
    return {
        name: np.nan if found[name].lower is None else found[name].lower <= number <= found[name].upper
        for name, number in truth.items()
    }


def _data():
    """Yield a name of data, a function that draws it, one that returns its numbers, and the true ones by name."""
    for classes, errors, shares in (
        (2, 20, (0.5, 0.5)),
        (2, 5, (0.5, 0.5)),
        (2, 10, (0.8, 0.2)),
        (10, 20, (0.1,) * 10),
        (10, 5, (0.1,) * 10),
        (10, 2, (0.1,) * 10),
    ):
        cells = np.full((classes, classes), errors / 100 / (classes - 1))
        np.fill_diagonal(cells, 1 - errors / 100)
        cells *= np.array(shares)[:, np.newaxis]
        rare = ", of 20 and 80 %" if shares[0] != shares[1] else ""
        yield (
            f"{classes} classes{rare}, {errors} errors",
            lambda random, n, cells=cells: _labels(random, n, cells),
            lambda arrays, _, k=classes: _of_cells(np.bincount(arrays[0] * k + arrays[1], minlength=k * k), k),
            _of_cells(cells.ravel(), classes),
        )
    for area, share in ((0.7, 0.5), (0.9, 0.5), (0.9, 0.2), (0.97, 0.5)):
        moved = np.sqrt(2) * NormalDist().inv_cdf(area)
        truth = {"area under ROC": area, "area of 200 thresholds": area, "average precision": _precision(share, moved)}
        given = share, moved
        yield (
            f"area {area}, {share:.0%} positives",
            lambda random, n, given=given: _scores(random, n, *given),
            _areas,
            truth,
        )
    yield "normal values, R² 0.6", _related, _of_values, _TRUE_VALUES
    yield "exponential losses", lambda random, n: [random.exponential(size=n)], _of_losses, {"perplexity": np.e}


def _labels(random, examples, cells):
    shares = cells.ravel().cumsum()
    return list(np.divmod(np.searchsorted(shares / shares[-1], random.random(examples)), len(cells)))


def _of_cells(counts, classes):
    """Return the numbers that follow from a confusion matrix, of the second of two classes or of all classes."""
    cells = np.reshape(counts, (classes, classes)).astype(float)
    right, actual, predicted, count = np.diagonal(cells), cells.sum(axis=1), cells.sum(axis=0), cells.sum()
    with np.errstate(all="ignore"):
        precision, recall, f1, iou = np.nan_to_num(
            [right / predicted, right / actual, 2 * right / (actual + predicted), right / (actual + predicted - right)]
        )
        others = np.nan_to_num((count - actual - predicted + right) / (count - actual))
        chance = (actual * predicted).sum() / count**2
        kappa = (right.sum() / count - chance) / (1 - chance)
        spread = np.sqrt((1 - (actual**2).sum() / count**2) * (1 - (predicted**2).sum() / count**2))
        matthews = (right.sum() / count - chance) / spread
    found = {"accuracy": right.sum() / count, "Matthews": matthews, "kappa": kappa}
    if classes == 2:
        of_second = {"precision": precision, "recall": recall, "specificity": others, "F1": f1, "Jaccard": iou}
        return _plain(found | {name: each[1] for name, each in of_second.items()})
    seen = actual + predicted > 0
    macro = {"accuracy": recall, "precision": precision, "F1": f1, "specificity": others, "Jaccard": iou}
    found |= {f"{name}, macro": each[seen].mean() for name, each in macro.items()}
    weighted = {"precision": precision, "F1": f1, "Jaccard": iou}
    return _plain(found | {f"{name}, weighted": (each * actual).sum() / count for name, each in weighted.items()})


def _plain(numbers):
    return {name: float(number) for name, number in numbers.items()}


def _scores(random, examples, share, moved):
    """Scores of a normal distribution, of which that of positives is moved, as numbers from 0 to 1."""
    y = (random.random(examples) < share).astype(int)
    return [y, 1 / (1 + np.exp(-(random.normal(size=examples) + (y - 0.5) * moved)))]


def _areas(arrays, _):
    y, scores = arrays
    ordered = y[np.argsort(-scores)]
    found, negatives = ordered.cumsum(), (1 - ordered).sum()
    thresholds = np.array([-1e-7, *(np.arange(1, 199) / 199), 1 + 1e-7])  # of keras.metrics.AUC
    above = np.searchsorted(thresholds, scores)  # so many thresholds are below a score
    false, true = (
        np.bincount(above[y == label], minlength=201)[::-1].cumsum()[::-1][1:] / (y == label).sum() for label in (0, 1)
    )
    return _plain(
        {
            "area under ROC": (found * (1 - ordered)).sum() / (found[-1] * negatives),
            "area of 200 thresholds": ((false[:-1] - false[1:]) * (true[:-1] + true[1:]) / 2).sum(),
            "average precision": (found / np.arange(1, len(y) + 1) * ordered).sum() / found[-1],
        }
    )


def _precision(positives, moved):
    """The average precision of all examples, by integration over the thresholds of positives."""
    normal = NormalDist()
    higher = [normal.inv_cdf((at + 0.5) / 10_000) + moved for at in range(10_000)]  # quantiles of positives
    true = positives * (1 - (np.arange(10_000) + 0.5) / 10_000)
    false = (1 - positives) * np.array([1 - normal.cdf(at) for at in higher])
    return float((true / (true + false)).mean())


def _related(random, examples):
    y = random.normal(size=examples)
    return [y, 0.8 * y + 0.6 * random.normal(size=examples)]


def _of_values(arrays, _):
    y, predictions = arrays
    errors, ranks = y - predictions, [np.argsort(np.argsort(part)) for part in arrays]
    return _plain(
        {
            "mean squared error": (errors**2).mean(),
            "root of it": np.sqrt((errors**2).mean()),
            "mean absolute error": abs(errors).mean(),
            "R²": 1 - (errors**2).sum() / ((y - y.mean()) ** 2).sum(),
            "explained variance": 1 - errors.var() / y.var(),
            "Pearson": np.corrcoef(y, predictions)[0, 1],
            "Spearman": np.corrcoef(*ranks)[0, 1],
        }
    )


_TRUE_VALUES = {
    "mean squared error": 0.4,
    "root of it": np.sqrt(0.4),
    "mean absolute error": np.sqrt(0.8 / np.pi),
    "R²": 0.6,
    "explained variance": 0.6,
    "Pearson": 0.8,
    "Spearman": 6 / np.pi * np.arcsin(0.4),
}


def _of_losses(arrays, _):
    return {"perplexity": float(np.exp(arrays[0].mean()))}
