"""Numbers of parts of an eval set, in one pass."""

import numpy as np
import pytest
from evaluation.backends.python.tasks import X, Y, run, task

from sidecar import EvalSet
from sidecar.evaluation.metrics.sliced import LEAST_EXAMPLES, MOST_NUMBERS
from sidecar.metrics import Accuracy, ConfusionMatrix, LogLoss, Mean, Sums

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
