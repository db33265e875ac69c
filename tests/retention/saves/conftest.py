"""Evaluations whose workers saved columns, and the store of their comparisons."""

import numpy as np
import pytest
from journals import closed_by_workers

from sidecar.coordination.storage import PosixStorage
from sidecar.evaluation.backend import Rows
from sidecar.evaluation.intervals import wilson
from sidecar.evaluation.npy_table import NpyTable
from sidecar.protocol.records import EvalData, Value
from sidecar.retention.saves.comparison_store import ComparisonStore

COUNT = 1000
LABELS = np.random.default_rng(1).integers(0, 10, COUNT)


def closed(
    number,
    right,
    *,
    metric="accuracy",
    workers=2,
    fingerprint="f",
    sampled=None,
    sharding="batches",
    task="t",
    ends=None,
    examples=COUNT,
    total=None,
    goal="max",
):
    """One evaluation, whose workers saved to their folders."""
    number_ = right / examples if total is None else total / examples
    lower, upper = ends or wilson(right, examples)
    return closed_by_workers(
        number,
        workers,
        examples,
        {metric: Value(value=number_, hex=number_.hex(), lower=lower, upper=upper, goal=goal)},
        EvalData(fingerprint, 10, sharding, sampled),
        task=task,
    )


def save(root, closed, columns, *, batch=64, groups=None, inputs=None):
    """Save columns as workers do: batch b goes to rank b mod n."""
    saves = closed.outcome.result.saves
    for rank, folder in enumerate(saves):
        table = NpyTable(root / folder / "predictions" / "test")
        for first in range(rank * batch, COUNT, batch * len(saves)):
            part = {name: array[first : first + batch] for name, array in columns.items()}
            own = None if groups is None else groups[first : first + batch]
            count = len(next(iter(part.values())))
            shown = {place: of for place, of in (inputs or {}).items() if first <= place < first + count}
            table.add(Rows(columns=part, examples=count, first=first, groups=own, inputs=shown))
        table.finish()
        table.close()


def scores(right):
    """Predictions of which the first `right` are correct."""
    guesses = np.where(np.arange(COUNT) < right, LABELS, (LABELS + 1) % 10)
    return np.eye(10, dtype=np.float32)[guesses]


@pytest.fixture
def store(tmp_path):
    return ComparisonStore(PosixStorage(tmp_path), tmp_path, "test/accuracy")


@pytest.fixture
def pair(tmp_path):
    """Two evaluations by other numbers of workers, the newer one with 20 more right."""
    old, new = closed(1, 800, workers=2), closed(2, 820, workers=3)
    save(tmp_path, old, {"y": LABELS, "predictions": scores(800)}, inputs={999: "a text"})
    save(tmp_path, new, {"y": LABELS.astype(np.uint8), "predictions": scores(820).astype(np.float16)})
    return new, old
