"""Read per-example values of a bounded number of examples and columns."""

import pytest
from retention.saves.conftest import COUNT

from sidecar.retention.saves import example_values


def test_large_sets_are_not_paired(store, pair, monkeypatch):
    """Memory and time have a bound."""
    monkeypatch.setattr(example_values, "MOST_EXAMPLES", COUNT - 1)
    assert store.compare(*pair).rule == "intervals"


def test_many_columns_are_not_read(store, pair, monkeypatch):
    """Columns beyond the bound on bytes are not read, so the intervals decide."""
    monkeypatch.setattr(example_values, "MOST_BYTES", 4000)
    assert store.compare(*pair).rule == "intervals"


@pytest.mark.parametrize(
    ("metric", "is_paired"), [("accuracy", True), ("top1_acc", True), ("mse", False), ("worst_slice_accuracy", False)]
)
def test_labels_and_predictions_give_accuracies(metric, is_paired):
    """The worst slice has fewer examples than the set, so its number is not the mean of all."""
    assert example_values.is_paired_by(metric, ["place", "y", "predictions"]) == is_paired
