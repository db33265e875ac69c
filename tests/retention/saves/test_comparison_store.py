"""Evaluations are compared example by example where workers saved that, and once for all nodes."""

import json
import os
import struct
from dataclasses import replace

import numpy as np
import pytest
from retention.saves.conftest import COUNT, LABELS, closed, save, scores

from sidecar.coordination.storage import PosixStorage
from sidecar.retention.saves.comparison_store import ComparisonStore


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
        each = closed(number, 800, metric="my loss", total=float(values.sum()), goal="min")
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
    ("change", "why"),
    [({"fingerprint": "other"}, "the data of 'test'"), ({"examples": COUNT - 1}, "the data"), ({"task": "u"}, "task")],
    ids=["data", "count", "task"],
)
def test_other_data_are_not_compared(tmp_path, store, pair, change, why):
    """A better number says nothing there: nothing is better, and nothing is recorded."""
    new, _ = pair
    for found in (store.compare(new, closed(1, 100, **change)), store.compare(closed(3, 990, **change), new)):
        assert (found.rule, found.better, found.difference) == ("none", False, None)
        assert why in found.note
        assert "cannot be compared" in found.describe()
    other = closed(1, 100, **change)
    assert not store.was_better("r", (2, new.outcome.result), (1, other.outcome.result))
    assert not (tmp_path / "comparisons").exists()


@pytest.mark.parametrize("change", [{"fingerprint": None}, {"sampled": 8}, {"sharding": "files"}], ids=str)
def test_data_without_an_equal_fingerprint_are_not_paired(store, pair, change):
    """Sets that divide themselves, and fingerprints that were made in two ways: the counts alone are equal."""
    new, _ = pair
    found = store.compare(new, closed(1, 800, **change))
    assert found.rule == "intervals"
    assert "no fingerprint" in found.note
    assert "not paired: no fingerprint" in found.describe()


def test_data_of_which_a_sample_was_compared_are_paired(tmp_path, store):
    """The usual PyTorch dataset: the lists of batches and the samples are equal, and each example has its number."""
    found = []
    for number, right, workers in ((1, 800, 3), (2, 820, 1)):
        found.append(closed(number, right, workers=workers, sampled=8))
        save(tmp_path, found[-1], {"y": LABELS, "predictions": scores(right)})
    compared = store.compare(found[1], found[0])
    assert (compared.rule, compared.examples, compared.better, compared.note) == ("paired", COUNT, True, "")


def test_columns_without_numbers_of_examples_are_not_paired(tmp_path, store, pair):
    """As those of a set whose files are divided one by one."""
    for path in tmp_path.rglob("place.npy"):
        path.unlink()
    found = store.compare(*pair)
    assert found.rule == "intervals"
    assert "have no numbers" in found.note


def test_what_was_not_saved_is_named(store):
    """With the setting that saves it."""
    assert "Task(predictions=True)" in store.compare(closed(2, 820), closed(1, 800)).note


SMALL = np.random.default_rng(5).normal(size=COUNT) ** 2


@pytest.mark.parametrize("is_saved", [True, False], ids=["column", "labels"])
def test_small_numbers_are_compared_like_large_ones(tmp_path, is_saved):
    """Labels and predictions of a regression are no accuracy, and 0 is not a mean squared error of 1e-7."""
    store, found = ComparisonStore(PosixStorage(tmp_path), tmp_path, "test/mse"), []
    for number, factor in ((1, 6.7e-7), (2, 4.7e-9)):
        values = SMALL * factor
        half = 1.96 * values.std() / np.sqrt(COUNT)
        mean = float(values.mean())
        each = closed(number, 0, metric="mse", total=float(values.sum()), goal="min", ends=(mean - half, mean + half))
        columns = {"y": SMALL, "predictions": SMALL + np.sqrt(values)}
        save(tmp_path, each, columns | ({"mse": values} if is_saved else {}))
        found.append(each)
    compared = store.compare(found[1], found[0])
    assert compared.rule == ("paired" if is_saved else "intervals")
    assert compared.better
    difference = (SMALL * 4.7e-9).mean() - (SMALL * 6.7e-7).mean()
    assert compared.difference == pytest.approx(difference, rel=1e-9)
    assert is_saved or "a column 'mse'" in compared.note


def test_a_record_of_an_older_release_with_a_wrong_difference_counts_for_nothing(tmp_path):
    """It said `paired`, and that nothing differs, about numbers of which one is 144 times the other."""
    store = ComparisonStore(PosixStorage(tmp_path), tmp_path, "test/mse")
    old = closed(1, 0, metric="mse", total=6.734e-07 * COUNT, goal="min", ends=(6.0e-07, 7.5e-07))
    new = closed(2, 0, metric="mse", total=4.676e-09 * COUNT, goal="min", ends=(4.0e-09, 5.5e-09))
    honest = store.compare(new, old)
    (path,) = (tmp_path / "comparisons").iterdir()
    record = json.loads(path.read_bytes())
    del record["note"]
    lie = {"rule": "paired", "difference": 0.0, "lower": -0.0039, "upper": 0.0039, "examples": COUNT, "better": False}
    path.write_bytes(json.dumps(record | lie).encode())
    found = ComparisonStore(PosixStorage(tmp_path), tmp_path, "test/mse").compare(new, old)
    assert (found.rule, found.better, found.difference) == ("intervals", True, honest.difference)


@pytest.mark.parametrize(
    ("metric", "rule"),
    [
        ("acc", "paired"),
        ("top1_acc", "paired"),
        ("MulticlassAccuracy", "paired"),
        ("sparse_categorical_accuracy", "paired"),
        ("f1", "intervals"),
        ("precision", "intervals"),
    ],
)
def test_right_and_wrong_are_the_values_of_accuracies_only(tmp_path, metric, rule):
    """Another metric whose number happens to be the share of right answers has other values."""
    store, found = ComparisonStore(PosixStorage(tmp_path), tmp_path, f"test/{metric}"), []
    for number, right in ((1, 800), (2, 820)):
        found.append(closed(number, right, metric=metric))
        save(tmp_path, found[-1], {"y": LABELS, "predictions": scores(right)})
    assert store.compare(found[1], found[0]).rule == rule


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
    """A stored comparison that contradicts the published numbers is ignored and computed again."""
    new, old = closed(2, 820), closed(1, 800)
    honest = store.compare(new, old)
    (path,) = (tmp_path / "comparisons").iterdir()
    path.write_bytes(lie if isinstance(lie, bytes) else json.dumps(json.loads(path.read_bytes()) | lie).encode())
    assert ComparisonStore(PosixStorage(tmp_path), tmp_path, "test/accuracy").compare(new, old) == replace(
        honest, note=""
    )


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
