"""Build the rows of `sidecar history`, and the JSON of both status documents, from `JournalState` and `Status`.

Pure.
"""

import dataclasses
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final

from sidecar.coordination.comparability import Stretches
from sidecar.coordination.journal_state import Closed, Entry, JournalState, Settled
from sidecar.coordination.totals import Best
from sidecar.protocol.codec import cut_text
from sidecar.protocol.records import FinishedSet, Key, Plan, Value
from sidecar.protocol.states import OutcomeStatus, Verdict
from sidecar.publishing.failures import MOST_SHOWN, failing
from sidecar.publishing.status import Status
from sidecar.system.clock import timestamp

Row = dict[str, Any]

_WITHOUT_RESULT: Final[Mapping[str, Any]] = {
    "workers": 0,
    "group": None,
    "examples": {},
    "metrics": {},
    "changed": [],
    "data_changed": {},
    "phases": {},
    "lag_seconds": None,
}
"""The part of a row that a result fills in."""

_RECENT_ROWS = 10
_RECENT_ENTRIES = 40  # more than the rows: a settlement may share the row of the last failed attempt


def rows(history: JournalState) -> list[Row]:
    """Return one JSON object for each closed plan and settled checkpoint, oldest first.

    `final` is true for successes, for settled checkpoints that were not requeued, and for the last failed attempt
    before a checkpoint was settled as failed. The row of that attempt also stands for the settlement.
    """
    return entry_rows(history.entries)


def recent(history: JournalState) -> list[Row]:
    """Return the newest rows, newest first. The cost does not grow with the history."""
    newest = entry_rows(history.entries[-_RECENT_ENTRIES:])[: -_RECENT_ROWS - 1 : -1]
    return [row | {"message": cut_text(row["message"], MOST_SHOWN)} if row["message"] else row for row in newest]


def status_json(status: Status, history: JournalState) -> dict[str, Any]:
    """Return the document of `/api/status`, about the run and this daemon, without NaN and infinity.

    The cost does not grow with the history. `sidecar status --json` has the same keys for the same facts.
    """
    identity, newest = status.identity, status.checkpoints.newest
    run = run_json(
        identity.run,
        history,
        pending=status.checkpoints.pending,
        unknown=status.unreadable.sentences,
        left_out=status.nodes.left_out,
    )
    if run["plan"] is not None:
        run["plan"]["doing"] = [dataclasses.asdict(member) for member in status.evaluation.progress]
        run["plan"]["partial"] = partial_json(status.evaluation.finished)
    return run | {
        "members": dict(status.nodes.members),
        "nodes": [
            {name: getattr(node, name) for name in ("node", "role", "role_source", "state", "version", "page_url")}
            | {"workers": {"active": node.active, "standby": node.standby}}
            for node in status.nodes.alive
        ],
        "entries": history.log.count,
        "unknown_count": status.unreadable.count,
        "node": identity.node,
        "incarnation": identity.incarnation,
        "version": identity.version,
        "role": identity.role.role,
        "role_source": identity.role.source,
        "state": status.state,
        "publisher": status.publisher,
        "ready": status.unready is None,
        "unready": status.unready,
        "hint": status.hint,
        "newest_checkpoint": newest
        and {
            "checkpoint": newest.checkpoint,
            "step": newest.step,
            "step_source": newest.step_source,
            "written_at": timestamp(newest.written_at),
        },
        "group_size": status.evaluation.group_size,
        "groups_formed": status.evaluation.groups_formed,
        "workers": [dataclasses.asdict(worker) for worker in status.workers],
        "pins_bytes": status.disk.pins_bytes,
        "saves_bytes": status.disk.saves_bytes,
    }


