"""Read confusion matrices, and histograms of scores, from the metric states that workers saved.

Pure: bytes in, numbers out; imports no numpy. `ConfusionMatrix` saves counts and weights by (actual, predicted) class
as exact sums, and `BinnedAUC` by class and bin. `states.json` is not trusted: what is not valid is left out. The format
is that of `sidecar/evaluation/states/exact_sum.py`.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from sidecar.protocol.records import Result, Value

_LEAST_CLASSES: Final = 2
_MOST_CLASSES: Final = 50  # the numbers of each class are in the journal for as many; a larger picture shows nothing
_DIGIT_BITS: Final = 44
_DIGITS: Final[Mapping[str, tuple[int, int]]] = {"int64": (0, 1), "float32": (4, 8)}
"""By type: the number of the digit whose weight is 1, and how many digits there are. A row after these holds flags."""

_MOST_BINS: Final = 5000
_MOST_EVAL_SETS: Final = 64  # of a task
_MOST_TALLIES: Final = 256  # that are looked at in one rank's file
_MOST_DAMAGED: Final = 16  # of them, or too long
_MOST_CHARACTERS: Final = 1 << 20  # of one state; 50 x 50 sums take a third of them
_MOST_NAME_CHARACTERS: Final = 300
_LARGEST: Final = 1e300  # sums of more would overflow

_COUNTS: Final = '/counts": {'
_NAME: Final = re.compile(r'"((?:[^"\\]|\\.)*)\Z')

Matrix = list[list[float]]
_IsShape = Callable[[int, int], bool]


def matrices(result: Result, saved: Iterable[bytes]) -> list[dict[str, Any]]:
    """Return the confusion matrices of a result: eval set, metric, names of the classes, and a row for each actual one.

    `result`: the result, which names the classes. `saved`: the file `states.json` of every rank. One at a time is held.
    """
    if not result.classes:
        return []
    sums = _sums(result, saved, lambda rows, columns: rows == columns and _LEAST_CLASSES <= rows <= _MOST_CLASSES)
    return [
        {"set": eval_set, "metric": name, "classes": classes, "matrix": matrix}
        for (eval_set, name), matrix in sums.items()
        if (classes := _classes(result.classes.get(eval_set, {}), len(matrix)))
    ]


def histograms(result: Result, saved: Iterable[bytes]) -> dict[tuple[str, str], Matrix]:
    """Return the scores that `BinnedAUC` has counted, by eval set and name: weights of negatives, and of positives.

    There is a weight for each of equal bins from 0 to 1. Arguments are those of `matrices`.
    """
    known = {
        (eval_set, name.removeprefix("pr_"))
        for eval_set, numbers in result.metrics.items()
        for name, number in numbers.items()
        if name.startswith("pr_") and number.value is not None
    }
    if not known:
        return {}
    sums = _sums(result, saved, lambda rows, columns: rows == 2 and 2 <= columns <= _MOST_BINS)  # noqa: PLR2004 - classes, and the fewest bins
    return {key: matrix for key, matrix in sums.items() if key in known}


def _sums(result: Result, saved: Iterable[bytes], is_shape: _IsShape) -> dict[tuple[str, str], Matrix]:
    """Return the sums of all ranks by eval set and metric."""
    sums: dict[tuple[str, str], Matrix] = {}
    if len(result.examples) > _MOST_EVAL_SETS:
        return sums
    for content in saved:
        for key, matrix in _matrices(content.decode(errors="replace"), list(result.examples), is_shape).items():
            sums[key] = matrix if key not in sums else _add(sums[key], matrix)
    return sums


def _classes(by_metric: Mapping[str, Mapping[str, Value]], count: int) -> list[str]:
    """Return the names of the classes of a matrix: those of a metric with as many classes."""
    return next((list(classes) for classes in by_metric.values() if len(classes) == count), [])


def _matrices(text: str, eval_sets: Sequence[str], is_shape: _IsShape) -> dict[tuple[str, str], Matrix]:
    """Return the matrices in one rank's file by eval set and metric.

    Only the states of matrices are parsed, because states of other metrics may hold a value for each example. Every
    step has a bound, because parsing and matching let no other thread of the daemon run meanwhile.
    """
    states = max(0, text.find('"states": {'))
    starts = sorted((text.find(f"{json.dumps(name)}: {{", states), name) for name in eval_sets)
    found: dict[tuple[str, str], Matrix] = {}
    at, damaged = states, 0
    for _ in range(_MOST_TALLIES):
        if damaged == _MOST_DAMAGED or (mark := text.find(_COUNTS, at)) < 0:
            break
        at = mark + len(_COUNTS)
        eval_set = next((name for start, name in reversed(starts) if 0 <= start < mark), None)
        name = _NAME.search(text, max(states, mark - _MOST_NAME_CHARACTERS), mark)
        if eval_set is None or name is None:
            continue
        try:
            counts, end = _object(text, at - 1)
            weights, at = _object(text, end, f', "{name[1]}/weights": ')
            one, other = _matrix(counts, is_shape), _matrix(weights, is_shape)
            key = eval_set, str(json.loads(f'"{name[1]}"'))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            damaged += 1
            continue
        if one is not None and other is not None and len(one) == len(other):
            found[key] = _add(one, other)
    return found


def _object(text: str, start: int, before: str = "") -> tuple[dict[str, Any], int]:
    """Return the object that stands, after a text, at a place, and the place behind it."""
    if not text.startswith(before, start):
        raise ValueError(f"not {before}")
    start += len(before)
    found, length = json.JSONDecoder().raw_decode(text[start : start + _MOST_CHARACTERS])
    if not isinstance(found, dict):
        raise TypeError("not an object")
    return found, start + length


def _matrix(state: dict[str, Any], is_shape: _IsShape) -> Matrix | None:
    """Return the sums of a state as floats; None if it has another shape, or is not finite."""
    height, width = state["shape"]
    if type(height) is not int or type(width) is not int or not is_shape(height, width):
        return None
    unit, digits = _DIGITS[state["dtype"]]
    cells = [0.0] * (height * width)
    for digit, row in state["rows"].items():
        if len(row) != len(cells) or not 0 <= int(digit) < digits:
            return None  # another size, or the row of flags: a sum is not finite
        scale = 2.0 ** (_DIGIT_BITS * (int(digit) - unit))
        cells = [cell + scale * value for cell, value in zip(cells, row, strict=True)]
    if not all(abs(cell) <= _LARGEST for cell in cells):
        return None  # NaN, too
    return [cells[width * number : width * (number + 1)] for number in range(height)]


def _add(one: Matrix, other: Matrix) -> Matrix:
    """Return the sum of two matrices; the first one if their sizes differ."""
    if len(one) != len(other):
        return one
    return [[a + b for a, b in zip(left, right, strict=True)] for left, right in zip(one, other, strict=True)]
