"""Render the status of a run as JSON and as text. Pure, but for the zone: the time is a field of `RunStatus`."""

import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from sidecar.commands.best import BestExport
from sidecar.commands.observed_nodes import ObservedNode
from sidecar.commands.progress_rate import duration
from sidecar.commands.status.collect import RunStatus
from sidecar.commands.waiting import usual_seconds
from sidecar.protocol.heartbeat import Heartbeat, WorkerProgress
from sidecar.protocol.records import WORST
from sidecar.publishing.report import bests, partial_json, recent, run_json
from sidecar.retention.saves.comparison import RULES
from sidecar.system.clock import local_time, seconds_of
from sidecar.system.plain_text import counted, number, printable

_ROWS_SHOWN: Final = 5  # of each list, such as the queue
_MESSAGE_CHARACTERS: Final = 110  # about one line of a terminal; --json and `history` show all of it
_DIGEST_CHARACTERS: Final = 8
_LONG_AGO_SECONDS: Final = 60.0  # a file older than this is worth a mention: its node may be gone for long


def as_json(run: str, status: RunStatus) -> dict[str, Any]:
    """Return the document of `sidecar status --json`, without NaN and infinity, which are not strict JSON.

    Facts that `/api/status` has, too, have the same keys there. The other facts need an observer of storage.
    """
    document = run_json(
        run,
        status.history,
        pending=len(status.queue),
        unknown=[f"{name}: {reason}" for name, reason in status.unknown.items()],
        left_out={node: left_out.why for node, left_out in status.left_out.items()},
    )
    if document["plan"] is not None:
        document["plan"] |= {"open_seconds": open_seconds(status), "phase": status.phase}
        document["plan"]["partial"] = partial_json(status.finished)
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
        "checkpoint_dir_missing": status.directory.missing,
        "best_export": None if status.best_export is None else best_export_json(status.best_export),
        "state_backup": None
        if status.directory.backup is None
        else {
            "url": status.directory.backup.url,
            "through": status.directory.backup.through,
            "at": status.directory.backup.at,
        },
    }


def _member(status: RunStatus, observed: ObservedNode) -> dict[str, Any]:
    heartbeat = observed.heartbeat
    written_at = status.written_at.get(heartbeat.node)
    return {
        "node": heartbeat.node,
        "role": heartbeat.role,
        "role_source": heartbeat.about.role_source,
        "state": heartbeat.state,
        "version": heartbeat.about.version,
        "page_url": heartbeat.about.page_url,
        "incarnation": heartbeat.incarnation,
        "task": heartbeat.task,
        "profile": heartbeat.numerics.profile,
        "beat": heartbeat.beat,
        "fresh": observed.fresh(status.lease_seconds),
        "changed": observed.changed,
        "silent_seconds": round(observed.silent_seconds, 3),
        "file_age_seconds": None if written_at is None else round(max(0.0, status.wall - written_at), 3),
        "workers": {"active": heartbeat.active, "standby": heartbeat.standby},
        "doing": None if heartbeat.doing is None else [asdict(progress) for progress in heartbeat.doing],
    }


def lines(run: str, status: RunStatus) -> Iterator[RenderableType]:
    """Yield the status as text for a terminal, part by part."""
    if status.run_id is None:
        yield _text(status.no_run or f"run {run}: no daemon has started yet")
        if status.directory.missing:
            yield _text("the checkpoint directory does not exist", "yellow")
        return
    yield Text(
        printable(f"run {run}" + (f" in {status.directory.path}" if status.directory.path else "")), style="bold"
    )
    yield from _results(status)
    if status.best_export is not None:
        yield _text(best_export_line(status.best_export))
    if status.directory.backup is not None:
        yield _text(backup_line(status))
    yield _text(plan_line(status), "" if status.history.open is None else "bold")
    for each in status.finished:
        values = ", ".join(f"{name} {number(value.number)}" for name, value in each.metrics.items())
        yield _text(f"  partial, other sets follow: {each.eval_set} {values}")
    if status.directory.busy:
        yield _text(status.directory.busy, "yellow")
    yield from queue_lines(status)
    yield _text(verdicts_line(status))
    yield ""
    yield _member_table(status)  # at the end, because it may be longer than the terminal
    yield from member_notes(status)
    if past := list(past_lines(status)):
        yield ""
        yield "ended last, newest first"
        yield from past


