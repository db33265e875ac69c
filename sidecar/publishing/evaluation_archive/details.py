"""Describe one evaluation completely, as JSON. Pure."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from sidecar.coordination.journal_state import Closed
from sidecar.publishing.evaluation_archive.confusion import matrices
from sidecar.publishing.report import closed_row, numbers


def details_json(closed: Closed, saved: Iterable[bytes] = ()) -> dict[str, Any]:
    """Return the row of `sidecar history --json` with everything else that the journal knows of a plan.

    Args:
        closed: The plan and its outcome.
        saved: The metric states that the ranks saved, which hold the confusion matrices.
    """
    plan, outcome, result = closed.plan, closed.outcome, closed.outcome.result
    return closed_row(closed) | {
        "proposer": plan.proposer,
        "closed_by": outcome.closed_by,
        "node": outcome.node,
        "rank": outcome.rank,
        "odd": list(outcome.odd),
        "task": plan.task,
        "members": [asdict(member) for member in plan.members or ()],
        "variables": result and result.variables,
        "profile": {} if result is None else dict(result.profile),
        "data": {} if result is None else {name: asdict(data) for name, data in result.data.items()},
        "classes": {}
        if result is None
        else {
            eval_set: {metric: numbers(by_class) for metric, by_class in by_metric.items()}
            for eval_set, by_metric in result.classes.items()
        },
        "saves": [] if result is None else list(result.saves),
        "states_removed": False,
        "warnings": [] if result is None else result.warnings(),
        "notes": [] if result is None else list(result.notes),
        "confusion": [] if result is None else matrices(result, saved),
    }
