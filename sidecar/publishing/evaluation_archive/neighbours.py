"""Tell what is around one evaluation: the one before, the next one, and its distance to the best. Pure."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from typing import Any

from sidecar.protocol.states import OutcomeStatus
from sidecar.publishing.evaluation_archive.evaluations import ArchivedEvaluation, ArchivedEvaluations, Number


def neighbours(archive: ArchivedEvaluations, plan: int, best: Mapping[tuple[str, str], int]) -> dict[str, Any]:
    """Return the plans next to an evaluation, and the numbers to compare its own with.

    `best`: the plan that reached the best value, by eval set and metric. In what is returned, `previous` and `next` are
    the nearest plans that evaluated something, whether they failed or not; None at the ends. `goals`: `max`, `min` or
    `none` by eval set and metric. `against`: by eval set and metric the values of `before`, the evaluation with the
    next lower step, and of `best`. One is missing if there is none, or if its value cannot be compared: other data,
    another task, or NaN. `not_comparable` lists, in the same way, those that have other data or another task.
    """
    rows = archive.rows
    place = bisect_left(rows, plan, key=lambda row: row.plan)
    earlier = next((row.plan for row in reversed(rows[:place]) if row.attempt is not None), None)
    later = next((row.plan for row in rows[place:] if row.plan > plan and row.attempt is not None), None)
    here = next((row for row in archive.of_plan(plan) if row.status == OutcomeStatus.SUCCEEDED), None)
    against: dict[str, dict[str, Any]] = {}
    not_comparable: dict[str, dict[str, list[str]]] = {}
    goals: dict[str, dict[str, str]] = {}
    if here is not None:
        for eval_set, metric, goal in here.names:
            found, others = _against(archive, here, (eval_set, metric), best.get((eval_set, metric)))
            against.setdefault(eval_set, {})[metric] = found
            not_comparable.setdefault(eval_set, {})[metric] = others
            goals.setdefault(eval_set, {})[metric] = goal
    around = {"previous": earlier, "next": later, "goals": goals}
    return around | {"against": against, "not_comparable": not_comparable}


def _against(
    archive: ArchivedEvaluations, here: ArchivedEvaluation, name: tuple[str, str], best: int | None
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return the values that a number of an evaluation is compared with, and which cannot be compared with it."""
    starts = archive.starts(name[0])
    stretch, at = bisect_right(starts, here.plan), _order(here)
    finite = [(row, number) for row, number in archive.points(*name) if math.isfinite(number.value)]
    found: dict[str, dict[str, Any]] = {}
    others = []
    for what, of in (
        ("before", [(row, number) for row, number in finite if _order(row) < at]),
        ("best", [(row, number) for row, number in finite if row.plan == best]),
    ):
        comparable = [(row, number) for row, number in of if bisect_right(starts, row.plan) == stretch]
        if comparable:
            found[what] = _json(*max(comparable, key=lambda point: _order(point[0])))
        elif of:
            others.append(what)
    return found, others


def _order(row: ArchivedEvaluation) -> tuple[int, int]:
    return row.step or 0, row.plan


def _json(row: ArchivedEvaluation, number: Number) -> dict[str, Any]:
    return {"plan": row.plan, "step": row.step, "step_source": row.step_source} | number.as_json()
