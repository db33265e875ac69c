"""Judge the evidence of the end-to-end test, with one sentence per failure. Pure."""  # noqa: INP001

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from promql import Series
from run_files import Plan

WORKERS: Final = ("worker-0", "worker-1")
CHIEF: Final = "chief"
LOSS_TOLERANCE: Final = 1e-6  # float32 probabilities, added up in another order
LEAST_SECONDS: Final = 15.0  # three scrapes: a value that is shown for a shorter time may be missed

Seen = Mapping[tuple[int, str], set[float]]
"""The values that were stored, by step and metric."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Hold a checkpoint that was saved during the test, and the values that one process computes for it."""

    name: str
    step: int
    saved_at: float
    expected: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Evidence:
    """Hold everything that is judged."""

    checkpoints: Sequence[Checkpoint]
    plans: Sequence[Plan]
    scraped: Seen  # the daemons' own series
    recorded: Seen  # the series of the recording rules, which dashboards read
    group_sizes: Mapping[int, set[float]]  # by step, while its values were shown
    chief_roles: Sequence[str]  # as the chief's daemon reported them
    chief_processes: Sequence[float]  # worker processes of the chief's daemon, at every scrape


def failures(evidence: Evidence) -> Iterator[str]:
    """Yield a sentence for every failure."""
    if not evidence.checkpoints:
        yield "no checkpoint was judged"
    yield from _spacing(evidence.checkpoints)
    shown = _shown_seconds(evidence.plans)
    briefly_shown = [shown.get(checkpoint.name, 0.0) < LEAST_SECONDS for checkpoint in evidence.checkpoints]
    if evidence.checkpoints and all(briefly_shown):
        yield f"no checkpoint's values were shown for {LEAST_SECONDS:g} s, so none can be judged: raise SAVE_SECONDS"
    for checkpoint in evidence.checkpoints:
        plans = [plan for plan in evidence.plans if plan.checkpoint == checkpoint.name]
        yield from _evaluated_once(checkpoint, plans)
        yield from _found_right(checkpoint, plans)
        # Evaluations that waited for a busy processor may all end between two scrapes.
        briefly = shown.get(checkpoint.name, math.inf) < LEAST_SECONDS
        yield from _arrived(checkpoint, "Prometheus", evidence.scraped, briefly=briefly)
        yield from _arrived(checkpoint, "the recording rules", evidence.recorded, briefly=briefly)
        sizes = evidence.group_sizes.get(checkpoint.step, set())
        if sizes != {float(len(WORKERS))} and (sizes or not briefly):
            said = ", ".join(f"{size:g}" for size in sorted(sizes)) or "nothing"
            yield f"sidecar_group_size showed {said} and not {len(WORKERS)} while {checkpoint.name} was the newest"
    yield from _chief_idle(evidence)


def suffered(checkpoint: Checkpoint, plans: Sequence[Plan]) -> Iterator[str]:
    """Yield a sentence for every failure with a checkpoint during a fault, whichever nodes evaluated it."""
    yield from _once(checkpoint, plans)
    yield from _found_right(checkpoint, plans)


def matches(metric: str, expected: float, seen: set[float]) -> bool:
    """Return whether only the expected value was seen: counts to the bit, sums of logarithms within a tolerance."""
    tolerance = 0.0 if metric == "accuracy" else LOSS_TOLERANCE
    return bool(seen) and all(math.isclose(value, expected, rel_tol=0.0, abs_tol=tolerance) for value in seen)


def join(steps: Sequence[Series], metrics: Sequence[Series], *, by: str | None) -> Seen:
    """Return values by the step that was shown at the same time. `by`: the label of the target that both must share."""
    shown = {(_target(series, by), at): int(step) for series in steps for at, step in series.values.items()}
    seen: dict[tuple[int, str], set[float]] = {}
    for series in metrics:
        for at, value in series.values.items():
            if (step := shown.get((_target(series, by), at))) is not None:
                seen.setdefault((step, series.labels.get("metric", "")), set()).add(value)
    return seen


