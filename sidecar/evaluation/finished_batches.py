"""Keep the states of the finished batches of an eval set, so that the next attempt need not run them again.

`finished_sets` reads and writes them, `eval_loop` asks which batches are left. All that a batch adds is exact: sums,
values by example, contents by batch, and rows that are saved, which are linked into the folder of the states. Random
numbers are seeded by the weights and the number of the batch. Numbers of batches do not depend on the number of ranks,
so a group of any size may use what another one left. The first batch is run again, and what it gives has to have the
bits that were kept; else all ranks evaluate the set again from the beginning. Imports no framework.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from sidecar.errors import RecordError
from sidecar.evaluation.states import ExactSum, SetStates, exact_sum

DIFFERS: Final = "differs from an attempt before"
"""Name of a state, not 0 if the first batch gives other values than in the attempt whose batches are used."""

NOTE: Final = (
    "an interrupted attempt had other values for the first batch, or its files are damaged, so nothing of it was used"
)

_LEAST_TIMES: Final = 20.0  # as long as writing took: files cost at most a twentieth of the time
_MOST_BYTES: Final = 64 << 20  # of states; larger ones would take long to write again and again

Place = tuple[int, int | None, Any]
"""A batch, after the number of it and of its first example."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Hold what one rank kept of its batches: numbers, a digest of what the first of the set gave, and states."""

    batches: frozenset[int]
    first: str  # empty on ranks that do not have it
    states: SetStates


@dataclass(slots=True, kw_only=True)
class FinishedBatches:
    """Hold the batches of one eval set that are finished, as one rank sees them during an evaluation."""

    seconds: float = 0.0  # between two times that they are written
    write: Callable[[Kept], None] | None = None  # None: nothing is written
    done: frozenset[int] = frozenset()  # of all ranks in an attempt before
    taken: SetStates = field(default_factory=dict)  # of the ranks before that this one takes over
    own: set[int] = field(default_factory=set)  # the batches whose states this rank has, or takes over
    first: str = ""  # digest of what the first batch gave
    complete: Callable[[SetStates], None] = lambda _: None  # adds what this rank found so far to states of the set
    now: Callable[[], float] = time.monotonic
    _before: SetStates = field(default_factory=dict)  # counts of those that this one takes over
    _is_kept: bool = False
    _differs: bool = False
    _due: float = 0.0
    _was_written: bool = False
    _digest: Callable[[], str] = str  # returns that of what the first batch gave

    def begin(self, states: SetStates, counts: SetStates, *, is_numbered: bool) -> None:
        """Merge the states of the ranks before into new ones. All is evaluated again if they do not fit.

        `counts`: those that are no metric's. `is_numbered`: whether the batches have numbers that all ranks know.
        """
        are_few = sum(8 * state.rows * state.width for state in states.values()) <= _MOST_BYTES
        self._is_kept = self.write is not None and is_numbered and are_few
        self._due, self._before = self.now() + self.seconds, counts
        self._differs = bool(self.taken) and self.taken.keys() != (states | counts).keys()
        try:
            merged_into(states | counts, self.taken)
        except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError):
            self._differs = True

    def left(self, places: Iterable[Place], tick: Callable[[], None]) -> Iterator[Place]:
        """Yield the batches that have to be run: those that are not finished, and the first one."""
        for place in places:
            if place[0] == 0 or place[0] not in self.done:
                yield place
            else:
                tick()

    def is_compared(self, number: int) -> bool:
        """Return whether a batch that was run is finished, so that it was only compared."""
        return number in self.done

    def see(self, number: int, digest: Callable[[], str], *, needs_more: bool) -> None:
        """Compare what the first batch gives, by its digest, with what it gave before.

        `needs_more`: an attempt after this one would need more than the states of batches, so that none are kept.
        """
        self._is_kept &= not needs_more
        if number == 0 and self.done:
            found = digest()
            self._differs |= found != self.first
            self.first = found
        elif number == 0:
            self._digest = digest  # most sets end before it is needed

    def add(self, number: int, states: Callable[[], SetStates], counts: Callable[[], SetStates]) -> None:
        """Note a batch that was run. Write the states of all if the last time was long ago."""
        if self._is_kept:
            self.own.add(number)
            if self.now() >= self._due:
                self._write(states(), counts())

    def finish(self, states: Callable[[], SetStates], counts: Callable[[], SetStates]) -> None:
        """Write the states of all batches, unless the set took too little time to be written before."""
        if self._is_kept and self._was_written:
            self._write(states(), counts())

    def states(self, counts: SetStates) -> SetStates:
        """Return counts with those that were taken over, and whether the first batch differs, which all ranks sum."""
        if not self.done:
            return counts
        state = ExactSum((), "int64")
        state.add(np.int64(self._differs))
        return merged_into(counts, self._before) | {DIFFERS: state}

    def _write(self, states: SetStates, counts: SetStates) -> None:
        began = self.now()
        if self.write is not None and not self._differs:
            few = {name: type(state).from_json(state.to_json()) for name, state in states.items() if "/" not in name}
            kept = states | few  # those of no metric are copies, to which is added
            self.complete(kept)
            self.first, self._digest = self.first or self._digest(), str
            self.write(Kept(frozenset(self.own), self.first, kept | merged_into(counts, self._before)))
        ended = self.now()
        self._due, self._was_written = ended + max(self.seconds, _LEAST_TIMES * (ended - began)), True


def differs(states: SetStates) -> bool:
    """Return whether the first batch of a set gave other values than in the attempt whose batches are in its states."""
    return DIFFERS in states and bool(exact_sum(states, DIFFERS).integers())


def merged_into(states: SetStates, others: SetStates) -> SetStates:
    """Merge states into those of the same name, and return the latter. Raises `LookupError` if there is no such one."""
    of_any_kind: dict[str, Any] = states
    for name, state in others.items():
        of_any_kind[name].merge(state)
    return states


def chosen(kept: Mapping[str, Kept]) -> list[str]:
    """Return names of those that have no batch in common, that of the first batch before the others; empty without it.

    Those of more batches are preferred, so that an attempt that went on replaces the one that it took over from.
    """
    found: list[str] = []
    batches: set[int] = set()
    for name in sorted(kept, key=lambda name: (-len(kept[name].batches), name)):
        if batches.isdisjoint(kept[name].batches):
            batches |= kept[name].batches
            found.append(name)
    found.sort(key=lambda name: (0 not in kept[name].batches, name))
    return found if 0 in batches and kept[found[0]].first else []


def parsed(record: Mapping[str, Any], eval_set: str, batches: int) -> Kept:
    """Return what a rank kept, given its record. Raises `RecordError` for batches that the set does not have."""
    numbers, first, states = record["batches"], record["first"], record["states"][eval_set]
    if not isinstance(numbers, list) or not isinstance(first, str) or len(numbers) > batches:
        raise RecordError(f"not the finished batches of {eval_set!r}")
    if not all(type(number) is int and 0 <= number < batches for number in numbers):
        raise RecordError(f"{eval_set!r} has batches 0 to {batches - 1}, and others are said to be finished")
    return Kept(frozenset(numbers), first, states)


def merged(kept: Iterable[Kept]) -> tuple[set[int], SetStates]:
    """Return batches and states of several ranks together. Raises `ValueError` or `LookupError` if they do not fit."""
    batches: set[int] = set()
    states: SetStates = {}
    for each in kept:
        batches |= each.batches
        if states and states.keys() != each.states.keys():
            raise LookupError("ranks kept states of other names")
        states = merged_into(states, each.states) if states else each.states
    return batches, states
