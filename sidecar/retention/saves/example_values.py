"""Read the value of a metric for each example, from the columns that workers saved. Nothing is imported for it.

A column that bears the metric's name is taken as it is. Without one, `y` and `predictions` give 0 or 1 for wrong or
right, for a metric whose name says that it is an accuracy. In either case the mean must be the published number, so a
column of another meaning, or of other weights, is never used. The files are not trusted: sizes are bounded before they
are used, headers are matched and never evaluated, and no link is followed. The format is that of numpy.lib.format,
versions 1.0 to 3.0.
"""

import contextlib
import math
import re
import struct
import sys
from array import array
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

from sidecar.coordination.journal_state import Closed
from sidecar.coordination.totals import number_of
from sidecar.protocol.column_names import GROUP, PLACE, PREDICTIONS, file_name
from sidecar.protocol.records import WORST
from sidecar.retention.saves.comparison import is_rounded
from sidecar.system.confined import Folder, read_from

MOST_EXAMPLES: Final = 1_000_000
"""The most examples that are compared: 16 MB of memory, and some seconds. Larger sets have short intervals anyway."""

MOST_BYTES: Final = 1 << 29
"""The most bytes of columns that are read for one evaluation."""

_ACCURACY: Final = re.compile(r"(.*[^a-z])?acc(uracy)?|.*[a-z]Acc(uracy)?", re.IGNORECASE)
"""The names of accuracies: `accuracy`, `top1_acc`, `sparse_categorical_accuracy`, `MulticlassAccuracy`."""

_MAGIC: Final = b"\x93NUMPY"
_HEADER: Final = re.compile(
    rb"\{'descr': '([<|][a-z][1248])', 'fortran_order': False, 'shape': \((\d{1,12}),(?: (\d{1,6}))?,?\), *\} *\n?"
)
_TYPES: Final = {
    "|b1": "b",
    "|i1": "b",
    "|u1": "B",
    "<i2": "h",
    "<u2": "H",
    "<i4": "i",
    "<u4": "I",
    "<i8": "q",
    "<u8": "Q",
    "<f2": "e",
    "<f4": "f",
    "<f8": "d",
}
_LONGEST_HEADER: Final = 4096
_ROWS: Final = 4096  # that are read at once


class UnusableError(Exception):
    """The columns do not give the metric's value for each example. The text says why, as a clause."""


