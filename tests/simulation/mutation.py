"""Declare mutations: a rule that is broken on purpose, where that matters, and which invariants must notice."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from unittest.mock import patch

from simulation.generations import make
from simulation.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Mutation:
    """A rule that is broken: who is patched, with what, and which invariants may notice first."""

    name: str
    patches: tuple
    caught_by: tuple[str, ...]
    needs: Callable[[Scenario], bool] | None = None  # elsewhere it makes no difference: seeds are passed over
    first: tuple[Scenario, ...] = ()  # scenarios that are tried before those that seeds draw

    @property
    def missing(self) -> list[str]:
        """Return what is to be patched and is not there: a rule that was renamed is no longer broken."""
        return [f"{owner}.{name}" for owner, name, _ in self.patches if not hasattr(owner, name)]


def with_fault(*kinds: str) -> Callable[[Scenario], bool]:
    """Scenarios with one of these faults."""
    return lambda scenario: any(fault.kind in kinds for fault in scenario.faults)


def with_setting(**settings) -> Callable[[Scenario], bool]:
    """Scenarios in which some node has each of these settings; a function is asked."""

    def has(value, wanted) -> bool:
        return wanted(value) if callable(wanted) else value == wanted

    return lambda scenario: all(
        any(has(getattr(node.settings, name), wanted) for node in scenario.nodes) for name, wanted in settings.items()
    )


def scenarios(mutation: Mutation, count: int) -> Iterator[Scenario]:
    """The first scenarios in which it can make a difference."""
    yield from mutation.first
    seed = 0
    while count:
        seed += 1
        scenario = make(seed)
        if mutation.needs is None or mutation.needs(scenario):
            count -= 1
            yield scenario


@contextlib.contextmanager
def broken(mutation: Mutation):
    """Break the rule while this lasts."""
    with contextlib.ExitStack() as stack:
        for owner, name, replacement in mutation.patches:
            stack.enter_context(patch.object(owner, name, replacement))
        yield
