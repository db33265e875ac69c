"""Render the status of a run, for programs and for people. Pure: the time is a field of `RunStatus`."""

import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from sidecar.commands.observed_nodes import ObservedNode
from sidecar.commands.status.collect import RunStatus
from sidecar.observability.report import bests, checkpoint_of, recent, run_json
from sidecar.plain_text import number, printable
from sidecar.records import Heartbeat, WorkerProgress

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

_ROWS_SHOWN: Final = 5  # of the past and of the queue
_MESSAGE_CHARACTERS: Final = 110  # one more line of a terminal; --json and `history` have all of it
_DIGEST_CHARACTERS: Final = 8
_LONG_AGO_SECONDS: Final = 60.0  # from then on the time of its file says more than the time of observation
_UNITS: Final = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def as_json(run: str, status: RunStatus) -> dict[str, Any]:
    """Return the document of `sidecar status --json`, as strict JSON allows it.

    It has the keys of `/api/status` for the same facts, and in addition what only an observer of storage knows.
    """
    document = run_json(
        run,
        status.history,
        pending=len(status.queue),
        unknown=[f"{name}: {reason}" for name, reason in status.unknown.items()],
        left_out={node: left_out.why for node, left_out in status.left_out.items()},
    )
    if document["plan"] is not None:
        document["plan"] |= {"open_seconds": _open_seconds(status), "phase": status.phase}
    return document | {
        "run_id": status.run_id,
        "members": Counter(
            observed.heartbeat.state for observed in status.members if observed.fresh(status.lease_seconds)
        ),
        "nodes": [_member(status, observed) for observed in status.members],
        "unread": dict(status.unread),
        "proposer": status.proposer,
        "verdicts": status.verdicts,
        "queue": [
            {
                "checkpoint": checkpoint.name,
                "digest": checkpoint.digest,
                "step": checkpoint.step,
                "failed_attempts": status.attempts(checkpoint),
            }
            for checkpoint in status.queue
        ],
        "incomplete": [{"checkpoint": name, "reason": reason} for name, reason in status.incomplete],
        "checkpoint_dir_missing": status.missing,
    }


def _member(status: RunStatus, observed: ObservedNode) -> dict[str, Any]:
    each = observed.heartbeat
    written_at = status.written_at.get(each.node)
    return {
        "node": each.node,
        "role": each.role,
        "role_source": each.role_source,
        "state": each.state,
        "version": each.version,
        "incarnation": each.incarnation,
        "task": each.task,
        "profile": each.profile,
        "beat": each.beat,
        "fresh": observed.fresh(status.lease_seconds),
        "changed": observed.changed,
        "silent_seconds": round(observed.silent_seconds, 3),
        "file_age_seconds": None if written_at is None else round(max(0.0, status.wall - written_at), 3),
        "workers": {"active": _active(each), "standby": _standby(each)},
        "doing": None if each.doing is None else [asdict(doing) for doing in each.doing],
    }


def lines(run: str, status: RunStatus) -> "Iterator[RenderableType]":
    """Yield the status for people, part by part."""
    from rich.text import Text  # noqa: PLC0415 - only people need it

    if status.run_id is None:
        others = f"; the state directory holds other runs: {', '.join(status.other_runs)}" if status.other_runs else ""
        yield _text(f"run {run}: no daemon was here yet{others}")
        if status.missing:
            yield _text("the checkpoint directory does not exist", "yellow")
        return
    yield Text(printable(f"run {run}" + (f" in {status.place}" if status.place else "")), style="bold")
    yield from _results(status)
    yield from _plan(status)
    yield from _queue(status)
    yield _text(", ".join(f"{verdict} {count}" for verdict, count in status.verdicts.items()))
    yield ""
    yield from _members(status)  # below: a hundred nodes are more than a terminal has lines
    yield from _past(status)


def _results(status: RunStatus) -> "Iterator[RenderableType]":
    """Yield the newest numbers, and the best one so far for each metric with a direction."""
    newest = status.history.newest
    if newest is None or newest.plan.checkpoint is None:
        return
    best_by, numbers = bests(status.history), _newest_numbers(status)
    several = len({eval_set for eval_set, _ in numbers}) > 1
    told = []
    for (eval_set, name), value in numbers.items():
        best = best_by.get((eval_set, name))
        mark = " (best)" if best is not None and best.folder == newest.plan.folder else ""
        told.append(f"{f'{eval_set}/' if several else ''}{name} {number(value)}{mark}")
    yield _text(f"newest  {_named(newest.plan.checkpoint.name, newest.plan.checkpoint.step)}  {'  '.join(told)}")
    for (eval_set, name), best in list(best_by.items())[:_ROWS_SHOWN]:
        if best.folder != newest.plan.folder:
            where = _named(checkpoint_of(best), best.step)
            yield _text(f"best    {where}  {f'{eval_set}/' if several else ''}{name} {number(best.number)}")