def run_json(
    run: str, history: JournalState, *, pending: int, unknown: Collection[str], left_out: Mapping[str, str]
) -> dict[str, Any]:
    """Return the part that both status documents have: the facts about a run that do not depend on the observer.

    `evaluation` holds the numbers that the gauges show. `recent` holds the newest rows of `history`, newest first.
    """
    return {
        "run": run,
        "plan": None if history.open is None else open_plan(history.open),
        "evaluation": _newest_evaluation(history),
        "best": {
            f"{eval_set}/{name}": {
                "value": best.number if math.isfinite(best.number) else None,
                "hex": best.hex,
                "goal": best.goal,
                "step": best.step,
                "step_source": best.step_source,
                "checkpoint": best.checkpoint,
                "plan": plan_of(best),
            }
            for (eval_set, name), best in bests(history).items()
        },
        "evaluated": len(history.verdicts.succeeded),
        "settled": len(history.verdicts.without_result),
        "pending": pending,
        "left_out": dict(left_out),
        "unknown": list(unknown),
        "unknown_count": len(unknown),
        "failing": failing(history),
        "set_aside": None
        if history.totals.set_aside.newest is None
        else dataclasses.asdict(history.totals.set_aside.newest) | {"count": history.totals.set_aside.count},
        "recent": recent(history),
    }


def bests(history: JournalState) -> dict[tuple[str, str], Best]:
    """Return the best evaluation by (eval set, name), for each metric to which the newest task gives a direction."""
    names = {f"{eval_set}/{name}": (eval_set, name) for eval_set, name in history.totals.best}
    goals, best = history.newest_task.goals, history.totals.best
    return {names[metric]: best[names[metric]] for metric in goals if metric in names}


def plan_of(best: Best) -> int | None:
    """Return the number of the plan that reached a best value, which its folder of saves holds."""
    number = best.folder.rpartition("/plan-")[2]
    return int(number) if number.isascii() and number.isdecimal() else None


def entry_rows(entries: Iterable[Entry]) -> list[Row]:
    """Return the rows of entries. A final settlement shares the row of the last failed attempt."""
    entries = list(entries)
    return list(streamed_rows(entries, final_failures(entries)))


def final_failures(entries: Iterable[Entry]) -> set[int]:
    """Return the plans whose failed attempt was the last one before its checkpoint was settled as failed."""
    return {plan for _, plan in _with_attempts(entries) if plan is not None}


def streamed_rows(entries: Iterable[Entry], final: AbstractSet[int]) -> Iterator[Row]:
    """Yield the rows of entries, one at a time. `final`: what `final_failures` returns for the same entries."""
    stretches = Stretches()
    for entry, attempt in _with_attempts(entries):
        if isinstance(entry, Closed):
            result, row = entry.outcome.result, closed_row(entry)
            broken = {} if result is None else dict(stretches.add(result))
            yield row | {"data_changed": broken, "final": row["final"] or entry.plan.plan in final}
        elif attempt is None:
            yield _settled_row(entry)


def _with_attempts(entries: Iterable[Entry]) -> Iterator[tuple[Entry, int | None]]:
    """Yield each entry; with a settlement as failed also the plan of the failed attempt that it makes final."""
    failed: dict[Key, Plan] = {}  # the last failed attempt at each checkpoint
    for entry in entries:
        attempt: int | None = None
        if isinstance(entry, Settled):
            settlement = entry.settlement
            plan = failed.get(settlement.key)
            if plan and settlement.verdict == Verdict.FAILED and settlement.task in (None, plan.task):
                attempt = failed.pop(settlement.key).plan
        elif entry.outcome.status == OutcomeStatus.FAILED and entry.plan.checkpoint is not None:
            failed[entry.plan.checkpoint.key] = entry.plan
        yield entry, attempt


