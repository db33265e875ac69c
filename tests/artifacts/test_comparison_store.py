"""Evaluations are compared example by example where workers saved that, and once for all nodes."""

import json
import os
import struct

import numpy as np
import pytest

from sidecar.artifacts import example_values
from sidecar.artifacts.comparison_store import ComparisonStore
from sidecar.coordination.journal_state import Closed
from sidecar.coordination.storage import PosixStorage
from sidecar.evaluation.backend import Rows
from sidecar.evaluation.intervals import wilson
from sidecar.evaluation.npy_table import NpyTable
from sidecar.records import Checkpoint, EvalData, Member, Outcome, Plan, Result, Value

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
    examples=COUNT,
    total=None,
    goal="max",
):
    """One evaluation, whose workers saved to their folders."""
    checkpoint = Checkpoint(name=f"ckpt-{number}", digest=f"{number:064x}", step=number, format="tf_object")
    plan = Plan(
        plan=number,
        run="r",
        nonce="n",
        checkpoint=checkpoint,
        attempt=1,
        members=tuple(Member(rank, "n", f"w{rank}", "h:1") for rank in range(workers)),
        settles=(),
        task="t",
        proposer="n",
        proposed_at="now",
    )
    number_ = right / examples if total is None else total / examples
    lower, upper = wilson(right, examples)
    result = Result(
        group="g",
        workers=workers,
        examples={"test": examples},
        metrics={"test": {metric: Value(value=number_, hex=number_.hex(), lower=lower, upper=upper, goal=goal)}},
        phases={},
        variables="v",
        task="t",
        profile={},
        saves=tuple(f"{plan.folder}/worker-{rank}-of-{workers}" for rank in range(workers)),
        data={"test": EvalData(fingerprint, 10, "batches", sampled)},
    )
    outcome = Outcome(
        plan=number, run="r", nonce="o", status="succeeded", closed_by="n", completed_at="now", result=result
    )
    return Closed(plan, outcome)


def save(root, closed, columns, *, batch=64):
    """Save columns as workers do: batch b goes to rank b mod n."""
    saves = closed.outcome.result.saves
    for rank, folder in enumerate(saves):
        table = NpyTable(root / folder / "predictions" / "test")
        for first in range(rank * batch, COUNT, batch * len(saves)):
            part = {name: array[first : first + batch] for name, array in columns.items()}
            table.add(Rows(columns=part, examples=len(next(iter(part.values()))), first=first))
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
    save(tmp_path, old, {"y": LABELS, "predictions": scores(800)})
    save(tmp_path, new, {"y": LABELS.astype(np.uint8), "predictions": scores(820).astype(np.float16)})
    return new, old


def test_labels_and_predictions_are_paired(store, pair):
    """By the place of each example, however many workers there were."""
    found = store.compare(*pair)
    assert (found.rule, found.examples, found.better) == ("paired", COUNT, True)
    assert found.difference == pytest.approx(0.02)
    assert store.is_better(*pair)


@pytest.mark.parametrize("labels", ["index", "one_hot", "column", "float", "binary"])
def test_labels_may_have_any_usual_form(tmp_path, store, labels):
    """As the metrics of this program take them."""
    y = {
        "index": LABELS,
        "one_hot": np.eye(10)[LABELS],
        "column": LABELS[:, None],
        "float": LABELS.astype(np.float32),
        "binary": (LABELS > 4).astype(np.int8),
    }[labels]
    for number, right in ((1, 800), (2, 820)):
        predictions = scores(right)
        if labels == "binary":
            guess = np.where(np.arange(COUNT) < right, y, 1 - y)
            predictions = (0.25 + 0.5 * guess).astype(np.float32)[:, None]
        save(tmp_path, closed(number, right), {"y": y, "predictions": predictions})
    assert store.compare(closed(2, 820), closed(1, 800)).rule == "paired"


def test_a_column_with_the_name_of_the_metric_is_paired(tmp_path):
    """Any metric that is a mean of values of examples; less is better here."""
    losses = np.random.default_rng(3).gamma(2.0, 1.0, COUNT)
    store = ComparisonStore(PosixStorage(tmp_path), tmp_path, "test/my loss")
    evaluations = []
    for number, values in ((1, losses), (2, losses - 0.01)):
        each = closed(number, 800, metric="my loss", total=values.sum(), goal="min")
        save(tmp_path, each, {"my loss": values})
        evaluations.append(each)
    found = store.compare(evaluations[1], evaluations[0])
    assert (found.rule, found.better) == ("paired", True)
    assert found.difference == pytest.approx(-0.01)


