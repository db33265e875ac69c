"""Keep states by a key that only the data tell, such as the states of a metric by country. Imports numpy only."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Self

from sidecar.errors import RecordError, TaskError
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.states.exact_sum import ExactSum
from sidecar.evaluation.states.gathered_batches import GatheredText
from sidecar.evaluation.states.named_sums import MAX_ELEMENTS, NamedSums
from sidecar.evaluation.states.state import SetStates
from sidecar.system.plain_text import shortened

MOST_KEYS: Final = 10_000
"""Limit of the keys of all ranks together."""

_KINDS: Final[Mapping[str, type[ExactSum | NamedSums]]] = {"sum": ExactSum, "named": NamedSums}


class KeyedStates(GatheredText[SetStates]):
    """Keep exact sums by key and name. `new` returns the new states of a key: each is an `ExactSum` or `NamedSums`."""

    def __init__(self, shard: Shard, new: Callable[[], SetStates]) -> None:
        super().__init__(shard)
        self._new = new

    @staticmethod
    def can_hold(states: SetStates) -> bool:
        """Return whether states are of the kinds that this one keeps, and small."""
        return all(
            isinstance(state, NamedSums) or (isinstance(state, ExactSum) and state.width <= MAX_ELEMENTS)
            for state in states.values()
        )

    def of(self, key: str) -> SetStates:
        """Return the states of a key, to be added to; the first time makes them. Raises `TaskError` for too many."""
        if key not in self._kept:
            self._put(key, self._new())
        return self._kept[key]

    def new(self) -> SetStates:
        """Return the new states of any key."""
        return self._new()

    def items(self) -> list[tuple[str, SetStates]]:
        """Return the states of each key, in the order of the keys."""
        return sorted(self._kept.items())

    def merge(self, other: Self) -> None:
        """Add the states of another one, which are used here from now on. Raises `ValueError` if kinds differ."""
        for key, theirs in other._kept.items():
            self._merge(key, theirs)

    def merge_parts(self, keys: Sequence[str], sums: Mapping[str, ExactSum]) -> None:
        """Add sums by part of the data, by name: each part to the states of its key."""
        for key, *parts in zip(keys, *(state.items() for state in sums.values()), strict=True):
            self._merge(key, dict(zip(sums, parts, strict=True)))

    def _merge(self, key: str, theirs: SetStates) -> None:
        if key not in self._kept:
            self._put(key, theirs)
            return
        mine: Mapping[str, Any] = self._kept[key]
        if mine.keys() != theirs.keys():
            raise ValueError(f"states {', '.join(theirs)} cannot be merged into {', '.join(mine)}")
        for name, state in theirs.items():
            mine[name].merge(state)

    def to_json(self) -> dict[str, Any]:
        """Return strict JSON: the states by key and name."""
        keys = {key: {name: state.to_json() for name, state in states.items()} for key, states in self.items()}
        return {"reduction": "keyed", "keys": keys}

    @classmethod
    def from_json(cls, parsed: dict[str, Any]) -> Self:
        """Build the state of a single rank from the output of `to_json`. Raises `RecordError` for anything else."""
        made = cls(Shard(0, 1), dict)
        try:
            for key, states in parsed["keys"].items():
                made._put(str(key), {str(name): _state(state) for name, state in states.items()})
        except (AttributeError, KeyError, TaskError, TypeError) as error:
            raise RecordError(f"not the saved state of a metric: {error!r}") from error
        return made

    def _put(self, key: str, states: SetStates) -> None:
        if len(self._kept) == MOST_KEYS:
            raise TaskError(
                f"Task(slices=…) makes more than {MOST_KEYS:,} slices, such as {shortened(key)}: return fewer, larger "
                f"bins"
            )
        self._kept[key] = states


def _state(parsed: dict[str, Any]) -> ExactSum | NamedSums:
    kind = _KINDS[parsed["reduction"]]
    if kind is ExactSum and not math.prod(parsed["shape"]) <= MAX_ELEMENTS:
        raise TypeError(f"a state cannot have the shape {shortened(parsed['shape'])}")
    return kind.from_json(parsed)
