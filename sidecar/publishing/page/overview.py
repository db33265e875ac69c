"""Show what a reader looks for first: is all well, how far is the run, and what happens now? Pure."""

import shlex
from collections.abc import Iterable, Mapping
from typing import Any, Final

from sidecar.publishing.failures import ADVICE
from sidecar.publishing.page.markup import advice, cell, head, lines, moment, step, table, text
from sidecar.system.plain_text import counted, number

_PHASES: Final[Mapping[str | None, str]] = {
    None: "not reported yet",
    "place": "waiting for a machine",
    "import": "importing",
    "standby": "ready for a group",
    "join": "forming the group",
    "build": "building the model",
    "idle": "done",
    "read": "reading the checkpoint",
    "restore": "restoring the weights",
    "hello": "comparing with the others",
    "evaluate": "evaluating",
    "save": "saving",
    "reduce": "adding up",
    "sum": "adding up",
    "conclude": "computing the numbers",
    "failed": "failed",
}
"""Words for the phases of a worker process. Heartbeats of newer releases may hold other phases."""


def phase_words(phase: str | None) -> str:
    """Return a phase of a worker process in words."""
    return _PHASES.get(phase, str(phase))


def doing_words(phase: str | None, *, waits: object) -> str:
    """Return the phase of a worker process, and whether it gets no processor."""
    return phase_words(phase) + (", waits for a processor that other programs use" if waits else "")


def header(status: Mapping[str, Any]) -> str:
    """Return the title, with the state of this node."""
    node = text(status.get("node"))
    role, version = status.get("role"), text(status.get("version"))
    doing = "evaluates nothing" if role == "chief" else "evaluates"
    about = (
        f"Node <strong>{node}</strong>, which {doing}" if node else f"Read from {text(status.get('checkpoint_dir'))}"
    )
    source = f' <span class="note">({text(status.get("role_source"))})</span>' if status.get("role_source") else ""
    others = '<p><a href="/">All runs of this daemon</a></p>' * bool(status.get("all_runs"))
    return (
        f'<header>{others}<h1>{text(status.get("run")) or "sidecar"} <span class="badges">{_badges(status)}</span></h1>'
        f'<p>{about}{source} <span class="note">· sidecar-evaluator {version}</span></p></header>'
    )


def _badges(status: Mapping[str, Any]) -> str:
    badges = []
    if "ready" in status:  # otherwise no daemon tells of itself: the run is only read
        badges.append(("ready", "good") if status["ready"] else ("not ready", "bad"))
    if status.get("failing"):
        badges.append(("evaluations fail", "bad"))
    if status.get("state") not in (None, "ready"):
        badges.append((str(status["state"]), ""))
    return "".join(f'<span class="badge {style}">{text(label)}</span>' for label, style in badges)


def alerts(status: Mapping[str, Any]) -> str:
    """Return what somebody should know or do, the worst first."""
    found = []
    if failing := status.get("failing"):
        found.append(_failing(failing, status))
    if reason := status.get("unready"):
        found.append(f'<div class="alert bad"><p><strong>This node is not ready:</strong> {text(reason)}.</p></div>')
    if aside := status.get("set_aside"):
        count = counted(aside["count"], "record")
        found.append(
            f'<div class="alert warn"><p>{count} of the journal set aside, the newest: {text(aside["reason"])}. '
            "Another program wrote it: look who may write to the state directory.</p></div>"
        )
    if hint := status.get("hint"):
        found.append(f'<div class="alert warn"><p>{text(hint)}</p></div>')
    if status.get("role") == "chief":
        found.append(
            "<div class='alert plain'><p>This node evaluates nothing, because it is the training job's chief "
            f"({text(status.get('role_source'))}): the daemons on the worker nodes do. To evaluate here too, "
            "start this one with <code>--role worker</code>.</p></div>"
        )
    found += [
        f'<div class="alert warn"><p>Node {text(node)} is left out of evaluations: {text(why)}</p></div>'
        for node, why in (status.get("left_out") or {}).items()
    ]
    return "".join(found)


