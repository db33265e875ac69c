"""Show everything about one evaluation. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sidecar.protocol.records import PHASES
from sidecar.publishing.failures import ADVICE
from sidecar.publishing.page.document import Files, frame
from sidecar.publishing.page.evaluations import older_link, rows_table
from sidecar.publishing.page.markup import (
    advice,
    bounds,
    cell,
    counted,
    head,
    lines,
    moment,
    step,
    table,
    text,
    value,
)
from sidecar.publishing.page.pictures import matrix_picture, phases_picture

_BACK = '<p><a href="/">Status of the run</a></p>'

_STATES_REMOVED = "removed by retention (keep_states); the numbers are those of the journal"

Details = Mapping[str, Any]


def evaluation_page(details: Details, run: str, files: Files) -> str:
    """Return the page of an evaluation. The scripts show its `article` in a dialog of the status page."""
    title = f"{text(details['checkpoint'])} · {text(run)}"
    return frame(title, f'<main>{_BACK}<article id="details">{_article(details)}</article></main>', files)


def reading_page(plan: int, run: str, files: Files) -> str:
    """Return the page until the records were read."""
    body = (
        f'<main>{_BACK}<p role="status">Evaluation {plan} is being read. This page loads again in a second.</p></main>'
    )
    return frame(f"evaluation {plan} · {text(run)}", body, files)


def evaluations_page(rows: Sequence[Mapping[str, Any]], run: str, files: Files, note: str = "") -> str:
    """Return a page of older evaluations, for browsers without scripts; the scripts add its rows to the status page."""
    shown = rows_table(rows) if rows else '<p class="note">There are no older ones.</p>'
    told = f'<p class="note" role="status">{text(note)}</p>' if note else ""
    more = older_link(rows, more=len(rows) > 0) if rows else '<p id="older"></p>'
    title = f"older evaluations · {text(run)}"
    return frame(title, f"<main>{_BACK}<h1>Older evaluations</h1>{told}{shown}{more}</main>", files)


def _article(details: Details) -> str:
    shown = f"step {step(details)}" if step(details) else "no step"
    again = f", attempt {text(details['attempt'])}" if (details["attempt"] or 1) > 1 else ""
    finished = f"finished {moment(details['completed_at'])}"
    parts = [
        f'<h2 id="details-title">{text(details["checkpoint"])}</h2>',
        f'<p class="note">{shown} · evaluation {text(details["plan"])}{again} · {finished}</p>',
    ]
    if details["status"] == "succeeded":
        parts += [_notes(details), _numbers(details), _confusion(details), _classes(details), _phases(details)]
    else:
        parts.append(_failure(details))
    return "".join([*parts, _workers(details), _data(details), _profile(details), _identity(details)])


def _failure(details: Details) -> str:
    known = ADVICE.get(details["kind"] or "")
    told = f" {advice(known.cause)} {advice(known.remedy)}" if known else ""
    node = f" on node {text(details['node'])}" if details["node"] else ""
    log = (
        f'<p>Log of the worker process: <code class="path">{text(details["log"])}</code></p>' if details["log"] else ""
    )
    return (
        f'<div class="alert bad"><p><strong>Failed: <code>{text(details["kind"])}</code>{node}.</strong>{told}</p>'
        f"<pre>{lines(details['message'])}</pre>{log}</div>"
    )


def _notes(details: Details) -> str:
    changed = [
        f"The data of eval set {name} differ from an earlier evaluation: do not compare." for name in details["changed"]
    ]
    notes = [*changed, *details["warnings"], *details["notes"]]
    items = "".join(f"<li>{text(note)}</li>" for note in notes)
    return f'<ul class="alert warn">{items}</ul>' if notes else ""


def _numbers(details: Details) -> str:
    rows = [
        f"<tr>{cell(text(eval_set))}<th scope='row'>{text(name)}</th>{cell(value(json), 'number')}{cell(bounds(json))}"
        f"{cell(text(details['examples'].get(eval_set)), 'number')}</tr>"
        for eval_set, by_metric in details["metrics"].items()
        for name, json in by_metric.items()
    ]
    heads = [
        head("eval set"),
        head("metric"),
        head("value", "number"),
        head("95 % interval"),
        head("examples", "number"),
    ]
    return table(heads, rows, caption="Numbers of this evaluation")


def _confusion(details: Details) -> str:
    return "".join(
        f"<h3>Confusion matrix: {text(found['set'])}/{text(found['metric'])}</h3>"
        f"{matrix_picture(found['classes'], found['matrix'])}"
        for found in details["confusion"]
    )


def _classes(details: Details) -> str:
    return "".join(_of_classes(eval_set, by_metric) for eval_set, by_metric in details["classes"].items() if by_metric)


def _of_classes(eval_set: str, by_metric: Mapping[str, Mapping[str, dict[str, Any]]]) -> str:
    labels = dict.fromkeys(label for by_class in by_metric.values() for label in by_class)
    rows = [
        f"<tr><th scope='row'>{text(label)}</th>"
        + "".join(cell(value(by_class.get(label)), "number") for by_class in by_metric.values())
        + "</tr>"
        for label in labels
    ]
    heads = [head("class"), *(head(name, "number") for name in by_metric)]
    return f"<h3>By class: {text(eval_set)}</h3>{table(heads, rows, caption=f'Numbers of each class of {eval_set}')}"


def _phases(details: Details) -> str:
    seconds = {name: details["phases"][name] for name in PHASES if name in details["phases"]}
    if not seconds:
        return ""
    return f"<h3>Time: {sum(seconds.values()):.2f} s on the slowest worker</h3>{phases_picture(seconds)}"


def _workers(details: Details) -> str:
    rows = [
        f"<tr>{cell(text(member['rank']), 'number')}{cell(text(member['node']))}{cell(text(member['worker']))}"
        f"{cell(text(member['address']))}</tr>"
        for member in details["members"]
    ]
    heads = (head("rank", "number"), head("node"), head("worker"), head("address"))
    title = f"<h3>{counted(len(rows), 'worker', 'workers')}</h3>"
    return title + table(heads, rows, caption="Workers of this evaluation")


def _data(details: Details) -> str:
    rows = [_data_row(name, data, details["examples"].get(name)) for name, data in details["data"].items()]
    if not rows:
        return ""
    heads = [head("eval set"), head("examples", "number"), head("batches", "number")]
    heads += [head("fingerprint"), head("divided by")]
    return "<h3>Data</h3>" + table(heads, rows, caption="Data of this evaluation")


def _data_row(name: str, data: Mapping[str, Any], examples: int | None) -> str:
    cells = (
        cell(text(examples), "number"),
        cell(text(data["batches"]), "number"),
        cell(_digest(data["fingerprint"])),
        cell(text(data["sharding"])),
    )
    return f"<tr><th scope='row'>{text(name)}</th>{''.join(cells)}</tr>"


def _profile(details: Details) -> str:
    if not (profile := details["profile"]):
        return ""
    title = f"Numeric profile: {counted(len(profile), 'entry', 'entries')}"
    return (
        f'<details id="details-profile"><summary>{title}</summary>'
        f"<p class='note'>Evaluations with equal profiles give the same bits.</p>{_pairs(profile.items())}</details>"
    )


def _identity(details: Details) -> str:
    facts = {
        "digest of the checkpoint": details["digest"],
        "digest of the restored values": details["variables"],
        "digest of the task": details["task"],
        "group": details["group"],
        "proposed by": details["proposer"],
        "result written by": details["closed_by"],
        "metric states": _STATES_REMOVED if details["states_removed"] else None,
        **{f"saves of rank {rank}": folder for rank, folder in enumerate(details["saves"])},
    }
    known = [(name, fact) for name, fact in facts.items() if fact]
    return f'<details id="details-identity"><summary>Digests and folders</summary>{_pairs(known)}</details>'


def _pairs(pairs: Iterable[tuple[str, Any]]) -> str:
    items = "".join(f"<div><dt>{text(name)}</dt><dd>{text(fact)}</dd></div>" for name, fact in pairs)
    return f'<dl class="facts">{items}</dl>'


def _digest(digest: str | None) -> str:
    return "" if digest is None else f'<code class="path">{text(digest)}</code>'
