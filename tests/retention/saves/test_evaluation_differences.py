"""Two evaluations are compared number by number and, where workers saved that, example by example."""

from dataclasses import replace

import numpy as np
import pytest
from retention.saves.conftest import COUNT, LABELS, closed, save, scores

from sidecar.evaluation.data.example_inputs import thumbnail
from sidecar.protocol.records import Slice, Value
from sidecar.retention.saves.comparison import Pairs
from sidecar.retention.saves.evaluation_differences import changed_inputs, differences


def with_classes(evaluation, number):
    value = Value(value=number, hex=number.hex(), goal="max")
    result = replace(evaluation.outcome.result, classes={"test": {"recall": {"7": value}}})
    result = replace(result, slices={"test": {"night": Slice(examples=5, metrics={"recall": value})}})
    return replace(evaluation, outcome=replace(evaluation.outcome, result=result))


def test_examples_that_changed_are_listed(tmp_path, pair):
    """The newer one answers 20 more right, and none less."""
    (found,) = differences(tmp_path, *pair)
    assert (found.metric, found.verdict, found.found.rule) == ("test/accuracy", "better", "paired")
    assert (found.fixed, found.broken) == (tuple(range(800, 820)), ())
    (back,) = differences(tmp_path, *pair[::-1])
    assert (back.verdict, back.fixed, back.broken) == ("worse", (), found.fixed)


def test_inputs_of_changed_examples(tmp_path):
    """An example that is fixed was wrong before, so the older evaluation has its input."""
    image = thumbnail(np.zeros((8, 8)))
    old, new = closed(1, 800, workers=2), closed(2, 802, workers=3)
    fixed = np.where(np.arange(COUNT) < 3, False, np.arange(COUNT) < 805)
    save(
        tmp_path, old, {"y": LABELS, "predictions": scores(800)}, inputs={802: "a text", 803: image, 900: "both wrong"}
    )
    guesses = np.eye(10, dtype=np.float32)[np.where(fixed, LABELS, (LABELS + 1) % 10)]
    save(tmp_path, new, {"y": LABELS, "predictions": guesses}, inputs={1: image, 900: "both wrong"})
    (found,) = differences(tmp_path, new, old)
    assert (found.fixed, found.broken) == ((800, 801, 802, 803, 804), (0, 1, 2))
    assert changed_inputs(tmp_path, new, old, found) == {802: "a text", 803: image, 1: image}
    assert changed_inputs(tmp_path, new, old, found, most=2) == {1: image}


def test_the_difference_that_is_detectable(tmp_path):
    """Give 1,000 pairs of which 100 differ: it is 2.8 standard errors."""
    old, new = closed(1, 500), closed(2, 500)
    right = np.arange(COUNT) < 500
    for each, guessed in ((old, right), (new, np.roll(right, 50))):
        predictions = np.eye(10, dtype=np.float32)[np.where(guessed, LABELS, (LABELS + 1) % 10)]
        save(tmp_path, each, {"y": LABELS, "predictions": predictions})
    (found,) = differences(tmp_path, new, old)
    assert (len(found.fixed), len(found.broken), found.verdict) == (50, 50, "")
    assert found.detectable == pytest.approx(2.8 * np.sqrt(0.1 / COUNT), rel=0.01)


@pytest.mark.parametrize("changed", [0, 1, 2])
def test_no_difference_of_fewer_than_five_examples_is_detectable(tmp_path, changed):
    """Few changes have a short interval, but three better examples of 1,000 are not seen, in any case."""
    old, new = closed(1, 500), closed(2, 500)
    right = np.arange(COUNT) < 500
    for each, guessed in ((old, right), (new, np.roll(right, changed))):
        predictions = np.eye(10, dtype=np.float32)[np.where(guessed, LABELS, (LABELS + 1) % 10)]
        save(tmp_path, each, {"y": LABELS, "predictions": predictions})
    (found,) = differences(tmp_path, new, old)
    assert len(found.fixed) == len(found.broken) == changed
    better = np.random.default_rng(1).poisson(found.detectable * COUNT, 2000)
    seen = []
    for larger in better.tolist():
        pairs = Pairs(count=COUNT, totals=[larger], larger=larger)
        seen.append(pairs.difference().is_better("max"))
    assert 0.78 < np.mean(seen) < 0.82


@pytest.mark.parametrize(("count", "rule"), [(50, "paired"), (10, "intervals")])
def test_examples_in_groups_are_not_independent(tmp_path, count, rule):
    """The groups are saved with the predictions; few of them have no interval of pairs."""
    old, new = closed(1, 800), closed(2, 820)
    for each, right in ((old, 800), (new, 820)):
        save(tmp_path, each, {"y": LABELS, "predictions": scores(right)}, groups=np.arange(COUNT) * count // COUNT)
    (found,) = differences(tmp_path, new, old)
    assert (found.found.rule, found.verdict) == (rule, "")  # all 20 are in one group


def test_without_saved_values_the_intervals_decide(tmp_path):
    """With the reason, by class and by slice."""
    old, new = with_classes(closed(1, 800), 0.5), with_classes(closed(2, 820), 0.75)
    found, of_class, of_slice = differences(tmp_path, new, old)
    assert (found.found.rule, found.verdict, found.fixed) == ("intervals", "", ())
    assert found.detectable > 0.04  # twice what pairs would show
    assert [each.metric for each in differences(tmp_path, new, old, "test/accuracy")] == ["test/accuracy"]
    assert list(differences(tmp_path, new, old, "test/loss")) == []
    assert "no saved predictions" in found.found.note
    assert (of_class.metric, of_class.label, of_class.found.number) == ("test/recall", "7", 0.25)
    assert (of_slice.metric, of_slice.label, of_slice.found.number) == ("test/recall", "night", 0.25)


def test_other_data_cannot_be_compared(tmp_path):
    """No number is subtracted."""
    old, new = with_classes(closed(1, 800), 0.5), with_classes(closed(2, 820, fingerprint="g"), 0.75)
    (found,) = differences(tmp_path, new, old)
    assert (found.found.number, found.verdict) == (None, "")
    assert "data" in found.found.note


def test_other_values_have_no_right_and_wrong(tmp_path):
    """A loss is compared by pairs, and no example is broken."""
    losses = np.random.default_rng(3).gamma(2.0, 1.0, COUNT)
    old, new = (
        closed(number, 800, metric="loss", total=float(values.sum()), goal="min")
        for number, values in ((1, losses), (2, losses - 0.01))
    )
    save(tmp_path, old, {"loss": losses})
    save(tmp_path, new, {"loss": losses - 0.01})
    (found,) = differences(tmp_path, new, old)
    assert (found.found.rule, found.verdict, found.fixed, found.broken) == ("paired", "better", (), ())
