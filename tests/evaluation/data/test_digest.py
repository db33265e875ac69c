"""Tell contents of batches apart, to the bit."""

import sys
import threading

import numpy as np
from evaluation.backends.python.tasks import (
    X,
    Y,
    run,
    task,
)

from sidecar.metrics import MAE

ROWS = [["a", "b"], ["c"], ["d", "e", "f"], ["g"], ["h", "i"]]


def test_rows_of_other_contents_differ(checkpoint, tmp_path, monkeypatch):
    """Two workers that have other words in one row do not evaluate together."""
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)  # another test of this process may have imported it
    numbers = iter(range(9))

    def source():
        rows = [list(row) for row in ROWS]
        rows[4][1] = str(next(numbers) // 2)
        return rows, np.ones(5)

    predict = lambda _, x: np.array([float(len(row)) for row in x])  # noqa: E731 - as users write it
    ends = run(task(source, predict=predict, metrics=lambda: [MAE()], batch_size=2), checkpoint, tmp_path / "a", 3)
    assert {end.kind for end in ends} == {"stream_differs"}
    assert all("reshuffle" not in str(end) for end in ends)


def test_ranks_that_read_different_data_find_out(checkpoint, tmp_path):
    """In the hello, before there is a number."""
    calls = []

    def source():
        calls.append(1)
        generator = np.random.default_rng(threading.get_ident())
        return generator.permutation(X), Y

    ends = run(task(source), checkpoint, tmp_path / "a", ranks=2)
    assert [end.kind for end in ends] == ["stream_differs"] * 2