def _target(series: Series, by: str | None) -> str:
    return series.labels[by] if by else ""


def _spacing(checkpoints: Sequence[Checkpoint]) -> Iterator[str]:
    """Yield a sentence for each pair of checkpoints that were saved too soon after each other."""
    for before, after in itertools.pairwise(checkpoints):
        if (apart := after.saved_at - before.saved_at) < LEAST_SECONDS:
            yield (
                f"{after.name} was saved {apart:.1f} s after {before.name}: less than {LEAST_SECONDS:g} s apart "
                "Prometheus may miss a value, so raise SAVE_SECONDS"
            )


def _evaluated_once(checkpoint: Checkpoint, plans: Sequence[Plan]) -> Iterator[str]:
    """Yield a sentence unless a checkpoint was evaluated once, by all workers."""
    yield from _once(checkpoint, plans)
    for plan in plans:
        if plan.status == "succeeded" and sorted(plan.nodes) != sorted(WORKERS):
            yield f"plan {plan.number} for {checkpoint.name} ran on {_listed(plan.nodes)} and not on {_listed(WORKERS)}"


def _once(checkpoint: Checkpoint, plans: Sequence[Plan]) -> Iterator[str]:
    """Yield a sentence unless exactly one plan succeeded."""
    succeeded = [plan for plan in plans if plan.status == "succeeded"]
    if len(succeeded) != 1:
        kinds = ", ".join(plan.kind or "still running" for plan in plans if plan.status != "succeeded")
        tried = f" (other attempts: {kinds})" if kinds else ""
        yield f"{checkpoint.name} was evaluated {len(succeeded)} times and not once{tried}"


def _found_right(checkpoint: Checkpoint, plans: Sequence[Plan]) -> Iterator[str]:
    """Yield a sentence for each value in the journal that is wrong."""
    for plan in plans:
        if plan.status != "succeeded":
            continue
        for metric, expected in checkpoint.expected.items():
            value = plan.values.get(metric)
            if value is None or not matches(metric, expected, {value}):
                yield f"{metric} of {checkpoint.name} is {expected!r}, but plan {plan.number} found {value!r}"


def _shown_seconds(plans: Sequence[Plan]) -> dict[str, float]:
    """Return the seconds for which each checkpoint's values were the newest in the journal; infinite for the last."""
    succeeded = [plan for plan in plans if plan.status == "succeeded"]
    shown = {plan.checkpoint: after.completed_at - plan.completed_at for plan, after in itertools.pairwise(succeeded)}
    return shown | {plan.checkpoint: math.inf for plan in succeeded[-1:]}


def _arrived(checkpoint: Checkpoint, place: str, seen: Seen, *, briefly: bool) -> Iterator[str]:
    """Yield a sentence for each value that did not arrive. `briefly`: shown for so short that it may be missing."""
    for metric, expected in checkpoint.expected.items():
        values = seen.get((checkpoint.step, metric), set())
        if briefly and not values:
            continue
        if not matches(metric, expected, values):
            shown = ", ".join(repr(value) for value in sorted(values)) or "nothing"
            yield f"{metric} of {checkpoint.name} is {expected!r}, but {place} saw {shown}"


def _chief_idle(evidence: Evidence) -> Iterator[str]:
    """Yield a sentence for each sign that the chief evaluated."""
    if listed := [plan.number for plan in evidence.plans if CHIEF in plan.nodes]:
        yield f"the chief evaluated: it is a member of plans {listed}"
    if set(evidence.chief_roles) != {CHIEF}:
        yield f"the chief's daemon shows the roles {sorted(set(evidence.chief_roles))} and not chief alone"
    if busy := max(evidence.chief_processes, default=0.0):
        yield f"the chief's daemon had {busy:g} worker processes"


def _listed(nodes: Sequence[str]) -> str:
    return " and ".join(nodes) or "no node"
