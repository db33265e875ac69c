"""Draw the curve of one metric: order, smooth and thin out its points. Pure.

Smoothing comes before thinning out, so that a smoothed value does not depend on how many points are shown.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Any, Final

from sidecar.protocol.records import shown_step
from sidecar.publishing.evaluation_archive.evaluations import ArchivedEvaluations, finite

MOST_POINTS: Final = 2000
"""The most points of an answer: more than a screen has columns."""

LEAST_POINTS: Final = 10


def curve_json(
    archive: ArchivedEvaluations, eval_set: str, metric: str, *, points: int, smoothing: float, best: int | None = None
) -> dict[str, Any] | None:
    """Return a curve as columns of equal length, ordered by step; None if no evaluation has this metric.

    `breaks` says of each point whether its value cannot be compared with that before it, and `stretches` has the same
    number for all points whose values can be compared. If the steps of only some checkpoints are known, the points are
    in the order of their evaluations, and `x` counts them, as in `sidecar history --plot`.

    `points`: the most points to return; with more evaluations, each interval of steps keeps its lowest and its highest
    value. The best and the newest point are always kept. `smoothing`: see `smoothed`. `best`: the plan that reached the
    best value. A requeued evaluation does not count, so the journal decides it.
    """
    found = list(archive.points(eval_set, metric))
    if not found:
        return None
    newest = found[-1][0]
    goal = next(series.goal for series in archive.series() if (series.eval_set, series.metric) == (eval_set, metric))
    is_mixed = len({row.step is None or row.step_source == "order" for row, _ in found}) > 1
    if not is_mixed:  # else the number of a checkpoint in order would be taken for a step
        found.sort(key=lambda point: (point[0].step or 0, point[0].plan))
    values = [number.value for _, number in found]
    starts = archive.starts(eval_set)
    stretches = [bisect_right(starts, row.plan) for row, _ in found]
    smooth = _smoothed_apart(values, stretches, smoothing) if smoothing > 0 else None
    keep = {place for place, (row, _) in enumerate(found) if row is newest or row.plan == best}
    kept = thinned(values, points, keep)
    return {
        "set": eval_set,
        "metric": metric,
        "goal": goal,
        "evaluations": len(found),
        "downsampled": len(kept) < len(found),
        "x": [place + 1 if is_mixed else found[place][0].step or 0 for place in kept],
        "plans": [found[place][0].plan for place in kept],
        "steps": [found[place][0].step for place in kept],
        "labels": [shown_step(found[place][0].step, found[place][0].step_source) for place in kept],
        "checkpoints": [found[place][0].checkpoint for place in kept],
        "completed_at": [found[place][0].completed_at for place in kept],
        "examples": [found[place][0].examples.get(eval_set) for place in kept],
        "values": [finite(values[place]) for place in kept],
        "hex": [values[place].hex() for place in kept],
        "lower": [finite(found[place][1].lower) for place in kept],
        "upper": [finite(found[place][1].upper) for place in kept],
        "smoothed": None if smooth is None else [finite(smooth[place]) for place in kept],
        "breaks": [False, *(stretches[one] != stretches[other] for one, other in pairwise(kept))],
        "stretches": [stretches[place] for place in kept],
        "newest": newest.plan,
        "best": best,
    }


def _smoothed_apart(values: Sequence[float], stretches: Sequence[int], weight: float) -> list[float]:
    """Return smoothed values. Smoothing begins anew where values cannot be compared with those before."""
    result: list[float] = []
    for _, places in groupby(range(len(values)), key=stretches.__getitem__):
        result += smoothed([values[place] for place in places], weight)
    return result


def smoothed(values: Sequence[float], weight: float) -> list[float]:
    """Return TensorBoard's smoothed values: an exponential moving average without the bias to the start value.

    Source: `resmoothDataset` in TensorBoard's `tensorboard/components/vz_line_chart2/line-chart.ts`. With the weight
    w, the average after n finite values v is the sum of (1 - w) w^(n-i) v_i, divided by 1 - w^n. A curve that never
    changes, and values that are not finite, stay as they are.

    `weight`: 0 (no smoothing) to less than 1.
    """
    if all(value == values[0] for value in values):
        return list(values)
    result, last, count = [], 0.0, 0
    for value in values:
        if math.isfinite(value):
            last, count = last * weight + (1 - weight) * value, count + 1
            result.append(last / (1 - weight**count))
        else:
            result.append(value)
    return result


def thinned(values: Sequence[float], points: int, keep: set[int]) -> list[int]:
    """Return at most `points` places of values, in order: both ends, `keep`, and the extremes of each interval.

    Each of equally long intervals gives the places of its lowest and of its highest value, so that no peak is lost. A
    value that is not finite stands for its interval if there is no other.
    """
    if len(values) <= points:
        return list(range(len(values)))
    chosen = {0, len(values) - 1} | keep
    intervals = max(1, (points - len(chosen)) // 2)
    for number in range(intervals):
        places = range(number * len(values) // intervals, (number + 1) * len(values) // intervals)
        numbers = [place for place in places if math.isfinite(values[place])] or list(places)[:1]
        chosen |= {min(numbers, key=values.__getitem__), max(numbers, key=values.__getitem__)}
    return sorted(chosen)
