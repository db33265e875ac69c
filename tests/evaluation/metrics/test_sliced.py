"""Numbers of parts of an eval set, in one pass."""

from itertools import pairwise

import numpy as np
import pytest
from evaluation.backends.python.tasks import X, Y, run, task

from sidecar import EvalSet
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.data.slice_table import SliceTable
from sidecar.evaluation.metrics import sliced
from sidecar.evaluation.metrics.sliced import LEAST_EXAMPLES, MOST_NUMBERS
from sidecar.metrics import (
    MAE,
    MSE,
    R2,
    Accuracy,
    BinnedAUC,
    Calibration,
    ConfusionMatrix,
    EvalBatch,
    EvalSetInfo,
    LogLoss,
    Mean,
    Perplexity,
    Sums,
    TopK,
)

COUNTRIES = np.array(["de", "fr", "it"])[np.arange(len(Y)) * 7 % 3]
DAYS = np.arange(len(Y)) % 5
SLICES = {
    "night": lambda x, _: x[:, 0] > 0,
    "day": DAYS,
    "country": COUNTRIES,
    "by both": ("night", "country"),
}


def total(y, scores, weights=None):
    weights = np.ones(len(y)) if weights is None else weights
    return {"n": weights.sum(dtype=float), "s": (scores[:, 0] * weights).sum()}


def metrics():
    return [
        Accuracy(),
        Mean(lambda _, scores: scores.max(axis=1), name="largest", goal="min"),
        Sums(total, lambda totals: totals["s"] / totals["n"]),
        ConfusionMatrix(3),
        LogLoss(from_logits=True),
    ]


