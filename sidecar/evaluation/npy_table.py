"""Write columns with one row for each example, which grow on disk during an evaluation. Imports numpy only.

Each column is a `.npy` file. Numpy and pandas can read its exact bits without this program, and need not load a large
file into memory (`numpy.load(path, mmap_mode="r")`). The header is written twice: first for 0 rows, at the end for all
rows. NumPy reserves space in it for a first dimension that grows (format version 1.0, numpy.lib.format). So the file of
an interrupted evaluation is an empty column, never a wrong one. Only the buffers of the files are in memory.
"""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from sidecar.evaluation.backend import Rows
from sidecar.evaluation.failures import EvaluationError, task_error
from sidecar.protocol.column_names import GROUP, PLACE, file_name
from sidecar.protocol.example_inputs import INPUTS, MOST_BYTES, line_of
from sidecar.system.confined import Folder
from sidecar.system.durable import sync_file


class NpyTable:
    """Write the columns that one worker saves of one eval set.

    `folder`: folder of the files; created with the first rows.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._columns: dict[str, _Column] = {}
        self._inputs: IO[bytes] | None = None
        self.rows = self.inputs_bytes = 0

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self._columns)

    def add(self, rows: Rows) -> None:
        """Append the rows of one batch.

        Raises `OSError` if they cannot be written, `EvaluationError` if they do not match the rows before.
        """
        columns = {name: _plain(name, array) for name, array in rows.columns.items()}
        for name in {PLACE, GROUP} & columns.keys():
            raise refused_column(name, "has a name that is reserved: choose another name")
        if rows.first is not None:
            columns = {PLACE: np.arange(rows.first, rows.first + rows.examples, dtype=np.int64)} | columns
        if rows.groups is not None:
            columns[GROUP] = rows.groups
        self._append(columns, rows.examples)
        if rows.inputs:
            self._add_inputs(b"".join(line_of(place, shown) for place, shown in rows.inputs.items()))

    def take(self, folder: Folder, columns: Sequence[str], rows: int, inputs_bytes: int) -> None:
        """Append the first rows of another table, which is in an open folder, and as many bytes of inputs.

        The other writer may not have finished it, so its headers do not count the rows.

        Raises `OSError`, `ValueError` or `EvaluationError` for files that are not those of such a table.
        """
        with contextlib.ExitStack() as files:
            arrays = {}
            for name in columns:
                file = files.enter_context(folder.open_file(f"{file_name(name)}.npy"))
                npy.read_magic(file)
                shape, _, dtype = npy.read_array_header_1_0(file)
                arrays[name] = np.memmap(file, dtype, "r", file.tell(), (rows, *shape[1:]))  # ValueError for objects
            self._append(arrays, rows)
        if 0 < inputs_bytes <= MOST_BYTES:
            with folder.open_file(INPUTS) as shown:
                self._add_inputs(shown.read(inputs_bytes))

    def _add_inputs(self, lines: bytes) -> None:
        self._inputs = self._inputs or (self._folder / INPUTS).open("xb")
        self._inputs.write(lines)
        self.inputs_bytes += len(lines)

    def _append(self, columns: Mapping[str, NDArray[Any]], rows: int) -> None:
        """Append the same number of rows to each column."""
        for name, array in columns.items():
            if array.ndim == 0 or len(array) != rows:
                raise refused_column(name, f"has shape {array.shape} for {rows} examples: save one row for each")
        if not self._columns:
            self._begin(columns)
        if columns.keys() != self._columns.keys():
            raise task_error(
                f"Task(predictions=…): a batch has columns {list(columns)} after others with {self.columns}"
            )
        for name, array in columns.items():
            self._columns[name].add(name, array)
        self.rows += rows

    def _begin(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Create the files of the columns, which are like these."""
        self._folder.mkdir(parents=True)
        for name, array in columns.items():
            self._columns[name] = _Column(file_of(self._folder, name), array)
            self._columns[name].begin()

    def finish(self) -> None:
        """Write the number of rows into the headers, and make the files durable."""
        for column in self._columns.values():
            column.finish(self.rows)
        self.sync()

    def sync(self) -> None:
        """Make the rows so far durable. Others can take them if they know how many there are."""
        for file in (*(column.file for column in self._columns.values()), *([self._inputs] if self._inputs else [])):
            sync_file(file)

    def close(self) -> None:
        """Close the files, finished or not."""
        for column in self._columns.values():
            column.close()
        if self._inputs is not None:
            with contextlib.suppress(OSError):
                self._inputs.close()


class _Column:
    """Write one `.npy` file. The first batch sets its type and the shape of a row."""

    def __init__(self, path: Path, like: NDArray[Any]) -> None:
        self._dtype, self._row = like.dtype, like.shape[1:]
        self.file: IO[bytes] = path.open("xb")
        self._start = 0

    def begin(self) -> None:
        self._write_header(0)
        self._start = self.file.tell()

    def add(self, name: str, array: NDArray[Any]) -> None:
        if (array.dtype, array.shape[1:]) != (self._dtype, self._row):
            raise refused_column(
                name,
                f"has rows of {array.dtype} {array.shape[1:]} after rows of {self._dtype} {self._row}: save "
                f"rows of one shape, or pad them in Task(predictions=lambda x, y, predictions: …)",
            )
        self.file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    def finish(self, rows: int) -> None:
        self.file.seek(0)
        self._write_header(rows)
        assert self.file.tell() == self._start, "NumPy's header of this column has grown over its first rows"

    def close(self) -> None:
        with contextlib.suppress(OSError):  # an error of the flush was reported before, or is irrelevant now
            self.file.close()

    def _write_header(self, rows: int) -> None:
        header = {"descr": npy.dtype_to_descr(self._dtype), "fortran_order": False, "shape": (rows, *self._row)}
        npy.write_array_header_1_0(self.file, header)


def file_of(folder: Path, column: str) -> Path:
    """Return the path of a column's file."""
    return folder / f"{file_name(column)}.npy"


def columns_of(name: str, structure: Any) -> dict[str, Any]:
    """Return a column for every part of a nested structure: `predictions_digit` for {"digit": …}, as in Keras."""
    if not isinstance(structure, Mapping | list | tuple):
        return {name: structure}
    parts = structure.items() if isinstance(structure, Mapping) else enumerate(structure)
    columns: dict[str, Any] = {}
    for key, part in parts:
        for column, array in columns_of(f"{name}_{key}", part).items():
            if column in columns:
                raise refused_column(column, "is the name of two parts: give them different names")
            columns[column] = array
    return columns


def _plain(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Return the array in a type that the format supports. Raises `EvaluationError` if there is none."""
    if array.dtype.kind == "V":  # bfloat16 and float8, which are not types of NumPy; float32 holds them exactly
        return array.astype(np.float32)
    if array.dtype.kind not in "biufc":
        raise refused_column(
            name, f"holds {array.dtype}, which is not a type of numbers: save numbers, such as an index"
        )
    return array


def plain_column(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Return the array of a column as it is. Raises `EvaluationError` for texts, objects, and a single number."""
    if array.dtype.hasobject or array.dtype.kind in "US":
        raise refused_column(name, "holds text or objects: save numbers, such as an index")
    if not array.ndim:
        raise refused_column(name, "is one number for a batch: save one row for each example")
    return array


def refused_column(column: str, complaint: str) -> EvaluationError:
    """Return the error about a column that cannot be saved."""
    return task_error(f"Task(predictions=…): column {column!r} {complaint}")
