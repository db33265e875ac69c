"""Columns on disk: what is kept, what is refused by name, and that memory does not grow with them."""

import tracemalloc

import ml_dtypes
import numpy as np
import pytest

from sidecar.evaluation.backend import Rows
from sidecar.evaluation.failures import EvaluationError
from sidecar.evaluation.npy_table import NpyTable, columns_of


def rows(first=0, examples=2, **columns):
    return Rows(first, examples, {name: np.asarray(array) for name, array in columns.items()})


def write(folder, *batches):
    table = NpyTable(folder / "test")
    try:
        for batch in batches:
            table.add(batch)
        table.finish()
    finally:
        table.close()
    return {path.stem: np.load(path, allow_pickle=False) for path in sorted((folder / "test").iterdir())}


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "uint64", "bool", "complex64"])
@pytest.mark.parametrize("shape", [(), (3,), (4, 2), (0,)])
def test_values_keep_their_bits(tmp_path, dtype, shape):
    """Rows of any shape and type, sequences and images too, over batches of different length."""
    array = np.random.default_rng(1).normal(size=(5, *shape)).astype(dtype)
    found = write(tmp_path, rows(0, 3, a=array[:3]), rows(6, 2, a=array[3:]))
    assert found["a"].dtype == array.dtype
    assert found["a"].tobytes() == array.tobytes()
    assert found["a"].shape == array.shape
    assert found["place"].tolist() == [0, 1, 2, 6, 7]


def test_order_in_memory_does_not_matter(tmp_path):
    """Transposed and strided arrays are written row by row."""
    array = np.arange(12.0).reshape(2, 3, 2).transpose(0, 2, 1)
    assert np.array_equal(write(tmp_path, rows(a=array))["a"], array)


def test_half_precision_of_other_makers_becomes_float32(tmp_path):
    """Which holds it exactly; NumPy alone could not read it back."""
    array = np.array([0.1, 3.0]).astype(ml_dtypes.bfloat16)
    found = write(tmp_path, rows(a=array))["a"]
    assert found.dtype == np.float32
    assert (found == array.astype(np.float32)).all()


def test_a_long_column_keeps_its_header_in_place(tmp_path):
    """The header has room for any number of rows: the first rows stay where they were written."""
    from sidecar.evaluation.npy_table import _Column

    column = _Column(tmp_path / "a.npy", np.zeros((1, 10), np.float32))
    try:
        column.begin()
        column._write_header(10**15)
        assert column.file.tell() == 2 * column._start
    finally:
        column.close()


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (rows(a=[[1.0], [2.0]]), r"'a'.*float64 \(1,\).*float64 \(\)"),
        (rows(a=[1, 2]), "'a'.*int64.*float64"),
        (rows(b=[1.0, 2.0]), r"\['place', 'b'\].*\['place', 'a'\]"),
        (rows(None, a=[1.0, 2.0]), r"\['a'\].*\['place', 'a'\]"),
        (rows(a=[1.0]), r"'a'.*\(1,\).*\b2 examples"),
        (rows(a=1.0), r"'a'.*\(\).*\b2 examples"),
        (rows(a=["x", "y"]), "'a'.*<U1"),
        (rows(a=np.array([b"x", None], object)), r"'a'.*\bobject\b"),
        (rows(a=[1.0, 2.0], place=[1, 2]), "'place'"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(tmp_path, batch, words):
    """It is the task's to mend; what was written so far is an empty column."""
    table = NpyTable(tmp_path / "test")
    table.add(rows(a=[1.0, 2.0]))
    try:
        with pytest.raises(EvaluationError, match=r"Task\(predictions=…\): .*" + words) as caught:
            table.add(batch)
    finally:
        table.close()
    assert caught.value.kind == "task_error"
    assert len(np.load(tmp_path / "test" / "a.npy")) == 0


def test_memory_does_not_grow_with_rows(tmp_path):
    """40 MB pass through, a hundredth of it stays."""
    table, batch = NpyTable(tmp_path / "test"), np.zeros((1000, 10))
    table.add(Rows(0, 1000, {"a": batch}))
    tracemalloc.start()
    try:
        for number in range(1, 500):
            table.add(Rows(number * 1000, 1000, {"a": batch}))
        assert tracemalloc.get_traced_memory()[1] < 400_000
    finally:
        tracemalloc.stop()
        table.close()
    assert (tmp_path / "test" / "a.npy").stat().st_size > 39_000_000


def test_parts_are_named_as_keras_names_metrics():
    """Write dictionaries, lists, and both."""
    found = columns_of("y", {"digit": 1, "parity": [2, (3,)]})
    assert found == {"y_digit": 1, "y_parity_0": 2, "y_parity_1_0": 3}
    assert columns_of("y", 1) == {"y": 1}
    with pytest.raises(EvaluationError, match="'y_a_b'"):
        columns_of("y", {"a": {"b": 1}, "a_b": 2})
