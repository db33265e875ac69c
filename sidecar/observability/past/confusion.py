"""Read confusion matrices from the metric states that workers saved. Pure: bytes in, numbers out; imports no numpy.

`ConfusionMatrix` saves counts and weights by (actual, predicted) class as exact sums. `states.json` is not trusted: a
matrix that is not valid is left out. The format is that of `sidecar/evaluation/states/exact_sum.py`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sidecar.records import Result, Value

_LEAST_CLASSES: Final = 2
_MOST_CLASSES: Final = 50  # the numbers of each class are in the journal for as many; a larger picture shows nothing
_DIGIT_BITS: Final = 44
_DIGITS: Final[Mapping[str, tuple[int, int]]] = {"int64": (0, 1), "float32": (4, 8)}
"""By type: the number of the digit whose weight is 1, and how many digits there are. A row after these holds flags."""

_NAME: Final = re.compile(r'"((?:[^"\\]|\\.){1,300})/counts": \{')

Matrix = list[list[float]]


def matrices(result: Result, saved: Sequence[bytes]) -> list[dict[str, Any]]:
    """Return the confusion matrices of a result: eval set, metric, names of the classes, and a row for each actual one.

    Args:
        result: The result, which names the classes.
        saved: The file `states.json` of every rank.
    """
    sums: dict[tuple[str, str], Matrix] = {}
    for content in saved if result.classes else ():
        text = content.decode(errors="replace")
        for eval_set, (start, end) in _parts(text, list(result.examples)).items():
            for name, matrix in _within(text, start, end).items():
                known = sums.get((eval_set, name))
                sums[eval_set, name] = matrix if known is None else _add(known, matrix)
    return [
        {"set": eval_set, "metric": name, "classes": classes, "matrix": matrix}
        for (eval_set, name), matrix in sums.items()
        if (classes := _classes(result.classes.get(eval_set, {}), len(matrix)))
    ]


def _classes(by_metric: Mapping[str, Mapping[str, Value]], count: int) -> list[str]:
    """Return the names of the classes of a matrix: those of a metric with as many classes."""
    return next((list(classes) for classes in by_metric.values() if len(classes) == count), [])


def _parts(text: str, eval_sets: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return where the states of each eval set begin and end in one rank's file."""
    states = max(0, text.find('"states": {'))
    starts = {eval_set: text.find(f"{json.dumps(eval_set)}: {{", states) for eval_set in eval_sets}
    found = sorted((start, eval_set) for eval_set, start in starts.items() if start >= 0)
    ends = [*(start for start, _ in found[1:]), len(text)]
    return {eval_set: (start, end) for (start, eval_set), end in zip(found, ends, strict=False)}


def _within(text: str, start: int, end: int) -> dict[str, Matrix]:
    """Return the matrices in a part of one rank's file.

    Only the states of matrices are parsed, because states of other metrics may hold a value for each example.
    """
    found: dict[str, Matrix] = {}
    for match in _NAME.finditer(text, start, end):
        weights_at = text.find(f'"{match[1]}/weights": {{', match.end(), end)
        if weights_at < 0:
            continue
        try:
            counts = _matrix(_object(text, match.end() - 1))
            weights = _matrix(_object(text, text.index("{", weights_at)))
            name = str(json.loads(f'"{match[1]}"'))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            continue
        if counts is not None and weights is not None and len(counts) == len(weights):
            found[name] = _add(counts, weights)
    return found


def _object(text: str, start: int) -> dict[str, Any]:
    found, _ = json.JSONDecoder().raw_decode(text, start)
    if not isinstance(found, dict):
        raise TypeError("not an object")
    return found


def _matrix(state: dict[str, Any]) -> Matrix | None:
    """Return the sums of a state as floats; None if it is not a square matrix of few classes."""
    size, other = state["shape"]
    if type(size) is not int or size != other or not _LEAST_CLASSES <= size <= _MOST_CLASSES:
        return None
    unit, digits = _DIGITS[state["dtype"]]
    cells = [0.0] * (size * size)
    for digit, row in state["rows"].items():
        if len(row) != len(cells) or not 0 <= int(digit) < digits:
            return None  # another size, or the row of flags: a sum is not finite
        scale = 2.0 ** (_DIGIT_BITS * (int(digit) - unit))
        cells = [cell + scale * value for cell, value in zip(cells, row, strict=True)]
    return [cells[size * number : size * (number + 1)] for number in range(size)]


def _add(one: Matrix, other: Matrix) -> Matrix:
    """Return the sum of two matrices; the first one if their sizes differ."""
    if len(one) != len(other):
        return one
    return [[a + b for a, b in zip(left, right, strict=True)] for left, right in zip(one, other, strict=True)]
