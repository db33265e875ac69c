"""Open arrays, files and iterators without a framework."""

import numpy as np
import pytest
from evaluation.backends.python.tasks import (
    X,
    Y,
    changed_input,
    examples,
    negated_in_place,
    refused,
    reused_batch,
    reused_example,
    reused_output,
    run,
    task,
)

from sidecar import EvalSet, data
from sidecar.metrics import MAE, Accuracy


@pytest.mark.parametrize(
    "changes",
    [
        {"predict": reused_output()},
        {"predict": changed_input},
        {"eval_sets": {"test": reused_example}},
        {"eval_sets": {"test": reused_batch}, "batch_size": None},
        {
            "eval_sets": {"test": EvalSet(lambda: (X, Y), prepare=negated_in_place)},
            "predict": lambda model, x: (-x) @ model,
        },
        {
            "eval_sets": {"test": EvalSet(reused_batch, prepare=negated_in_place)},
            "predict": lambda model, x: (-x) @ model,
            "batch_size": None,
        },
    ],
    ids=["reused output", "changed input", "reused example", "reused batch", "prepare", "prepare of batches"],
)
def test_arrays_that_are_reused_or_changed_in_place_change_no_number(checkpoint, tmp_path, changes):
    """Neither of this evaluation nor of the next one, for which batches stay in memory; the task's data stay."""
    x, y = X.copy(), Y.copy()
    expected = run(task(), checkpoint, tmp_path / "a")[0].result.metrics["test"]
    made = task(**changes)
    for again in range(2):
        (end,) = run(made, checkpoint, tmp_path / f"b-{again}")
        assert end.result.metrics["test"] == expected
    assert np.array_equal(X, x)
    assert np.array_equal(Y, y)


def test_npz_and_several_outputs(checkpoint, tmp_path):
    """Files as sources; labels and predictions in dicts, with metrics of each output."""
    np.savez(tmp_path / "test.npz", x=X, y=Y)
    (done,) = run(task(data.npz(tmp_path / "test.npz", "x", "y")), checkpoint, tmp_path / "a")
    (both,) = run(
        task(
            lambda: (X, {"kind": Y, "size": X[:, 0]}),
            predict=lambda model, x: {"kind": x @ model, "size": x[:, 1]},
            metrics=lambda: {"kind": [Accuracy()], "size": [MAE()]},
        ),
        checkpoint,
        tmp_path / "b",
    )
    numbers = both.result.metrics["test"]
    assert numbers["kind_accuracy"] == done.result.metrics["test"]["accuracy"]
    assert numbers["size_mae"].value == pytest.approx(np.abs(X[:, 0] - X[:, 1]).mean())


def test_the_same_iterator_each_time_is_refused(checkpoint, tmp_path):
    made = examples()
    assert "the same iterator each time" in refused(task(lambda: made), checkpoint, tmp_path / "a")