@dataclass(frozen=True, slots=True)
class _Column:
    """Hold an open column: rows of `width` numbers of the type `code` of `struct`."""

    file: BinaryIO
    code: str
    rows: int
    width: int

    def parts(self) -> Iterator["array[float]"]:
        """Yield the numbers of some rows at a time."""
        size, left = struct.calcsize(self.code), self.rows
        while left:
            rows = min(left, max(1, _ROWS // self.width))
            left -= rows
            data = read_from(self.file, rows * self.width * size - 1)
            if len(data) != rows * self.width * size:
                raise UnusableError("a file is shorter than its header says")
            if self.code == "e":
                yield array("f", struct.unpack(f"<{rows * self.width}e", data))
            else:
                numbers: array[float] = array(self.code, data)
                if sys.byteorder == "big":
                    numbers.byteswap()
                yield numbers


@dataclass(frozen=True, slots=True)
class _Values:
    """Hold the values of all examples by their places in the data."""

    values: "array[float]"
    is_set: bytearray  # 1 for each place that has its value

    def put(self, place: float, number: float) -> None:
        """Set the value of a place. Raises `UnusableError` for a place that is set already or does not exist."""
        is_free = isinstance(place, int) and 0 <= place < len(self.is_set) and not self.is_set[place]
        if not is_free or not math.isfinite(number):
            raise UnusableError("a place is impossible, or a value is not finite")
        self.is_set[int(place)], self.values[int(place)] = 1, number


def values_of(root: Folder, closed: Closed, eval_set: str, metric: str) -> "array[float]":
    """Return the values of a metric by the place of the example in the data. Raises `UnusableError` with the reason.

    `root`: the state directory of the run, opened.
    """
    result, plan = closed.outcome.result, closed.plan.plan
    value = None if result is None else result.metrics.get(eval_set, {}).get(metric)
    if result is None or value is None:
        raise UnusableError(f"plan {plan} did not measure {eval_set}/{metric}")
    examples = result.examples.get(eval_set, 0)
    if not 0 < examples <= MOST_EXAMPLES:
        raise UnusableError(
            f"only sets of at most {MOST_EXAMPLES} examples are paired, and {eval_set!r} has {examples}"
        )
    found = _Values(array("d", bytes(8 * examples)), bytearray(examples))
    try:
        left = MOST_BYTES
        for saves in result.saves:
            left = _add(root, saves, eval_set, metric, found, left)
    except (OSError, OverflowError, ValueError) as error:
        raise UnusableError(f"the saved values of plan {plan} cannot be read: {error}") from error
    if not any(found.is_set):
        raise UnusableError(
            f"plan {plan} has no saved predictions: {remedy(metric)}, or raise keep_saves if they were removed"
        )
    if not all(found.is_set):
        raise UnusableError(f"plan {plan} has not saved a value for every example of {eval_set!r}")
    mean, number = math.fsum(found.values) / len(found.values), number_of(value)
    if not is_rounded(mean, number, number):
        raise UnusableError(
            f"the mean of the values that plan {plan} saved is {mean:.6g}, and {metric} is {number:.6g}"
        )
    return found.values


def groups_of(root: Folder, closed: Closed, eval_set: str) -> "array[float]":
    """Return the number of each example's group by its place in the data; nothing if the set has no groups.

    Raises `UnusableError` if only some examples have one.
    """
    result = closed.outcome.result
    examples = 0 if result is None else result.examples.get(eval_set, 0)
    if result is None or not 0 < examples <= MOST_EXAMPLES:
        return array("d")
    found, left = _Values(array("d", bytes(8 * examples)), bytearray(examples)), MOST_BYTES
    try:
        for saves in result.saves:
            left = _add(root, saves, eval_set, GROUP, found, left, is_optional=True)
    except (OSError, OverflowError, ValueError) as error:
        raise UnusableError(f"the groups of plan {closed.plan.plan} cannot be read: {error}") from error
    if any(found.is_set) and not all(found.is_set):
        raise UnusableError(f"plan {closed.plan.plan} has not saved a group for every example of {eval_set!r}")
    return found.values if any(found.is_set) else array("d")


def is_paired_by(metric: str, columns: Collection[str]) -> bool:
    """Return whether these columns have, or give, a value of the metric for each example."""
    return PLACE in columns and (metric in columns or (_is_accuracy(metric) and {"y", "predictions"} <= set(columns)))


def remedy(metric: str) -> str:
    """Return what the task has to save, so that evaluations are compared example by example."""
    if _is_accuracy(metric):
        return "give Task(predictions=True)"
    return f"let Task(predictions=function) return a column {metric!r} with one number for each example"


def _is_accuracy(metric: str) -> bool:
    """Return whether the name of a metric says that it is the share of right predictions of the whole set."""
    return _ACCURACY.fullmatch(metric) is not None and not metric.startswith(WORST)


def _add(
    root: Folder, saves: str, eval_set: str, metric: str, found: _Values, left: int, *, is_optional: bool = False
) -> int:
    """Put the values of one worker in their places.

    `left`: how many bytes may be read. Return how many may be read after this. `is_optional`: a worker without such a
    column has no values.
    """
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(root.folder(f"{saves}/{PREDICTIONS}/{file_name(eval_set)}"))
        except FileNotFoundError:
            return left  # this worker had no example of the set, or nothing is saved: then places are missing
        names = set(folder.names())
        if is_optional and f"{file_name(metric)}.npy" not in names:
            return left
        if f"{file_name(PLACE)}.npy" not in names:
            raise UnusableError(f"the examples of {eval_set!r} have no numbers, as it is divided by file or by itself")
        wanted = [PLACE, metric]
        if f"{file_name(metric)}.npy" not in names:
            if not _is_accuracy(metric):
                raise UnusableError(f"no column {metric!r} was saved: {remedy(metric)}")
            wanted = [PLACE, "y", "predictions"]
        columns = [stack.enter_context(_opened(folder, f"{file_name(name)}.npy")) for name in wanted]
        left -= sum(column.rows * column.width * struct.calcsize(column.code) for column in columns)
        if left < 0 or columns[0].width != 1 or len({column.rows for column in columns}) != 1:
            raise UnusableError("the columns are too large, or do not match")
        numbers = _numbers_of(columns[1]) if len(columns) == 2 else _is_right(*columns[1:])  # noqa: PLR2004
        places = (place for part in columns[0].parts() for place in part)
        for place, number in zip(places, numbers, strict=True):
            found.put(place, number)
    return left


@contextlib.contextmanager
def _opened(folder: Folder, name: str) -> Iterator[_Column]:
    """Open a column, whose header is checked, but whose length is not yet."""
    with folder.open_file(name) as file:
        prefix = read_from(file, 7)
        version = prefix[6:7]
        length_code = "<H" if version == b"\1" else "<I"
        size = struct.calcsize(length_code)
        length_bytes = read_from(file, size - 1)
        if prefix[:6] != _MAGIC or version not in (b"\1", b"\2", b"\3") or len(length_bytes) != size:
            raise UnusableError("not a column")
        (length,) = struct.unpack(length_code, length_bytes)
        if length > _LONGEST_HEADER or (match := _HEADER.fullmatch(read_from(file, length - 1))) is None:
            raise UnusableError("not a column of numbers")
        code, rows = _TYPES.get(match[1].decode()), int(match[2])
        if code is None or rows > MOST_EXAMPLES:
            raise UnusableError("not a column of numbers")
        yield _Column(file, code, rows, int(match[3] or 1) or 1)


def _numbers_of(column: _Column) -> Iterator[float]:
    """Yield the numbers of a column with one number for each example."""
    if column.width != 1:
        raise UnusableError("several values for each example")
    for part in column.parts():
        yield from part


def _is_right(labels: _Column, predictions: _Column) -> Iterator[float]:
    """Yield 1 for each example whose prediction is the label, else 0."""
    for label, guess in zip(_classes(labels, labels=True), _classes(predictions, labels=False), strict=True):
        yield float(label == guess)


def _classes(column: _Column, *, labels: bool) -> Iterator[float]:
    """Yield the class of each row: a label itself, 1 for a probability above 0.5, or the first of the largest."""
    for part in column.parts():
        if column.width == 1:
            yield from part if labels else (float(number > 0.5) for number in part)  # noqa: PLR2004
            continue
        for start in range(0, len(part), column.width):
            row = part[start : start + column.width].tolist()
            yield row.index(max(row))