@pytest.mark.parametrize(
    ("extra", "ranks"),
    [
        ({}, (1, 2)),
        pytest.param({"groups": np.arange(103) // 4}, (1, 2, 3, 5), marks=pytest.mark.nightly),
        pytest.param({"weighted": True}, (1, 2, 3, 5), marks=pytest.mark.nightly),
    ],
)
def test_each_slice_has_the_numbers_of_its_examples_alone(checkpoint, tmp_path, extra, ranks):
    """Those of an eval set that has only them, and the same bits for any number of workers."""
    weights = (np.random.default_rng(0).exponential(size=103).astype(np.float32),) if extra.get("weighted") else ()
    groups = extra.get("groups")

    def source(rows=slice(None)):
        return EvalSet(
            lambda: (X[rows], Y[rows], *(each[rows] for each in weights)),
            groups=None if groups is None else groups[rows],
        )

    whole = EvalSet(source().source, groups=groups, slices=SLICES)
    found = [
        run(task(whole, metrics=metrics), checkpoint, tmp_path / f"of-{count}", count)[0].result for count in ranks
    ]
    assert all((each.metrics, each.slices) == (found[0].metrics, found[0].slices) for each in found)
    slices = found[0].slices["test"]
    assert {"night", "day=0", "day=4", "country=de", "night & country=it"} <= slices.keys()
    assert sum(each.examples for name, each in slices.items() if name.startswith("country=")) == 103
    rows = {"night": X[:, 0] > 0, "day=2": DAYS == 2, "night & country=fr": (X[:, 0] > 0) & (COUNTRIES == "fr")}
    for name, chosen in rows.items():
        alone = run(task(source(chosen), metrics=metrics, batch_size=200), checkpoint, tmp_path / name)[0].result
        assert slices[name].examples == alone.examples["test"]
        for metric, value in alone.metrics["test"].items():
            of_slice = slices[name].metrics[metric]
            assert float.fromhex(of_slice.hex) == pytest.approx(float.fromhex(value.hex), rel=1e-6)
            if value.lower is not None:
                width = value.upper - value.lower
                near = pytest.approx((value.lower, value.upper), rel=1e-6, abs=0.15 * width if weights else 0)
                assert (of_slice.lower, of_slice.upper) == near  # with weights, examples are united in another way


def test_the_worst_slice_is_a_number_of_the_set(checkpoint, tmp_path):
    """Small slices do not count, and the direction of each metric decides."""
    result = run(task(EvalSet(lambda: (X, Y), slices=SLICES), metrics=metrics), checkpoint, tmp_path)[0].result
    values = result.metrics["test"]
    large = [each.metrics for each in result.slices["test"].values() if each.examples >= LEAST_EXAMPLES]
    assert 1 < len(large) < len(result.slices["test"])
    assert values["worst_slice_accuracy"].value == min(each["accuracy"].value for each in large)
    assert values["worst_slice_largest"].value == max(each["largest"].value for each in large)
    assert values["worst_slice_accuracy"].goal == "max"
    assert values["worst_slice_accuracy"].lower is None
    assert "worst_slice_sums" not in values


def test_only_the_largest_slices_are_in_the_record(checkpoint, tmp_path):
    """A note counts the others, and the worst one is of all."""
    many = EvalSet(
        lambda: (np.tile(X, (20, 1)), np.tile(Y, 20)), slices={"user": np.arange(2060) // 2, "half": Y.tolist() * 20}
    )
    result = run(task(many, metrics=lambda: [Accuracy()]), checkpoint, tmp_path)[0].result
    assert len(result.slices["test"]) == MOST_NUMBERS
    assert {"half=0", "half=1", "half=2"} <= result.slices["test"].keys()
    assert any("33 of 1,033 slices" in note for note in result.notes)


def values(name, y, scores):
    """Return a metric, with labels and predictions as it takes them."""
    probabilities = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    is_first, first = (y == 0).astype(int), probabilities[..., 0]
    return {
        "accuracy": (Accuracy(), y, scores),
        "top": (TopK(2), y, scores),
        "matrix": (ConfusionMatrix(3), y, scores),
        "mse": (MSE(), y * 0.1, scores[..., 0]),
        "mae": (MAE(), y * 0.1, scores[..., 0]),
        "r2": (R2(), y * 0.1, scores[..., 0]),
        "log loss": (LogLoss(), y, probabilities),
        "perplexity": (Perplexity(from_logits=True), y, scores),
        "mean": (Mean(lambda y, p: y == p.argmax(-1)), y, scores),
        "calibration": (Calibration(), y, probabilities),
        "binned": (BinnedAUC(), is_first, first),
    }[name]


@pytest.mark.parametrize(
    "name",
    ["accuracy", "top", "matrix", "mse", "mae", "r2", "log loss", "perplexity", "mean", "calibration", "binned"],
)
@pytest.mark.parametrize("kind", ["plain", "weights", "sequences", "groups"])
def test_one_pass_gives_each_slice_what_its_rows_give_alone(name, kind):
    """With weights of 0 and others, several positions for each example, and groups, in batches of any size."""
    random = np.random.default_rng(5)
    shape = (90, 4) if kind == "sequences" else (90,)
    metric, y, predictions = values(name, random.integers(0, 3, shape), random.normal(size=(*shape, 3)))
    weights = None if kind in ("plain", "groups") else random.choice([0, 0.3, 1, 2.7], shape).astype(np.float32)
    groups = random.integers(0, 30, 90) if kind == "groups" else None
    keys = {"part": random.integers(0, 4, 90), "half": [place % 2 == 0 or None for place in range(90)]}
    table = SliceTable("test", keys | {"both": ("part", "half")})
    table.begin(90, is_whole=True)
    table.put(None, 0, 90)

    def parts(ends):
        for first, end in pairwise(ends):
            some = None if weights is None else weights[first:end]
            yield EvalBatch(y[first:end], predictions[first:end], some, first, end - first)

    found = []
    for ends in ([0, 16, 32, 90], [0, 90]):
        states = sliced.new_states(metric, EvalSetInfo(90, Shard(0, 1), groups, table))
        sliced.add(metric, states, list(parts(ends)))
        found.append(sliced.computed(metric, states).slices)
    assert len(found[0]) == 9
    info = EvalSetInfo(64, Shard(0, 1), groups)
    for label, rows in table.of(np.arange(90)):
        alone = metric.states(info)
        metric.add(alone, next(parts([0, 90])).part(rows))
        wanted = metric.compute(alone).values
        for numbers in (each[label] for each in found):
            assert numbers.keys() == wanted.keys()
            for key, number in wanted.items():
                known, ends = (
                    [np.nan if end is None else end for end in (each.value, each.lower, each.upper)]
                    for each in (number, numbers[key])
                )
                assert ends == pytest.approx(known, rel=1e-12, nan_ok=True), (label, key)