def _failing(failing: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    """Return why evaluations fail: kind, cause, remedy, where to look, and the message."""
    attempts, name = failing["attempts"], text(failing["checkpoint"])
    count = "The newest attempt failed" if attempts == 1 else f"The last {attempts} attempts failed"
    known = ADVICE.get(failing["kind"] or "")
    told = f" {advice(known.cause)} {advice(known.remedy)}" if known else ""
    folder = status.get("checkpoint_dir")
    path = text(shlex.join([folder, failing["checkpoint"]])) if folder else name
    log = (
        f'<p>Log of the worker process: <code class="path">{text(failing["log"])}</code></p>'
        if failing.get("log")
        else ""
    )
    node = f" on node {text(failing['node'])}" if failing.get("node") else ""
    return (
        f'<div class="alert bad"><p><strong>{count}: <code>{text(failing["kind"])}</code>{node}.</strong>{told}</p>'
        f"<p>Evaluate it again when the cause is corrected: <code class='path'>sidecar requeue {path}</code></p>{log}"
        f"{_message(name, failing['message'] or '')}</div>"
    )


def _message(name: str, message: str) -> str:
    """Return the last line of a message, which names the error, and the whole message to be opened."""
    *before, last = [line for line in message.splitlines() if line.strip()] or [""]
    if not before:
        return f'<p class="path">{text(last)}</p>' if last else ""
    opened = (
        f'<details id="failing-message"><summary>Message about {name}</summary><pre>{lines(message)}</pre></details>'
    )
    return f'<p class="path">{text(last)}</p>{opened}'


def summary(status: Mapping[str, Any]) -> str:
    """Return how far the run is, in four numbers."""
    newest, found = status.get("evaluation"), status.get("newest_checkpoint")
    pending = status.get("pending", 0)
    items = [
        ("Newest evaluation", f"step {step(newest)}", moment(newest["completed_at"]))
        if newest
        else ("Newest evaluation", "none yet", ""),
        ("Newest checkpoint", f"step {step(found)}" if step(found) else "found", moment(found["written_at"]))
        if found
        else ("Newest checkpoint", "none found yet" if "newest_checkpoint" in status else "", ""),
        ("Waiting", counted(pending, "checkpoint"), _lag(newest, found)),
        ("Evaluated", counted(status.get("evaluated", 0), "checkpoint"), _ended(status)),
    ]
    listed = "".join(
        f"<div><dt>{name}</dt><dd><strong>{strong}</strong> <span class='note'>{note}</span></dd></div>"
        for name, strong, note in items
        if strong
    )
    return f'<dl id="summary">{listed}</dl>'


def _lag(newest: Mapping[str, Any] | None, found: Mapping[str, Any] | None) -> str:
    """Return how many steps the newest evaluation is behind the newest checkpoint."""
    if not newest or not found or newest.get("step") is None or found.get("step") is None:
        return ""
    behind = found["step"] - newest["step"]
    return f"{counted(behind, 'step')} behind" if behind > 0 else "up to date"


def _ended(status: Mapping[str, Any]) -> str:
    ended = status.get("settled", 0)
    return f"{ended} without a result" if ended else ""


def present(status: Mapping[str, Any]) -> str:
    """Return the open plan, with the progress of each of its workers."""
    plan = status.get("plan")
    if not plan:
        return '<section id="now" hidden></section>'
    again = f", attempt {text(plan['attempt'])}" if (plan.get("attempt") or 1) > 1 else ""
    shown_step = f", step {step(plan)}" if step(plan) else ""
    workers = counted(plan["workers"], "worker")
    where = f"{workers} on {text(', '.join(plan['nodes']))}"
    return (
        '<section id="now" aria-labelledby="now-title"><h2 id="now-title">Now</h2>'
        f"<p>Evaluating <strong>{text(plan['checkpoint'])}</strong>{shown_step}{again} with {where}, "
        f"since {moment(plan['proposed_at'], since=True)}.</p>{_partial(plan.get('partial') or {})}"
        f"{_workers(plan.get('doing') or ())}</section>"
    )


def _partial(finished: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the numbers of the eval sets that are finished while others are evaluated."""
    rows = [
        f"<tr>{cell(text(eval_set))}{cell(text(name))}{cell(text(_shown(value)), 'number')}</tr>"
        for eval_set, found in finished.items()
        for name, value in found["metrics"].items()
    ]
    heads = (head("eval set"), head("metric"), head("value", "number"))
    caption = "Partial: sets that are finished, while others are evaluated"
    return table(heads, rows, caption=caption, part="partial") if rows else ""


def _shown(value: Mapping[str, Any]) -> str:
    """Return a number of a status document; its bits say nan or inf if there is none."""
    return number(value["hex"] if value["value"] is None else value["value"])


def _workers(doing: Iterable[Mapping[str, Any]]) -> str:
    rows = [_worker(worker) for worker in doing]
    if not rows:
        return ""
    heads = (head("node"), head("worker", "wide"), head("doing"), head("batches"))
    return table(heads, rows, caption="Workers of this evaluation", part="ranks")


def _worker(worker: Mapping[str, Any]) -> str:
    cells = (
        cell(text(worker["node"])),
        cell(text(worker["worker"]), "wide"),
        cell(text(doing_words(worker["phase"], waits=worker.get("waits")))),
        cell(progress(worker["batches"], worker["total"], worker["phase"])),
    )
    return f'<tr id="rank-{text(worker["rank"])}">{"".join(cells)}</tr>'


def progress(batches: int | None, total: int | None, phase: str | None) -> str:
    """Return how many batches are done, as a bar if their number is known. A process without work has none."""
    if phase in (None, "idle", "standby", "import", "join", "build") or batches is None:
        return ""
    if not total:
        return f"{batches}" if batches else ""
    return (
        f'<progress value="{min(batches, total)}" max="{total}" aria-label="batches"></progress> {batches} of {total}'
    )