def _results(status: RunStatus) -> Iterator[RenderableType]:
    """Yield the newest numbers, and the best one so far for each metric with a direction."""
    newest = status.history.newest
    if newest is None or newest.plan.checkpoint is None:
        return
    best_by, numbers = bests(status.history), _newest_numbers(status)
    several = len({eval_set for eval_set, _ in numbers}) > 1
    shown_numbers = []
    for (eval_set, name), value in numbers.items():
        best = best_by.get((eval_set, name))
        mark = " (best)" if best is not None and best.folder == newest.plan.folder else ""
        shown_numbers.append(f"{f'{eval_set}/' if several else ''}{name} {number(value)}{mark}")
    yield _text(
        f"newest  {_with_step(newest.plan.checkpoint.name, newest.plan.checkpoint.step)}  {'  '.join(shown_numbers)}"
    )
    if worst := list(_worst_slices(status))[:_ROWS_SHOWN]:
        yield _text(f"worst slices  {'  '.join(worst)}")
    for (eval_set, name), best in list(best_by.items())[:_ROWS_SHOWN]:
        if best.folder != newest.plan.folder:
            checkpoint = _with_step(best.checkpoint, best.step)
            yield _text(f"best    {checkpoint}  {f'{eval_set}/' if several else ''}{name} {number(best.number)}")

    shown = {f"{eval_set}/{name}" for eval_set, name in numbers}
    for (eval_set, name), best in list(status.history.totals.outdated.items())[:_ROWS_SHOWN]:
        if f"{eval_set}/{name}" in shown:
            checkpoint = _with_step(best.checkpoint, best.step)
            metric = f"{f'{eval_set}/' if several else ''}{name} {number(best.number)}"
            yield _text(f"before  {checkpoint}  {metric}: of other data or another task, and cannot be compared")


def _newest_numbers(status: RunStatus) -> dict[tuple[str, str], float | str]:
    """Return the newest number of each metric, by eval set. A number that is not finite is text."""
    return {
        (eval_set, name): value.number
        for eval_set, latest in status.history.newest_task.latest.items()
        for name, value in latest.result.metrics.get(eval_set, {}).items()
    }


def _worst_slices(status: RunStatus) -> Iterator[str]:
    """Yield the worst slice of each metric of the newest numbers: `test/accuracy 0.71 in country=de (41 examples)`."""
    for eval_set, latest in status.history.newest_task.latest.items():
        for name, value in latest.result.metrics.get(eval_set, {}).items():
            metric = name.removeprefix(WORST)
            for label, one in latest.result.slices.get(eval_set, {}).items() if metric != name else ():
                if metric in one.metrics and one.metrics[metric].hex == value.hex:
                    yield f"{eval_set}/{metric} {number(value.number)} in {label} ({one.examples:,} examples)"
                    break


def _with_step(name: str, step: int | None) -> str:
    return name if step is None else f"{name} (step {step})"