def _newest_numbers(status: RunStatus) -> dict[tuple[str, str], float | str]:
    """Return the newest number of each metric, by eval set; as text if it is not finite."""
    return {
        (eval_set, name): value.number
        for eval_set, (_, result) in status.history.latest.items()
        for name, value in result.metrics.get(eval_set, {}).items()
    }


def _named(name: str, step: int | None) -> str:
    return name if step is None else f"{name} (step {step})"


def _members(status: RunStatus) -> "Iterator[RenderableType]":
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415 - only people need it
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=0)  # terminals are narrow
    table.add_column("node", overflow="fold", min_width=8)
    for name in ("role", "state"):
        table.add_column(name, no_wrap=True)
    for name in ("active", "standby"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("last change", min_width=9)
    table.add_column("doing", overflow="fold")
    table.add_column("version", overflow="fold")
    for observed in status.members:
        each = observed.heartbeat
        counts = ("", "") if each.role == "chief" or observed.left else (str(_active(each)), str(_standby(each)))
        cells = (
            each.node,
            each.role,
            each.state,
            *counts,
            _seen(status, observed),
            _doing(status, each),
            each.version,
        )
        table.add_row(*map(_text, cells), style="" if observed.fresh(status.lease_seconds) else "dim")
    yield table
    for why in status.unread.values():
        yield _text(why, "yellow")
    if not status.members:
        yield "no daemon has beaten yet"
    elif status.proposer is not None:
        yield _text(f"{status.proposer} proposes plans and publishes the numbers")
    elif not any(each.fresh(status.lease_seconds) for each in status.members):
        yield _text(_nobody(status), "yellow")
    if len(status.tasks) > 1:
        told = "; ".join(
            f"{digest[:_DIGEST_CHARACTERS]} on {', '.join(nodes)}" for digest, nodes in status.tasks.items()
        )
        yield _text(f"different code of the task, so not one group: {told}", "yellow")
    for node, left_out in status.left_out.items():
        yield _text(f"{node} is left out of evaluations: {left_out.why}", "yellow")


def _nobody(status: RunStatus) -> str:
    silent = [each.silent_seconds for each in status.members if not each.left]
    if not silent:
        return "every daemon has left"
    if max(silent) < 2 * status.beat:
        return "not observed for long enough to say who is alive"
    return f"no heartbeat changed for {max(silent):.1f} s: the daemons seem to be down"


def _plan(status: RunStatus) -> "Iterator[RenderableType]":
    plan = status.history.open
    if plan is None or plan.checkpoint is None:
        yield "no plan is open"
        return
    members = plan.members or ()
    nodes = ", ".join(dict.fromkeys(member.node for member in members))
    step = "" if plan.checkpoint.step is None else f" (step {plan.checkpoint.shown_step})"
    told = (
        f"plan {plan.plan}: {plan.checkpoint.name}{step}, attempt {plan.attempt}, {_workers(len(members))} on {nodes}"
    )
    phase = "phase unknown" if status.phase is None else f"in phase {status.phase}"
    yield _text(f"{told}; open for {_duration(_open_seconds(status))}, {phase}", "bold")


def _queue(status: RunStatus) -> "Iterator[RenderableType]":
    plan = status.history.open
    open_key = plan.checkpoint.key if plan is not None and plan.checkpoint is not None else None
    queue = [each for each in status.queue if each.key != open_key]
    shown = [
        each.name + ("" if each.step is None else f" (step {each.step})") + _tried(status.attempts(each))
        for each in queue[:_ROWS_SHOWN]
    ]
    more = f" and {len(queue) - _ROWS_SHOWN} more" if len(queue) > _ROWS_SHOWN else ""
    yield _text(f"waiting {len(queue)}{': ' if queue else ''}{', '.join(shown)}{more}")
    for name, reason in status.incomplete[:_ROWS_SHOWN]:
        yield _text(f"not complete, or not yet: {name}: {reason}", "dim")
    for name, reason in list(status.unknown.items())[:_ROWS_SHOWN]:
        yield _text(f"cannot be read here now: {name}: {reason}", "yellow")
    if len(status.unknown) > _ROWS_SHOWN:
        yield _text(f"and {len(status.unknown) - _ROWS_SHOWN} more", "yellow")
    if status.missing:
        yield _text("the checkpoint directory does not exist", "yellow")
    elif not (status.history.count or status.queue or status.incomplete):
        yield _text("nothing was seen in the checkpoint directory: is it shared with the chief?", "dim")


def _past(status: RunStatus) -> "Iterator[RenderableType]":
    rows = recent(status.history)[:_ROWS_SHOWN]
    if rows:
        yield ""
        yield "ended last, newest first"
    told = ""
    for row in rows:
        verdict = "ok" if row["status"] == "succeeded" else row["status"]
        for_good = " for good" if row["status"] == "failed" and row["final"] else ""
        kind = "" if row["kind"] is None else f" ({row['kind']})"
        attempt = "" if row["attempt"] in (None, 1) else f", attempt {row['attempt']}"
        workers = f", {_workers(row['workers'])}" if row["status"] == "succeeded" else ""
        why = "" if row["message"] is None else f": {_short(row['message'])}"
        told, why = why or told, "" if why == told else why  # attempts that fail alike say so once
        style = "" if row["status"] in ("succeeded", "skipped", "requeued") else "red"
        at = row["completed_at"][5:16].replace("T", " ")
        yield _text(f"  {at} UTC  {row['checkpoint']} {verdict}{for_good}{kind}{attempt}{workers}{why}", style)


def _seen(status: RunStatus, observed: ObservedNode) -> str:
    if observed.left:
        return ""
    if observed.changed:
        return f"{observed.silent_seconds:.1f} s ago"
    looked = f"over {observed.silent_seconds:.1f} s ago" if observed.silent_seconds >= status.beat else "not observed"
    written_at = status.written_at.get(observed.heartbeat.node)
    if written_at is None or (age := status.wall - written_at) < _LONG_AGO_SECONDS:
        return looked
    return f"{looked} (file: {_duration(age)} old)"


def _doing(status: RunStatus, each: Heartbeat) -> str:
    """Return the phases of a node's workers in the open plan, each once, with their batches added up."""
    plan = status.history.open
    if plan is None or each.plan != plan.plan:
        return ""
    phases: dict[str, list[WorkerProgress]] = {}
    for doing in each.doing or ():
        if doing.phase != "idle":
            phases.setdefault(doing.phase, []).append(doing)
    return ", ".join(f"{phase}{_batches(workers)}" for phase, workers in phases.items())


def _batches(workers: list[WorkerProgress]) -> str:
    totals = [each.total for each in workers if each.total is not None]
    if not totals or len(totals) < len(workers):
        return ""
    return f" {sum(each.batches for each in workers)}/{sum(totals)}"


def _open_seconds(status: RunStatus) -> float:
    """Return for how long the plan is open, by two nodes' clocks: it is shown, and never decides anything."""
    plan = status.history.open
    assert plan is not None
    try:
        since = datetime.fromisoformat(plan.proposed_at).timestamp()
    except ValueError:
        return 0.0
    return round(max(0.0, status.wall - since), 3)


def _active(each: Heartbeat) -> int:
    return sum(slot.worker is not None for slot in each.slots)


def _standby(each: Heartbeat) -> int:
    return sum(slot.standby is not None for slot in each.slots)


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"


def _tried(attempts: int) -> str:
    return f", failed {attempts} x" if attempts else ""


def _duration(seconds: float) -> str:
    """Return a duration as people say it: 12 s, 3 min, 2 h, 5 d."""
    return next((f"{seconds / size:.0f} {unit}" for size, unit in _UNITS if seconds >= 2 * size), f"{seconds:.0f} s")


def _short(message: str) -> str:
    """Return the line of a message that says most: of a traceback, the last one names what was raised."""
    last = next((line for line in reversed(message.splitlines()) if line.strip()), "")
    return textwrap.shorten(printable(last), _MESSAGE_CHARACTERS, placeholder=" …")


def _text(words: str, style: str = "") -> "Text":
    """Return text that cannot control the terminal: it has no markup, and control characters are shown."""
    from rich.text import Text  # noqa: PLC0415 - only people need it

    return Text(printable(words), style=style)
