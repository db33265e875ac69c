"""Convert values of any library to arrays without silent losses."""

import numpy as np
import pytest
from evaluation.backends.python.tasks import (
    X,
    Y,
    masked,
    refused,
    run,
    task,
)

from sidecar.metrics import MAE, Mean


@pytest.mark.parametrize(
    "changes",
    [
        {"eval_sets": {"test": lambda: (masked(X), Y)}},
        {"eval_sets": {"test": lambda: (X, masked(Y))}},
        {"eval_sets": {"test": lambda: zip(X, masked(Y), strict=True)}},
        {"eval_sets": {"test": lambda: ([masked(row) for row in X], Y)}},
        {"predict": lambda model, x: masked(x @ model)},
        {"predictions": lambda _x, _y, scores: masked(scores)},
        {"metrics": lambda: [Mean(lambda _, scores: masked(scores[:, 0]))]},
    ],
)
def test_masked_values_are_refused(checkpoint, tmp_path, changes):
    """Otherwise numpy would forget the mask, and count what is below it."""
    assert "masked" in refused(task(**changes), checkpoint, tmp_path / "a")


def test_a_mask_that_hides_nothing_is_fine(checkpoint, tmp_path):
    """As netCDF files yield it."""
    expected = run(task(), checkpoint, tmp_path / "a")[0].result.metrics
    (end,) = run(task(lambda: (np.ma.masked_array(X), Y)), checkpoint, tmp_path / "b")
    assert end.result.metrics == expected


ROWS = [["a", "b"], ["c"], ["d", "e", "f"], ["g"], ["h", "i"]]


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize(
    ("x", "size"),
    [
        (ROWS, len),
        (np.array(ROWS, object), len),
        ([np.ones(len(row)) for row in ROWS], len),
        ([{"words": row, "n": 1.5} for row in ROWS], lambda row: len(row["words"])),
        ({"text": ROWS, "other": list(range(5))}, None),
    ],
)
def test_rows_may_be_lists_of_any_lengths(checkpoint, tmp_path, ranks, x, size):
    """The model gets the rows as they are, and cannot change those of the next evaluation."""

    def predict(_model, given):
        rows = given["text"] if size is None else given
        found = np.array([(size or len)(row) for row in rows], float)
        if size is len and isinstance(rows[0], list):
            rows[0].append("more")
        return found

    sizes = np.array([len(row) for row in ROWS], float)
    made = task(lambda: (x, sizes), predict=predict, metrics=lambda: [MAE()], batch_size=2)
    for folder in ("a", "b"):
        ends = run(made, checkpoint, tmp_path / folder, ranks)
        assert [end.result.metrics["test"]["mae"].value for end in ends] == [0.0] * ranks