def _member_table(status: RunStatus) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=0)  # as narrow as possible
    table.add_column("node", overflow="fold", min_width=8)
    for name in ("role", "state"):
        table.add_column(name, no_wrap=True)
    for name in ("active", "standby"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("last change", min_width=9)
    table.add_column("doing", overflow="fold")
    table.add_column("version", overflow="fold")
    for observed in status.members:
        heartbeat = observed.heartbeat
        has_workers = heartbeat.role != "chief" and not observed.left
        cells = (
            heartbeat.node,
            heartbeat.role,
            heartbeat.state,
            str(heartbeat.active) if has_workers else "",
            str(heartbeat.standby) if has_workers else "",
            last_change(status, observed),
            _phases(status, heartbeat),
            heartbeat.about.version,
        )
        table.add_row(*map(_text, cells), style="" if observed.fresh(status.lease_seconds) else "dim")
    return table


def member_notes(status: RunStatus) -> Iterator[Text]:
    """Yield sentences about the nodes: who publishes, and which need attention."""
    for why in status.unread.values():
        yield _text(why, "yellow")
    if not status.members:
        yield _text("no daemon has written a heartbeat yet")
    elif status.proposer is not None:
        yield _text(f"{status.proposer} proposes plans and publishes the numbers")
    elif not any(observed.fresh(status.lease_seconds) for observed in status.members):
        yield _text(_why_none_is_alive(status), "yellow")
    if len(status.tasks) > 1:
        tasks = "; ".join(
            f"{digest[:_DIGEST_CHARACTERS]} on {', '.join(nodes)}" for digest, nodes in status.tasks.items()
        )
        yield _text(f"nodes with different code of the task cannot form one group: {tasks}", "yellow")
    for node, left_out in status.left_out.items():
        yield _text(f"{node} is left out of evaluations: {left_out.why}", "yellow")


def _why_none_is_alive(status: RunStatus) -> str:
    """Return a sentence for the case that no node is known to be alive."""
    silent = [observed.silent_seconds for observed in status.members if not observed.left]
    if not silent:
        return "every daemon has left"
    if max(silent) < 2 * status.beat:
        return "not observed for long enough to say who is alive"
    return f"no heartbeat changed for {max(silent):.1f} s: the daemons seem to be down"


def plan_line(status: RunStatus) -> str:
    """Return a sentence about the open plan, or that there is none."""
    plan = status.history.open
    if plan is None or plan.checkpoint is None:
        return "no plan is open"
    members = plan.members or ()
    nodes = ", ".join(dict.fromkeys(member.node for member in members))
    step = "" if plan.checkpoint.step is None else f" (step {plan.checkpoint.shown_step})"
    workers = counted(len(members), "worker")
    description = f"plan {plan.plan}: {plan.checkpoint.name}{step}, attempt {plan.attempt}, {workers} on {nodes}"
    phase = "phase unknown" if status.phase is None else f"in phase {status.phase}"
    usual = usual_seconds(status.history)
    usually = "" if not usual else f", usually {duration(usual)}"
    return f"{description}; open for {duration(open_seconds(status))}{usually}, {phase}"


def verdicts_line(status: RunStatus) -> str:
    """Return how many checkpoints ended in which way."""
    return ", ".join(f"{verdict} {count}" for verdict, count in status.verdicts.items())


def queue_lines(status: RunStatus) -> Iterator[Text]:
    """Yield the checkpoints that wait, and those that cannot be evaluated now."""
    plan = status.history.open
    open_key = plan.checkpoint.key if plan is not None and plan.checkpoint is not None else None
    queue = [checkpoint for checkpoint in status.queue if checkpoint.key != open_key]
    shown = [
        _with_step(checkpoint.name, checkpoint.step) + _failures(status.attempts(checkpoint))
        for checkpoint in queue[:_ROWS_SHOWN]
    ]
    more = f" and {len(queue) - _ROWS_SHOWN} more" if len(queue) > _ROWS_SHOWN else ""
    yield _text(f"waiting {len(queue)}{': ' if queue else ''}{', '.join(shown)}{more}")
    for name, reason in status.incomplete[:_ROWS_SHOWN]:
        yield _text(f"not complete: {name}: {reason}", "dim")
    for name, reason in list(status.unknown.items())[:_ROWS_SHOWN]:
        yield _text(f"cannot be read here now: {name}: {reason}", "yellow")
    if len(status.unknown) > _ROWS_SHOWN:
        yield _text(f"and {len(status.unknown) - _ROWS_SHOWN} more", "yellow")
    if status.directory.missing:
        yield _text("the checkpoint directory does not exist", "yellow")
    elif not (status.history.log.count or status.queue or status.incomplete):
        yield _text("no checkpoint was found in the checkpoint directory: is it shared with the chief?", "dim")


def past_lines(status: RunStatus) -> Iterator[Text]:
    """Yield lines about the newest ended plans and settled checkpoints."""
    aside = status.history.totals.set_aside
    if aside.newest is not None:
        yield _text(
            f"  records of the journal set aside: {aside.count}, the newest: {_short(aside.newest.reason)}", "yellow"
        )
    rows = recent(status.history)[:_ROWS_SHOWN]
    last_reason = ""
    for row in rows:
        verdict = "ok" if row["status"] == "succeeded" else row["status"]
        for_good = " for good" if row["status"] == "failed" and row["final"] else ""
        kind = "" if row["kind"] is None else f" ({row['kind']})"
        attempt = "" if row["attempt"] in (None, 1) else f", attempt {row['attempt']}"
        workers = f", {counted(row['workers'], 'worker')}" if row["status"] == "succeeded" else ""
        reason = "" if row["message"] is None else f": {_short(row['message'])}"
        # A reason that the row above shows already is left out.
        last_reason, reason = reason or last_reason, "" if reason == last_reason else reason
        style = "" if row["status"] in ("succeeded", "skipped", "requeued") else "red"
        at = " ".join(local_time(row["completed_at"]))
        yield _text(f"  {at}  {row['checkpoint']} {verdict}{for_good}{kind}{attempt}{workers}{reason}", style)


def last_change(status: RunStatus, observed: ObservedNode) -> str:
    """Return when a node's heartbeat last changed, as far as it was observed."""
    if observed.left:
        return ""
    if observed.changed:
        return f"{observed.silent_seconds:.1f} s ago"
    age_at_least = observed.silent_seconds
    observation = f"over {age_at_least:.1f} s ago" if age_at_least >= status.beat else "not observed"
    written_at = status.written_at.get(observed.heartbeat.node)
    if written_at is None or (age := status.wall - written_at) < _LONG_AGO_SECONDS:
        return observation
    return f"{observation} (file: {duration(age)} old)"


def _phases(status: RunStatus, heartbeat: Heartbeat) -> str:
    """Return the phases of a node's workers in the open plan, without repetition, with their batches added up."""
    plan = status.history.open
    if plan is None or heartbeat.journal.plan != plan.plan:
        return ""
    phases: dict[str, list[WorkerProgress]] = {}
    for progress in heartbeat.doing or ():
        if progress.phase != "idle":
            phases.setdefault(progress.phase, []).append(progress)
    waits = {True: " (waits for a processor)", False: ""}
    return ", ".join(
        f"{phase}{_batches(workers)}{waits[any(each.waits for each in workers)]}" for phase, workers in phases.items()
    )


def _batches(workers: list[WorkerProgress]) -> str:
    totals = [worker.total for worker in workers if worker.total is not None]
    if not totals or len(totals) < len(workers):
        return ""
    return f" {sum(worker.batches for worker in workers)}/{sum(totals)}"


def open_seconds(status: RunStatus) -> float:
    """Return how long the plan has been open, by the clocks of two nodes. For display only: no decision uses it."""
    plan = status.history.open
    assert plan is not None
    since = seconds_of(plan.proposed_at)
    return 0.0 if since is None else round(max(0.0, status.wall - since), 3)


def _failures(attempts: int) -> str:
    return f", failed {attempts} x" if attempts else ""


def _short(message: str) -> str:
    """Return the last line of a message, shortened. The last line of a traceback names the exception."""
    last_line = next((line for line in reversed(message.splitlines()) if line.strip()), "")
    return textwrap.shorten(printable(last_line), _MESSAGE_CHARACTERS, placeholder=" …")


def _text(words: str, style: str = "") -> Text:
    """Return text that cannot control the terminal: markup has no effect, and control characters are escaped."""
    return Text(printable(words), style=style)


_SHOWN: Final = ("path", "checkpoint", "digest", "step", "ranks", "better_than")
_MOST_CHARACTERS: Final = 200  # of a comparison: other users may be able to write the manifest


def backup_line(status: RunStatus) -> str:
    """Return which plans the backup of the state has, and how many it lacks."""
    own = status.directory.backup
    assert own is not None
    lacks = status.history.through - own.through
    if lacks > 0:
        return f"backup  {own.url} lacks {lacks} of {status.history.through} plans: see sink_failed in the daemon's log"
    return f"backup  {own.url} has all {own.through} plans"


def best_export_json(best: BestExport) -> dict[str, Any]:
    """Return the facts of `sidecar best --json` that say where the best export is, and why it is the best one."""
    document = best.as_json()
    return {key: document[key] for key in _SHOWN}


def best_export_line(best: BestExport) -> str:
    """Return the path of the best export, how much better it is than the best one before, and by which rule."""
    better = best.manifest.better_than
    if better is None or better.rule not in RULES:
        return f"export  {best.path}"
    return f"export  {best.path}, better {textwrap.shorten(better.describe(), _MOST_CHARACTERS)}"
