"""Read the saves of all workers of one plan, and join them. Imports numpy, never a framework.

The files are not trusted: the saves of all ranks must be present, and they must agree to the last byte. Nothing in them
is ever executed. `sidecar.results.read` is `read` here; `artifact_writer` has written the files of one worker: states,
columns and weights. `read` joins them: `merge_records` adds the states of all ranks, `_join` puts the rows of all ranks
into the order of the data.
"""

import contextlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from sidecar.errors import RecordError
from sidecar.evaluation.artifact_writer import SCHEMA, STATES
from sidecar.evaluation.npy_table import file_of
from sidecar.evaluation.states import (
    ExactSum,
    GatheredBatches,
    KeyedStates,
    MinMax,
    NamedSums,
    PerExampleValues,
    SetStates,
    State,
)
from sidecar.protocol.column_names import PLACE, PREDICTIONS, file_name

_WORKER: Final = re.compile(r"worker-(\d{1,6})-of-(\d{1,6})", re.ASCII)
_KINDS: Final[Mapping[str, type[State]]] = {
    "sum": ExactSum,
    "max": MinMax,
    "min": MinMax,
    "each": PerExampleValues,
    "gathered": GatheredBatches,
    "named": NamedSums,
    "keyed": KeyedStates,
}
MOST_BYTES_OF_STATES: Final = 1 << 32  # enough for the scores of a hundred million examples
_MOST_VALUES: Final = 1 << 28  # in one state, 2 GiB: protects the memory from large numbers in a file
_EXAMPLES: Final = "examples"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Hold everything that the workers of one plan saved.

    Attributes:
        workers: The folders of all ranks, in rank order, with weights if weights were saved.
        variables: Digest of the values of the restored variables, the same on all ranks.
        states: States of all metrics over all examples, by eval set and name. The published numbers come from them.
        predictions: All examples in the order of the data, by eval set and column; the column `place` numbers them.
            Sets that shard themselves have no `place`, and their examples are in the order of the ranks.
    """

    workers: tuple[Path, ...]
    variables: str
    states: dict[str, SetStates]
    predictions: dict[str, dict[str, NDArray[Any]]]


def read(folder: str | Path) -> Evaluation:
    """Read what the workers of one plan saved.

    For example, the accuracy of the newest evaluation of a checkpoint:

        saved = results.read("ckpts/.sidecar/ckpts/evaluations/epoch-03.keras@0123456789ab")
        rows = saved.predictions["test"]
        accuracy = (rows["predictions"].argmax(axis=-1) == rows["y"]).mean()

    Args:
        folder: `evaluations/<checkpoint>/plan-<n>`, or the folder of the checkpoint above it, where `result.json` names
            the plan that succeeded, or the folder given to `sidecar eval --save-dir`.

    Raises:
        RecordError: The saves of a rank are missing, incomplete, damaged, or do not match those of the other ranks; or
            predictions have been removed.
    """
    workers = tuple(_workers(_plan(Path(folder))))
    records = [read_record(worker) for worker in workers]
    if len({record["variables"] for record in records}) != 1:
        raise RecordError(f"{folder}: the ranks evaluated different variables")
    states = merge_records(workers, records)
    return Evaluation(workers, records[0]["variables"], states, _join(workers, records, states))


def _plan(folder: Path) -> Path:
    """Return the folder of the plan: this folder itself, or the one that `result.json` in it names."""
    if any(folder.glob("worker-*")) or not (folder / "result.json").exists():
        return folder
    with _reading(folder / "result.json"):
        number = json.loads((folder / "result.json").read_bytes())["plan"]["plan"]
        return folder / f"plan-{int(number)}"


def _workers(plan: Path) -> Iterator[Path]:
    """Yield the folder of every rank, in rank order. Raises `RecordError` unless all folders are complete."""
    folders = {path.name: path for path in plan.glob("worker-*") if _WORKER.fullmatch(path.name)}
    sizes = {name.rpartition("-")[2] for name in folders}
    if not folders:
        raise RecordError(
            f"{plan}: no worker's saves are here; those of old evaluations are removed by retention (keep_states), "
            "and `sidecar history` still has their numbers"
        )
    if len(sizes) != 1:
        raise RecordError(f"{plan}: expected the folders of one group of workers, found {sorted(folders)}")
    size = int(sizes.pop())
    if len(folders) > size:
        raise RecordError(f"{plan}: there are {len(folders)} folders for {size} workers: {sorted(folders)}")
    for rank in range(size):
        name = f"worker-{rank}-of-{size}"
        if name not in folders or not (folders[name] / STATES).is_file():
            raise RecordError(f"{plan / name}: {STATES} is missing, so the saves of this worker are not complete")
        yield folders[name]


def read_record(worker: Path) -> dict[str, Any]:
    """Read the file `states.json` of a worker. Raises `RecordError` if its form is not valid."""
    path = worker / STATES
    with _reading(path):
        return parse_record(path, path.read_bytes())


def parse_record(path: Path, data: bytes) -> dict[str, Any]:
    """Parse the content of a worker's `states.json`. Raises `RecordError` if its form is not valid."""
    with _reading(path):
        record = json.loads(data)
        if record["schema"] != SCHEMA:
            raise RecordError(f"{path} has schema {record['schema']!r}, this version knows {SCHEMA}")
        listed = record.setdefault("predictions", {})
        names = [name for table in listed.values() for name in table["columns"]]
        if not all(isinstance(name, str) for name in [record["variables"], *names]):
            raise TypeError("a name is not a text")
        if not all(type(table["rows"]) is int and table["rows"] >= 0 for table in listed.values()):
            raise TypeError("a number of rows is not a whole number from 0")
        record["states"] = {
            eval_set: {name: _state(parsed) for name, parsed in by_name.items()}
            for eval_set, by_name in record["states"].items()
        }
    checked: dict[str, Any] = record
    return checked


