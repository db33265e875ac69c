"""Numbers from sums that a function returns by name."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from sidecar.errors import RecordError, TaskError
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.failures import as_failed
from sidecar.evaluation.states import NamedSums
from sidecar.metrics import EvalBatch, EvalSetInfo, Sums


def confusion(y, predictions):
    counts = np.zeros((10, 10), np.int64)
    np.add.at(counts, (y, predictions.argmax(1)), 1)
    return {"counts": counts, "surprise": -np.log(predictions[np.arange(len(y)), y]).sum()}


def scores(totals):
    counts = totals["counts"]
    recall = np.diag(counts) / counts.sum(1)
    return {
        "surprise": totals["surprise"] / counts.sum(),
        "recall": {str(digit): number for digit, number in enumerate(recall)},
    }


def test_a_third_argument_with_a_default_gets_no_weights(measure):
    """A threshold keeps its value, unless its name says that it is a weight."""

    def above(y, predictions, threshold=0.5):  # noqa: ARG001 - as users write it
        return {"above": (predictions > threshold).sum()}

    def weighted(_y, predictions, sample_weight=None):
        return {"above": ((predictions > 0.5) * sample_weight).sum()}

    y = np.arange(5.0)
    assert measure(Sums(above, lambda totals: totals["above"]), y, y / 5).values["sums"].value == 2
    found = measure(Sums(weighted, lambda totals: totals["above"]), y, y / 5, np.full(5, 2, np.float32))
    assert found.values["sums"].value == 4
    with pytest.raises(TaskError, match="weights"):
        measure(Sums(above, lambda totals: totals["above"]), y, y, y)


@pytest.mark.parametrize("ranks", [1, 3])
def test_sums_of_large_integers_are_exact(measure, ranks):
    """Squares of times in nanoseconds pass 2^49; beyond 2^62 the message says how to write it."""
    y = np.arange(6)
    large = Sums(lambda y, _: {"sum": np.int64(2**58) + y.sum()}, lambda totals: totals["sum"] - (3 * 2**58 + 15))
    assert measure(large, y, y, ranks=ranks, batch=2).values["sums"].value == 0
    with pytest.raises((TaskError, OverflowError)) as caught:
        measure(Sums(lambda *_: {"sum": np.int64(2**61)}, len), y, y, ranks=ranks, batch=2)
    failed = as_failed(caught.value, phase="conclude", plan=1, rank=0)
    assert failed.kind == "task_error"
    assert "float(total)" in failed.message
    assert "Traceback" not in failed.message


@pytest.mark.parametrize("ranks", [1, 3, 20])
def test_numbers_come_from_the_totals_of_all_ranks(numerals, measure, ranks):
    """Counts in an array and a sum of floats of real predictions, against scikit-learn; ranks may have no batch."""
    from sklearn.metrics import log_loss, recall_score

    found = measure(Sums(confusion, scores), numerals.y, numerals.predictions, ranks=ranks)
    best = numerals.predictions.argmax(1)
    assert [one.value for one in found.classes["recall"].values()] == list(recall_score(numerals.y, best, average=None))
    assert found.values["surprise"].value == pytest.approx(log_loss(numerals.y, numerals.predictions), rel=1e-14)


def test_weights_are_passed_to_a_function_that_takes_them(measure):
    """A function that does not take them is refused, as its number would count all examples alike."""
    y, weights = np.arange(5.0), np.array([1.0, 0, 2, 0, 1])
    weighted = Sums(
        lambda _y, p, w: {"sum": (w * p).sum(), "weight": w.sum()}, lambda totals: totals["sum"] / totals["weight"]
    )
    assert measure(weighted, y, y, weights).values["sums"].value == 2.0
    with pytest.raises(TaskError, match="weights"):
        measure(Sums(lambda _y, p: {"sum": p.sum()}, lambda totals: totals["sum"]), y, y, weights)


def test_parameters_get_what_their_names_say(measure):
    """With the order of torchmetrics, and with weights."""
    y, predictions, weights = np.array([1.0, 2, 4]), np.array([1.0, 1, 2]), np.array([1.0, 0, 2])
    share = Sums(lambda preds, target: {"found": preds.sum(), "there": target.sum()}, lambda t: t["found"] / t["there"])
    assert measure(share, y, predictions).values["sums"].value == 4 / 7
    weighted = Sums(lambda pred, target, w: {"p": (pred * w).sum(), "y": (target * w).sum()}, lambda t: t["p"] / t["y"])
    assert measure(weighted, y, predictions, weights).values["sums"].value == 5 / 9


@pytest.mark.parametrize(
    ("function", "value", "reason"),
    [
        (lambda _y, p: p.sum(), lambda _: 0, "by name"),
        (lambda _y, _p: {}, lambda _: 0, "by name"),
        (lambda _y, p: {"sum": p}, lambda _: 0, "shape"),
        (lambda _y, p: {str(len(p)): 1}, lambda _: 0, "32"),
        (lambda _y, _p: {"name": "text"}, lambda _: 0, "str"),
        (lambda _y, _p: {"many": np.zeros(100_000)}, lambda _: 0, "100000"),
        (lambda _y, _p: {"none": 0}, lambda totals: 1 / totals["none"], "division by zero"),
        (lambda _y, _p: {"none": 0}, lambda totals: totals, None),
        (lambda _y, _p: {"none": 0}, lambda _: np.zeros(3), "number"),
        (3, lambda _: 0, "3"),
        (lambda _y, _p: {}, None, "None"),
    ],
)
def test_mistakes_are_named(measure, function, value, reason):
    """With the name of the metric; totals as they are may be numbers, too."""

    def run():
        return measure(Sums(function, value, name="mine"), np.zeros(40), np.zeros(40))

    if reason is None:
        assert run().values["none"].value == 0.0
        return
    with pytest.raises(TaskError, match="mine") as error:
        run()
    assert reason in str(error.value)


def test_saved_sums_are_read_back():
    """As ranks save them, and as records that are damaged."""
    state = Sums(confusion, scores).states(EvalSetInfo(3, Shard(0, 1)))["sums"]
    assert NamedSums.from_json(state.to_json()).totals() == {}
    Sums(lambda _y, p: {"sum": p.sum()}, scores).add({"sums": state}, EvalBatch(np.zeros(2), np.array([0.1, 0.2])))
    again = NamedSums.from_json(json.loads(json.dumps(state.to_json())))
    again.merge(state)
    assert again.totals() == {"sum": 0.6000000000000001}
    with pytest.raises(RecordError):
        NamedSums.from_json({"sums": {"sum": 3}})


def test_the_example_of_the_docs_is_the_f1_score(numerals, measure):
    """As scikit-learn computes it."""
    from sklearn.metrics import f1_score

    page = (Path(__file__).parents[3] / "docs" / "how-to" / "metrics.md").read_text()
    block = re.search(r"<!-- sums.py -->\n```python\n(.*?)```", page, re.DOTALL)
    names = {}
    exec(block[1], names)
    found = measure(names["f1"], numerals.y, numerals.predictions, ranks=2)
    expected = f1_score(numerals.y == 1, numerals.predictions.argmax(1) == 1)
    assert found.values["f1"].value == pytest.approx(expected, rel=1e-15)