def _newest_evaluation(history: JournalState) -> Row | None:
    """Return the row of the newest evaluation, with the last numbers and steps of eval sets that it did not measure."""
    if history.newest is None:
        return None
    latest = history.newest_task.latest
    return closed_row(history.newest) | {
        "examples": {
            eval_set: examples
            for eval_set, newest in latest.items()
            if (examples := newest.result.counted().get(eval_set)) is not None
        },
        "metrics": {eval_set: numbers(newest.result.metrics.get(eval_set, {})) for eval_set, newest in latest.items()},
        "data": {
            eval_set: data.fingerprint
            for eval_set, newest in latest.items()
            if (data := newest.result.data.get(eval_set)) is not None
        },
        "steps": {eval_set: newest.checkpoint.step for eval_set, newest in latest.items()},
        "step_sources": {eval_set: newest.checkpoint.step_source for eval_set, newest in latest.items()},
    }


def closed_row(closed: Closed) -> Row:
    """Return the row of a closed plan."""
    plan, outcome, result, checkpoint = closed.plan, closed.outcome, closed.outcome.result, closed.checkpoint
    row = {
        "plan": plan.plan,
        "attempt": plan.attempt,
        "checkpoint": checkpoint.name,
        "digest": checkpoint.digest,
        "step": checkpoint.step,
        "step_source": checkpoint.step_source,
        "status": outcome.status,
        "final": outcome.status == OutcomeStatus.SUCCEEDED,
        "kind": outcome.kind,
        "message": outcome.message,
        **_WITHOUT_RESULT,
        "workers": len(plan.members or ()),
        "proposed_at": plan.proposed_at,
        "completed_at": outcome.completed_at,
    }
    if result is None:
        return row
    nonfinite = {
        eval_set: {place: dataclasses.asdict(examples) for place, examples in places.items()}
        for eval_set, places in result.nonfinite.items()
    }
    row |= {
        "workers": result.workers,
        "group": result.group,
        "examples": result.counted(),
        "metrics": {eval_set: numbers(values) for eval_set, values in result.metrics.items()},
        "changed": list(result.changed),
        "phases": dict(result.phases),
        "lag_seconds": result.lag_seconds,
    }
    return row | {key: value for key, value in (("nonfinite", nonfinite), ("notes", list(result.notes))) if value}


def numbers(values: Mapping[str, Value]) -> dict[str, dict[str, Any]]:
    """Return numbers as JSON. NaN and infinity are `None`, and `hex` has them as text."""
    return {
        name: {"value": value.value, "hex": value.hex, "lower": value.lower, "upper": value.upper}
        for name, value in values.items()
    }


def _settled_row(settled: Settled) -> Row:
    """Return the row of a checkpoint that was settled without an attempt. The plan may evaluate another checkpoint."""
    plan, settlement = settled.plan, settled.settlement
    return {
        "plan": plan.plan,
        "attempt": None,
        "checkpoint": settlement.name,
        "digest": settlement.digest,
        "step": settlement.step,
        "step_source": None,
        "status": settlement.verdict,
        "final": settlement.verdict != Verdict.REQUEUED,
        "kind": None,
        "message": settlement.reason,
        **_WITHOUT_RESULT,
        "proposed_at": plan.proposed_at,
        "completed_at": plan.proposed_at,
    }


def partial_json(finished: Iterable[FinishedSet]) -> dict[str, Any]:
    """Return the eval sets that are finished while others are evaluated, as JSON, by name."""
    return {
        each.eval_set: {"examples": each.examples, "metrics": numbers(each.metrics)}
        for each in sorted(finished, key=lambda one: one.eval_set)
    }


def open_plan(plan: Plan) -> dict[str, Any]:
    """Return a plan that has no outcome yet as JSON."""
    checkpoint, members = plan.checkpoint, plan.members or ()
    return {
        "plan": plan.plan,
        "attempt": plan.attempt,
        "checkpoint": checkpoint and checkpoint.name,
        "step": checkpoint and checkpoint.step,
        "step_source": checkpoint and checkpoint.step_source,
        "workers": len(members),
        "nodes": list(dict.fromkeys(member.node for member in members)),
        "proposed_at": plan.proposed_at,
    }
