"""Render the document of /api/status as a page for people: self-contained HTML without scripts. Pure.

Every value is escaped. A missing key shows as nothing, because the daemon answers requests before its first scan.
"""

from collections.abc import Iterable
from html import escape
from typing import Any, Final

from sidecar.plain_text import interval, number
from sidecar.records import shown_step

REFRESH_SECONDS: Final = 5

_STYLE: Final = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif }
body { margin: 2rem auto; max-width: 64rem; padding: 0 1rem }
h1 { font-size: 1.4rem; margin: 0 } h2 { font-size: 1.05rem; margin: 1.8rem 0 .4rem }
p { margin: .2rem 0 } small, .note { opacity: .65 }
section { overflow-x: auto }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; padding: .25rem .9rem .25rem 0; border-bottom: 1px solid #8884; vertical-align: top }
th { font-weight: 600; opacity: .65; font-size: .85rem } td { font-variant-numeric: tabular-nums }
.badge { border: 1px solid #8888; border-radius: 1rem; padding: .05rem .6rem; font-size: .8rem; margin-left: .3rem }
.good { color: #16803c; border-color: currentColor } .bad { color: #c8321e; border-color: currentColor }
"""


def page(status: dict[str, Any]) -> str:
    """Render the JSON of /api/status as one HTML document that reloads itself."""
    run, node = _text(status.get("run")), _text(status.get("node"))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="refresh" content="{REFRESH_SECONDS}"><title>{run or "sidecar"} · {node}</title>
<style>{_STYLE}</style></head><body>
<h1>{run or "sidecar"} {_badges(status)}</h1>
<p>node {node} · {_text(status.get("role"))} <span class="note">({_text(status.get("role_source"))})</span>
· version {_text(status.get("version"))}</p>
{_reason(status)}
{_idle(status)}
{_evaluation(status.get("evaluation"))}
{_queue(status)}
{_group(status)}
{_recent(status.get("recent") or ())}
<p class="note"><small><a href="/metrics">/metrics</a> · <a href="/api/status">/api/status</a> ·
<a href="/healthz">/healthz</a> · <a href="/readyz">/readyz</a></small></p>
</body></html>
"""


def _badges(status: dict[str, Any]) -> str:
    badges = [("ready", "good") if status.get("ready") else ("not ready", "bad")]
    if status.get("state") not in (None, "ready"):
        badges.append((str(status["state"]), ""))
    if status.get("publisher"):
        badges.append(("publisher", ""))
    return "".join(f'<span class="badge {style}">{_text(label)}</span>' for label, style in badges)


def _reason(status: dict[str, Any]) -> str:
    reason, hint = status.get("unready"), status.get("hint")
    lines = [f'<p class="bad">{_text(reason)}</p>'] if reason else []
    lines += [f'<p class="note">{_text(hint)}</p>'] if hint else []
    return "".join(lines)


def _idle(status: dict[str, Any]) -> str:
    if status.get("role") != "chief":
        return ""
    return (
        f"<p>This node evaluates nothing, because it is the training job's chief ({_text(status.get('role_source'))}): "
        "the daemons on the worker nodes do. To evaluate here too, start this one with <code>--role worker</code>.</p>"
    )


def _evaluation(row: dict[str, Any] | None) -> str:
    if not row:
        return '<h2>Newest evaluation</h2><p class="note">none yet</p>'
    sources = row.get("step_sources", {})
    steps = {eval_set: shown_step(step, sources.get(eval_set)) or None for eval_set, step in row["steps"].items()}
    lines = [
        (
            eval_set,
            steps.get(eval_set),
            name,
            number(value["hex"] if value["value"] is None else value["value"]),
            interval(value["lower"], value["upper"]),
            row["examples"].get(eval_set),
        )
        for eval_set, values in row["metrics"].items()
        for name, value in values.items()
    ]
    facts = f"step {_text(_step(row))} · {_text(row['workers'])} workers · completed {_text(row['completed_at'])}"
    return (
        f"<h2>Newest evaluation: {_text(row['checkpoint'])}</h2><p>{facts}</p>"
        f"{_table(('eval set', 'step', 'metric', 'value', '95 % interval', 'examples'), lines)}"
    )


def _queue(status: dict[str, Any]) -> str:
    plan, newest = status.get("plan"), status.get("newest_checkpoint")
    facts = [
        f"{_text(status.get('pending', 0))} pending",
        f"{_text(status.get('evaluated', 0))} evaluated",
        f"{_text(status.get('settled', 0))} settled without a result",
    ]
    if newest:
        facts.append(f"newest checkpoint at step {_text(_step(newest))}, written {_text(newest['written_at'])}")
    now = (
        ""
        if not plan
        else (
            f"<p>now: {_text(plan['checkpoint'])}, attempt {_text(plan['attempt'])}, "
            f"{_text(plan['workers'])} workers on {_text(', '.join(plan['nodes']))}</p>"
        )
    )
    return f"<h2>Queue</h2><p>{' · '.join(facts)}</p>{now}"


def _group(status: dict[str, Any]) -> str:
    members = status.get("members") or {}
    workers = [
        (worker["worker"], worker["pid"], worker["state"], _progress(worker)) for worker in status.get("workers") or ()
    ]
    facts = ", ".join(f"{_text(count)} {_text(state)}" for state, count in members.items()) or "none seen"
    listed = _table(("worker", "pid", "state", "batches"), workers) if workers else '<p class="note">no process</p>'
    notes = [f"{node} is left out of evaluations: {why}" for node, why in (status.get("left_out") or {}).items()]
    notes += [f"cannot be read here now: {entry}" for entry in status.get("unknown") or ()]
    note_lines = "".join(f'<p class="note">{_text(note)}</p>' for note in notes)
    return (
        f"<h2>Nodes</h2><p>{facts} · group of {_text(status.get('group_size', 0))} worker processes</p>{note_lines}"
        f"<h2>Workers on this node</h2>{listed}"
    )


def _step(row: dict[str, Any]) -> str | None:
    return shown_step(row["step"], row.get("step_source")) or None


def _recent(rows: Iterable[dict[str, Any]]) -> str:
    lines = [
        (_step(row), row["checkpoint"], row["status"], row["kind"] or row["message"], row["completed_at"])
        for row in rows
    ]
    return f"<h2>Recent</h2>{_table(('step', 'checkpoint', 'status', 'why', 'completed'), lines)}" if lines else ""


def _table(heads: Iterable[str], lines: Iterable[Iterable[Any]]) -> str:
    head = "".join(f"<th>{_text(name)}</th>" for name in heads)
    body = "".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in line)}</tr>" for line in lines)
    return f"<section><table><tr>{head}</tr>{body}</table></section>"


def _progress(worker: dict[str, Any]) -> str:
    total = worker["total_batches"]
    return str(worker["batches"]) if total is None else f"{worker['batches']} of {total}"


def _text(value: Any) -> str:
    return "" if value is None else escape(str(value))
