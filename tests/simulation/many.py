"""Runs many seeds on all cores and adds up what they came to."""

import gc
import multiprocessing
import os
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from simulation.generations import draw
from simulation.invariants import INVARIANTS
from simulation.scenario import KINDS
from simulation.simulation import Violation, simulate

_CHUNK = 25

CRASH = "the simulator itself does not fail"
"""No invariant of a schedule: it raised an exception."""


@dataclass(slots=True)
class Total:
    """Hold what all schedules came to."""

    schedules: int = 0
    steps: int = 0
    seconds: float = 0.0
    plans: int = 0
    nodes: Counter = field(default_factory=Counter)
    outcomes: Counter = field(default_factory=Counter)
    checked: Counter = field(default_factory=Counter)
    counts: Counter = field(default_factory=Counter)
    shapes: Counter = field(default_factory=Counter)
    violations: list[tuple[str, Violation]] = field(default_factory=list)
    took: float = 0.0

    def add(self, other: "Total") -> None:
        """Add the counts and the violations of another total."""
        self.schedules += other.schedules
        self.steps += other.steps
        self.seconds += other.seconds
        self.plans += other.plans
        for name in ("nodes", "shapes", "outcomes", "checked", "counts"):
            getattr(self, name).update(getattr(other, name))
        self.violations += other.violations

    def table(self) -> str:
        """For people, in Markdown."""
        rows = [
            ("schedules", f"{self.schedules:,}"),
            ("nodes", ", ".join(f"{count} × {number:,}" for count, number in sorted(self.nodes.items()))),
            ("kinds", ", ".join(f"{shape} {number:,}" for shape, number in self.shapes.most_common())),
            ("simulated hours", f"{self.seconds / 3600:,.1f}"),
            ("steps", f"{self.steps:,}"),
            ("plans", f"{self.plans:,}"),
            ("checks", f"{sum(self.checked.values()):,}"),
            ("violations", f"{len(self.violations):,}"),
        ]
        return "\n\n".join(
            (
                _markdown(("", ""), rows),
                _markdown(("fault", "times"), [(kind, f"{self.counts[kind]:,}") for kind in KINDS]),
                _markdown(("outcome", "times"), [(kind, f"{count:,}") for kind, count in self.outcomes.most_common()]),
                _markdown(("invariant", "checks"), [(name, f"{self.checked[name]:,}") for name in INVARIANTS]),
                _markdown(
                    ("beside", "times"),
                    [(name, f"{count:,}") for name, count in sorted(self.counts.items()) if name not in KINDS],
                ),
            )
        )


def run(seeds: Sequence[int | str], processes: int | None = None) -> Total:
    """Run the scenarios of these seeds, numbers or as `generations.draw` takes them."""
    seeds = list(seeds)
    processes = processes or len(os.sched_getaffinity(0))
    chunks = [seeds[start : start + _CHUNK] for start in range(0, len(seeds), _CHUNK)]
    total, began = Total(), time.monotonic()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with context.Pool(processes, maxtasksperchild=1) as pool:
        for each in pool.imap_unordered(run_here, chunks):
            total.add(each)
    total.took = time.monotonic() - began
    total.violations.sort(key=lambda found: found[0])
    return total


def run_here(seeds: Sequence[int | str]) -> Total:
    """Run them one after the other in this process, which ends afterwards.

    A schedule leaves cycles of some megabytes. To find them takes as long as it did, so they go with the process.
    """
    total = Total()
    gc.disable()
    try:
        for seed in seeds:
            total.schedules += 1
            try:
                report = simulate(draw(seed))
            except Exception as error:  # noqa: BLE001 - one seed that breaks the simulator itself does not hide what others find
                traceback.print_exc()
                total.violations.append((str(seed), Violation(CRASH, repr(error), 0.0)))
                continue
            total.steps += report.steps
            total.seconds += report.seconds
            total.plans += report.plans
            total.nodes[len(report.scenario.nodes)] += 1
            total.shapes[report.scenario.shape] += 1
            total.outcomes.update(report.outcomes)
            total.checked.update(report.checked)
            total.counts.update(report.counts)
            if report.violation is not None:
                total.violations.append((str(seed), report.violation))
    finally:
        gc.enable()
    return total


def _markdown(head: tuple[str, str], rows) -> str:
    lines = [f"| {head[0]} | {head[1]} |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]
    return "\n".join(lines)
