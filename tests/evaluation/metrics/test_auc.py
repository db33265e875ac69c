"""Compare exact areas under curves with those of scikit-learn."""

import numpy as np
import pytest

from sidecar.errors import TaskError
from sidecar.evaluation.data.shard import Shard
from sidecar.metrics import AUC, BinnedAUC, EvalBatch, EvalSetInfo


def test_exact_auc_needs_the_number_of_examples():
    """Where it is not known, or too large for the memory, the binned one is named."""
    with pytest.raises(TaskError, match=r"'auc'.*number of examples.*BinnedAUC"):
        AUC().states(EvalSetInfo(None, Shard(0, 1)))
    with pytest.raises(TaskError, match=r"'auc'.*10000001.*160 MB.*BinnedAUC"):
        AUC().states(EvalSetInfo(10_000_001, Shard(0, 1)))
    assert AUC(max_examples=10).states(EvalSetInfo(10, Shard(0, 1)))
    with pytest.raises(TaskError, match="max_examples"):
        AUC(max_examples=10).states(EvalSetInfo(11, Shard(0, 1)))
    assert BinnedAUC().states(EvalSetInfo(None, Shard(0, 1)))


def test_goals_and_intervals(odd, measure):
    """More is better, and how sure it is nobody says."""
    y, p, _ = odd
    found = {**measure(AUC(name="odd"), y, p).values, **measure(BinnedAUC(), y, p, known=False).values}
    assert list(found) == ["roc_odd", "pr_odd", "roc_binned_auc", "pr_binned_auc"]
    assert {(each.goal, each.lower) for each in found.values()} == {("max", None)}


@pytest.mark.parametrize("kind", [AUC, BinnedAUC])
def test_mistakes_are_told_in_one_sentence(both, kind):
    """What, which metric, what was found, what to do."""
    for metric, y, predictions, told in (
        (kind(), [0, 1], np.eye(2), r"\(2, 2\).*positive=…"),
        (kind(), [0, 2], [0.5, 0.5], "binary labels .*found 2"),
        (kind(), [0, 1, 1], [0.5, 0.5], r"\(3,\).*\(2,\).*same shape"),
        (kind(2), [0, 1], np.eye(2), r"positive=2\b.*\b2\b"),
        (kind(1), [0, 2], np.eye(2), r"\bfrom 0 to 1\b.*found 2"),
    ):
        with pytest.raises(TaskError, match=told):
            both(metric, y, predictions)
    for positive in (-1, True, "cat"):
        with pytest.raises(TaskError, match=f"positive={positive!r} .*None"):
            kind(positive)


def test_values_of_examples_stand_at_their_place():
    """Place values in any order of batches."""
    metric = AUC()
    states = metric.states(EvalSetInfo(4, Shard(0, 1)))
    metric.add(states, EvalBatch(np.array([0, 1]), np.array([3.0, 4.0]), np.array([1.0, 0.5]), 2))
    metric.add(states, EvalBatch(np.array([1, 1]), np.array([1.0, 2.0]), np.array([0.0, 2.0]), 0))
    assert states["scores"].values().tolist() == [0, 2, 3, 4]
    assert states["weights"].values().tolist() == [0, 2, -1, 0.5]