def _state(parsed: dict[str, Any]) -> State:
    kind = _KINDS[parsed["reduction"]]
    if kind in (GatheredBatches, NamedSums, KeyedStates):
        return kind.from_json(parsed)
    sizes = [parsed["examples"]] if kind is PerExampleValues else parsed["shape"]
    if not all(type(size) is int and size >= 0 for size in sizes) or math.prod(sizes) > _MOST_VALUES:
        raise ValueError(f"a state cannot have {sizes} values")
    return kind.from_json(parsed)


def merge_records(workers: tuple[Path, ...], records: list[dict[str, Any]]) -> dict[str, SetStates]:
    """Merge the states of all ranks into those of the first record. Raises `RecordError` if kinds differ.

    The states of the first record may be those in memory, which know more of the data than saved ones do.
    """
    states: dict[str, dict[str, Any]] = records[0]["states"]
    for worker, record in zip(workers[1:], records[1:], strict=True):
        with _reading(worker / STATES):
            others = record["states"]
            if _names(others) != _names(states):
                raise RecordError(f"{worker / STATES} holds other states than {workers[0].name}")
            for eval_set, by_name in states.items():
                for name, state in by_name.items():
                    if not isinstance(state, type(others[eval_set][name])):
                        raise RecordError(f"{worker / STATES}: {name} is of another kind than in {workers[0].name}")
                    state.merge(others[eval_set][name])
    return states


def _names(states: Mapping[str, Mapping[str, Any]]) -> dict[str, set[str]]:
    """Return the names of the states, by eval set."""
    return {eval_set: set(by_name) for eval_set, by_name in states.items()}


def _join(
    workers: tuple[Path, ...], records: list[dict[str, Any]], states: dict[str, SetStates]
) -> dict[str, dict[str, NDArray[Any]]]:
    """Join the rows of all ranks by eval set and column. A rank without examples of a set has no columns of it."""
    listed = [record[PREDICTIONS] for record in records]
    joined = {}
    for eval_set in dict.fromkeys(name for tables in listed for name in tables):
        parts = [
            _columns(worker / PREDICTIONS / file_name(eval_set), tables[eval_set])
            for worker, tables in zip(workers, listed, strict=True)
            if eval_set in tables
        ]
        where = workers[0].parent / f"*/{PREDICTIONS}/{eval_set}"
        with _reading(where):
            if any(_form(part) != _form(parts[0]) for part in parts):
                raise RecordError(f"{where}: the ranks have different columns")
            columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
            rows = sum(tables[eval_set]["rows"] for tables in listed if eval_set in tables)
            counted = _counted(states, eval_set)
            if rows != counted:
                raise RecordError(f"{where}: there are {rows} rows, but {counted} examples were evaluated")
            joined[eval_set] = _ordered(columns, where) if PLACE in columns else columns
    return joined


def _ordered(columns: dict[str, NDArray[Any]], where: Path) -> dict[str, NDArray[Any]]:
    """Sort the rows into the order of the data. Raises `RecordError` unless the places are 0, 1, 2, …."""
    places = columns[PLACE]
    order = np.argsort(places, kind="stable") if places.ndim == 1 else np.zeros(0, np.intp)
    if len(order) != len(places) or not np.array_equal(places[order], np.arange(len(places))):
        raise RecordError(f"{where}: places must number the examples from 0, each of them once")
    return {name: column[order] for name, column in columns.items()}


def _form(columns: dict[str, NDArray[Any]]) -> dict[str, Any]:
    return {name: (column.dtype, column.shape[1:]) for name, column in columns.items()}


def _counted(states: dict[str, SetStates], eval_set: str) -> int:
    state = states[eval_set][_EXAMPLES]
    if not isinstance(state, ExactSum) or state.shape != ():
        raise RecordError(f"{_EXAMPLES} of {eval_set!r} is not a count")
    return int(state.integers())


def _columns(folder: Path, table: dict[str, Any]) -> dict[str, NDArray[Any]]:
    if not folder.is_dir():
        raise RecordError(f"{folder} was removed: only the newest evaluations and the best one keep predictions")
    columns = {name: _column(file_of(folder, name)) for name in table["columns"]}
    for name, column in columns.items():
        if len(column) != table["rows"]:
            raise RecordError(f"{file_of(folder, name)} has {len(column)} rows, {STATES} says {table['rows']}")
    return columns


def _column(path: Path) -> NDArray[Any]:
    """Read a `.npy` file whose size matches its header. Raises `RecordError` for any other file, and for a pickle."""
    with _reading(path), path.open("rb") as file:
        if npy.read_magic(file) != (1, 0):
            raise ValueError("not version 1.0 of the format")
        shape, is_fortran, dtype = npy.read_array_header_1_0(file)
        expected = file.tell() + math.prod(shape) * dtype.itemsize
        if is_fortran or dtype.kind not in "biufc" or not shape or min(shape) < 0 or expected != path.stat().st_size:
            raise ValueError(f"its header says {dtype} {shape} in {path.stat().st_size} bytes")
        return np.fromfile(file, dtype, math.prod(shape)).reshape(shape)


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn every error of the block into a `RecordError` that names this file."""
    try:
        yield
    except RecordError as error:
        raise RecordError(f"{path}: {error}") if str(path) not in str(error) else error from None
    except (
        ArithmeticError,
        AttributeError,
        AssertionError,
        LookupError,
        MemoryError,
        OSError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise RecordError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