def test_values_with_another_mean_are_not_those_of_the_metric(tmp_path, store):
    """Other weights, a mask, a threshold, or a lie: then the intervals decide."""
    for number, right in ((1, 800), (2, 820)):
        save(tmp_path, closed(number, right), {"y": LABELS, "predictions": scores(right - 1)})
    assert store.compare(closed(2, 820), closed(1, 800)).rule == "intervals"


@pytest.mark.parametrize(
    "change", [{"fingerprint": "other"}, {"fingerprint": None}, {"examples": COUNT - 1}], ids=["data", "none", "count"]
)
def test_other_data_are_not_paired(store, pair, change):
    """Only equal fingerprints say that the examples are the same."""
    new, _ = pair
    other = closed(1, 800, **change)
    assert store.compare(new, other).rule == "intervals"


def test_data_of_which_a_sample_was_compared_are_not_paired(store, pair):
    """An example that is not in the sample may have changed."""
    assert pair
    assert store.compare(closed(2, 820, workers=3, sampled=3), closed(1, 800, sampled=3)).rule == "intervals"


def test_of_two_nodes_that_compare_at_once_the_first_one_holds(tmp_path, pair):
    """The other one finds its record only when it creates its own."""
    new, old = pair
    hasty = PosixStorage(tmp_path)
    slow = PosixStorage(tmp_path)
    first = ComparisonStore(hasty, tmp_path / "without predictions", "test/accuracy")

    def create(path, data):
        first.compare(new, old)
        hasty.create(path, data)

    slow.create = create
    found = ComparisonStore(slow, tmp_path, "test/accuracy").compare(new, old)
    assert found == first.compare(new, old)
    assert found.rule == "intervals"


def test_the_first_comparison_holds_for_all_nodes(tmp_path, store, pair):
    """Predictions are removed some time later, and another node comes to it only then."""
    first = store.compare(*pair)
    for folder in (tmp_path / "evaluations").iterdir():
        for path in folder.rglob("*.npy"):
            path.unlink()
    assert ComparisonStore(PosixStorage(tmp_path), tmp_path, "test/accuracy").compare(*pair) == first
    assert len(list((tmp_path / "comparisons").iterdir())) == 1


@pytest.mark.parametrize(
    "lie",
    [
        b"",
        b"{",
        b"[" * 50_000,
        b"null",
        b'{"schema": 99}',
        {"better": True},
        {"difference": 9.0},
        {"run": "another"},
        {"rule": "paired", "lower": 0.01, "upper": 0.03, "difference": 0.5, "better": True},
    ],
)
def test_a_lying_record_counts_for_nothing(tmp_path, store, lie):
    """What it says must follow from the published numbers."""
    new, old = closed(2, 820), closed(1, 800)
    honest = store.compare(new, old)
    (path,) = (tmp_path / "comparisons").iterdir()
    path.write_bytes(lie if isinstance(lie, bytes) else json.dumps(json.loads(path.read_bytes()) | lie).encode())
    assert ComparisonStore(PosixStorage(tmp_path), tmp_path, "test/accuracy").compare(new, old) == honest


def header(descr="'<i8'", shape="(4,)", version=b"\1\0"):
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY" + version + struct.pack("<H", len(text)) + text


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\x93NUMPY",
        b"\x93NUMPY\1\0\xff\xff",
        header(shape="(999999999999,)"),
        header(shape="(1000, 1000000)"),
        header(descr="'|O'"),
        header(descr="[('a', '<i8')]"),
        header(descr="__import__('os')"),
        header(),
        "link",
        "fifo",
        "folder",
    ],
)
def test_damaged_columns_leave_the_intervals(tmp_path, store, pair, damage):
    """Nothing hangs, nothing is evaluated, and no length is trusted."""
    (column,) = tmp_path.glob("evaluations/ckpt-2@*/plan-2/worker-1-of-3/predictions/test/place.npy")
    target = column.rename(tmp_path / "moved.npy")
    if damage == "link":
        column.symlink_to(target)
    elif damage == "fifo":
        os.mkfifo(column)
    elif damage == "folder":
        column.mkdir()
    else:
        column.write_bytes(damage)
    assert store.compare(*pair).rule == "intervals"


def test_large_sets_are_not_paired(store, pair, monkeypatch):
    """Memory and time have a bound."""
    monkeypatch.setattr(example_values, "MOST_EXAMPLES", COUNT - 1)
    assert store.compare(*pair).rule == "intervals"


def test_many_columns_are_not_read(store, pair, monkeypatch):
    """Likewise."""
    monkeypatch.setattr(example_values, "MOST_BYTES", 4000)
    assert store.compare(*pair).rule == "intervals"
