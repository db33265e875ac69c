"""Finds the smallest scenario that still breaks the same invariant: fewer faults, then fewer nodes and checkpoints."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simulation.generations import name_of
from simulation.scenario import Scenario
from simulation.simulation import Report, simulate

_MOST_RUNS = 150


@dataclass(frozen=True, slots=True)
class Parts:
    """Which faults, nodes and saves of a scenario take part; by number. None: all."""

    faults: tuple[int, ...] | None = None
    nodes: tuple[int, ...] | None = None
    saves: tuple[int, ...] | None = None

    def of(self, scenario: Scenario) -> Scenario:
        """The scenario with these parts alone."""
        return scenario.only(self.faults, self.nodes, self.saves)

    def command(self, scenario: Scenario) -> str:
        """Return what replays exactly this."""
        named = {"FAULTS": self.faults, "NODES": self.nodes, "CHECKPOINTS": self.saves}
        given = [f"{name}={','.join(map(str, parts)) or '-'}" for name, parts in named.items() if parts is not None]
        return " ".join(["make simulate", f"SEEDS={name_of(scenario)}", *given])


def shrink(scenario: Scenario, invariant: str) -> tuple[Parts, Report]:
    """The smallest parts found that break it, and what they came to, with its history."""
    runs = 0

    def breaks(parts: Parts) -> bool:
        nonlocal runs
        runs += 1
        if runs > _MOST_RUNS:
            return False
        violation = simulate(parts.of(scenario)).violation
        return violation is not None and violation.invariant == invariant

    faults = _fewer(tuple(each.number for each in scenario.faults), 0, lambda kept: breaks(Parts(kept)))
    nodes = _fewer(tuple(range(len(scenario.nodes))), 1, lambda kept: breaks(Parts(faults, kept)))
    saves = _fewer(tuple(range(len(scenario.saves))), 1, lambda kept: breaks(Parts(faults, nodes, kept)))
    parts = Parts(faults, nodes, saves)
    if not parts.of(scenario).nodes:
        parts = Parts()
    return parts, simulate(parts.of(scenario), history=True)


def _fewer(parts: tuple[int, ...], least: int, breaks: Callable[[tuple[int, ...]], bool]) -> tuple[int, ...]:
    """Delta debugging: leave out ever smaller pieces for as long as it still breaks (Zeller and Hildebrandt, 2002)."""
    size = max(1, len(parts) // 2)
    while parts and size:
        for kept in _without_one_piece(parts, size):
            if len(kept) >= least and breaks(kept):
                parts = kept
                break
        else:
            size //= 2
            continue
        size = min(size, max(1, len(parts) // 2))
    return parts


def _without_one_piece(parts: Sequence[int], size: int):
    for start in range(0, len(parts), size):
        yield tuple(parts[:start]) + tuple(parts[start + size :])
