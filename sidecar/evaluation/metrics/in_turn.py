"""Carry the numbers of metrics that worker 0 evaluates in turn, over all batches in order, to all workers.

Such a metric has no states that can be merged: it keeps lists, or computes new states from old ones by a formula. One
object is updated with one batch after the other, as in a program without workers. After the last batch its result
becomes the content of a state, which is neutral on the other workers. So all workers know the same numbers, and these
can be read from the saved states. Imports numpy, never a framework.
"""

import hashlib
import json
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.metrics.metric import MetricResult, value
from sidecar.evaluation.states import ExactSum, GatheredBatches, SetStates, exact_sum, state_of
from sidecar.protocol.records import Value
from sidecar.system.plain_text import shortened

_RESULTS: Final = "in turn"  # name of a state; those of metrics contain a slash
_FOUND: Final = "cannot be merged"


class ResultsInTurn:
    """Hold the results of metrics in turn in the states of one eval set.

    `reasons` completes a sentence that begins with the name of a metric in turn; empty: the task asks for it.
    `mergeable`: names of the other metrics, of which some may prove to be no sums in the middle of an evaluation.
    """

    def __init__(self, reasons: Mapping[str, str], mergeable: Iterable[str] = ()) -> None:
        self._reasons, self._mergeable = reasons, list(mergeable)

    def states(self, shard: Shard) -> SetStates:
        """Return the empty states: one for the results, and one for metrics that prove to be no sums."""
        states: SetStates = {_RESULTS: GatheredBatches(shard)} if self._reasons else {}
        return states | ({_FOUND: ExactSum((len(self._mergeable),), "int64")} if self._mergeable else {})

    def put(self, states: SetStates, results: Mapping[str, MetricResult]) -> None:
        """Put the results of all metrics in turn, by name, into the state. Only worker 0 calls this.

        The reasons travel with them, because some hold numbers or addresses of this process.
        """
        gathered = state_of(states, _RESULTS, GatheredBatches)
        content = {
            name: {
                "reason": self._reasons[name],
                "values": {key: _listed(number) for key, number in result.values.items()},
                "classes": {
                    key: {place: _listed(number) for place, number in numbers.items()}
                    for key, numbers in result.classes.items()
                },
                "notes": list(result.notes),
            }
            for name, result in results.items()
        }
        gathered.put(0, np.frombuffer(json.dumps(content).encode(), np.uint8))

    def results(self, states: SetStates) -> dict[str, MetricResult]:
        """Return the results by metric; nothing before worker 0 has put them."""
        return {
            name: MetricResult(
                {key: _value(listed) for key, listed in result["values"].items()},
                {
                    key: {place: _value(listed) for place, listed in numbers.items()}
                    for key, numbers in result["classes"].items()
                },
                tuple(result["notes"]),
            )
            for name, result in self._content(states).items()
        }

    def _content(self, states: SetStates) -> dict[str, Any]:
        gathered = states.get(_RESULTS)
        if gathered is None:
            return {}
        assert isinstance(gathered, GatheredBatches)
        return {name: result for text in gathered.contents() for name, result in json.loads(text.tobytes()).items()}

    def add_found(self, states: SetStates, names: Iterable[str]) -> None:
        """Add the metrics that have proved, on this worker, to be no sums."""
        if self._mergeable:
            found = set(names)
            exact_sum(states, _FOUND).add(np.array([name in found for name in self._mergeable], np.int64))

    def found(self, states: SetStates) -> list[str]:
        """Return the names of the metrics that have proved to be no sums on any worker."""
        if _FOUND not in states:
            return []
        counts: NDArray[Any] = exact_sum(states, _FOUND).integers()
        return [name for name, count in zip(self._mergeable, counts, strict=True) if count]

    def notes(self, states: SetStates, shown: Mapping[str, str] | None = None) -> tuple[str, ...]:
        """Return a note about the metrics in turn, and what they cost. `shown` has names that people know."""
        if not self._reasons:
            return ()
        by_reason: dict[str, list[str]] = {}
        told = {name: result["reason"] for name, result in self._content(states).items()}
        for name, reason in (dict(self._reasons) | told).items():
            by_reason.setdefault(reason, []).append((shown or {}).get(name, name))
        parts = [
            f"{', '.join(names)} {reason}" if reason else f"Task(in_turn=…) asks for {', '.join(names)}"
            for reason, names in by_reason.items()
        ]
        note = (
            f"evaluated in turn, since {'; '.join(parts)}: worker 0 evaluates this set alone, all batches in order, "
            f"and another batch size or order may give other numbers"
        )
        return (note,)


def _listed(number: Value) -> list[Any]:
    return [number.hex, number.goal]


def _value(listed: list[Any]) -> Value:
    text, goal = listed
    return value(float(text) if text in ("nan", "inf", "-inf") else float.fromhex(text), goal)


def held_by(metric: Any) -> dict[str, str]:
    """Return a description of the contents of a metric's attributes, by name, to see whether a reset restores them.

    Objects of unknown classes, other than those of Keras, count as empty, since only the metric knows what they hold.
    """
    return {name: _described(content) for name, content in vars(metric).items() if not name.startswith("__")}


def _described(content: Any) -> str:
    if isinstance(content, bool | int | float | str | bytes | np.generic | None):
        return repr(content)
    if isinstance(content, Mapping):
        return "".join(f"{key!r:.80}:{_described(part)}," for key, part in content.items())
    if isinstance(content, list | tuple | set | frozenset | deque):
        return f"{len(content)}[{','.join(map(_described, content))}]"
    if hasattr(content, "shape") and hasattr(content, "dtype"):  # an array, a tensor or a variable
        try:
            array = np.asarray(content)
        except (NotImplementedError, TypeError, ValueError, RuntimeError):  # it has no values, as within a trace
            return ""
        return f"{array.shape}{hashlib.sha256(array.tobytes()).hexdigest()}" if array.dtype != object else ""
    variables = getattr(content, "variables", None)
    return _described(variables) if isinstance(variables, list | tuple) else ""  # those of a metric or layer of Keras


def numbers_of(label: str, name: str, result: Any, limit: int) -> dict[str, float]:
    """Return the numbers in what a function or metric returned: a number, an array, or numbers by name.

    Raises `ValueError` for anything else, and for more numbers than the limit.
    """
    if isinstance(result, Mapping):
        found: dict[str, float] = {}
        for key, part in result.items():
            numbers = numbers_of(label, str(key), part, limit)
            if twice := numbers.keys() & found.keys():
                raise ValueError(f"{label} returns two numbers with the name {min(twice)!r}")
            found |= numbers
    else:
        array = np.asarray(result.item() if getattr(result, "ndim", None) == 0 else result)
        if array.dtype.kind not in "biuf":
            raise ValueError(f"{label} returns {shortened(result)} for {name!r}, which is not a number")
        if array.size > limit:
            raise ValueError(f"{label} returns {array.size} numbers for {name!r}, at most {limit} can be published")
        found = {"_".join([name, *map(str, index)]): float(array[index]) for index in np.ndindex(array.shape)}
    if len(found) > limit:
        raise ValueError(f"{label} returns {len(found)} numbers, at most {limit} can be published")
    return found
