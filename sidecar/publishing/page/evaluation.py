"""Show everything about one evaluation. Pure."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from sidecar.protocol.records import PHASES
from sidecar.publishing.failures import ADVICE
from sidecar.publishing.page.confusion_matrix import matrix_picture
from sidecar.publishing.page.document import Files, frame
from sidecar.publishing.page.evaluations import older_link, rows_table
from sidecar.publishing.page.markup import (
    advice,
    bounds,
    cell,
    exact,
    head,
    lines,
    moment,
    quoted,
    step,
    table,
    text,
    value,
)
from sidecar.publishing.page.numbers import BEST, GOALS, plan_link
from sidecar.system.plain_text import counted, number

_BACK = '<p><a href="./">Status of the run</a></p>'

_STATES_REMOVED = "removed by retention (keep_states); the numbers are those of the journal"

_RULES: Final[Mapping[str, str]] = {
    "paired": "example by example",
    "intervals": "from both intervals",
    "value": "noise unknown",
}
"""Words for how the interval of a difference was found."""

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
        _ways(details),
        f'<h2 id="details-title">{text(details["checkpoint"])}</h2>',
        f'<p class="note">{shown} · evaluation {text(details["plan"])}{again} · {finished}</p>',
    ]
    if details["status"] == "succeeded":
        parts += [
            _notes(details),
            _numbers(details),
            _classes(details),
            _slices(details),
            _confusion(details),
            _phases(details),
        ]
    else:
        parts.append(_failure(details))
    return "".join([*parts, _workers(details), _data(details), _profile(details), _identity(details)])


def _ways(details: Details) -> str:
    """Return links to the evaluations next to this one, which the arrow keys follow, too, and to its numbers."""
    links = [
        f'<a rel="{way}" href="evaluation?plan={plan}" data-plan="{plan}">{words}</a>'
        for way, plan, words in (("prev", details["previous"], "← previous"), ("next", details["next"], "next →"))
        if plan is not None
    ]
    links.append(
        f'<a href="api/evaluation?plan={details["plan"]}" download="evaluation-{details["plan"]}.json">JSON</a>'
    )
    return f'<p class="ways">{" · ".join(links)}</p>'


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
    rows = []
    for eval_set, by_metric in details["metrics"].items():
        for name, json in by_metric.items():
            against = details["against"].get(eval_set, {}).get(name, {})
            others = details["not_comparable"].get(eval_set, {}).get(name, ())
            before, best = (
                _not_comparable("other data, or another task")
                if what in others
                else _distance(json, against.get(what), is_best=what == "best")
                for what in ("before", "best")
            )
            goal = details["goals"].get(eval_set, {}).get(name)
            rows.append(
                f"<tr>{cell(text(eval_set))}<th scope='row'>{text(name)}&nbsp;{GOALS.get(goal, '')}</th>"
                f"{cell(value(json), 'number')}{cell(bounds(json))}"
                f"{cell(before, 'number delta')}{cell(best, 'number delta')}"
                f"{cell(text(details['examples'].get(eval_set)), 'number')}</tr>"
            )
    heads = [
        head("eval set"),
        head("metric"),
        head("value", "number"),
        head("95 % interval"),
        head("Δ to step before", "number"),
        head("Δ to best", "number"),
        head("examples", "number"),
    ]
    return table(heads, rows, caption="Numbers of this evaluation") + _compared(details)


def _not_comparable(why: str) -> str:
    return f'<span class="note" title="{text(why)}">not comparable</span>'


def _distance(json: Details, other: Details | None, *, is_best: bool = False) -> str:
    """Return a value minus another one, as a link to the evaluation of the other one."""
    if other is None or json["value"] is None:
        return ""
    difference = json["value"] - other["value"]
    if is_best and difference == 0:
        return BEST
    found = other.get("difference") or {"rule": None}
    if found["rule"] == "none":
        return _not_comparable(found["note"])
    told = f"{number(other['value'])} at {f'step {step(other)}' if step(other) else 'a checkpoint without a step'}"
    told += f"; {_RULES[found['rule']]}" if found["rule"] else ""
    told += f": {found['note']}" if found.get("note") else ""
    interval = ""
    if found.get("lower") is not None:
        ends = f"{exact(found['lower'], signed=True, digits=3)}, {exact(found['upper'], signed=True, digits=3)}"
        interval = f' <span class="interval">[{ends}]</span>'
    return f'<span title="{text(told)}">{plan_link(other["plan"], exact(difference, signed=True))}{interval}</span>'


def _compared(details: Details) -> str:
    """Return how to see what else differs; nothing if nothing is to compare with. `best_metric` names the best."""
    others = {
        what: other["plan"]
        for eval_set, by_metric in details["against"].items()
        for name, found in reversed(by_metric.items())
        for what, other in found.items()
        if other["plan"] != details["plan"] and (what == "before" or f"{eval_set}/{name}" == details["best_metric"])
    }
    pages = {
        words: f"comparison?new={details['plan']}&amp;old={others[what]}"
        for what, words in (("before", "step before"), ("best", "best"))
        if what in others
    }
    links = [f'<a href="{page}">{words}</a>' for words, page in pages.items()]
    changed = "".join(
        f'<details class="changed" data-page="{page}"><summary>Examples that changed against the {words}</summary>'
        f'<p class="note"><a href="{page}">The comparison</a> lists them.</p></details>'
        for words, page in pages.items()
    )
    line = shlex.join(["sidecar", "compare", details["directory"], "best", details["checkpoint"]])
    return (
        (
            f'<p class="note">Δ is the difference with its 95 % interval, if that is known: example by example where '
            f"predictions were saved. Which examples, classes and slices changed? Compare with the "
            f'{" or the ".join(links)}, or type <code class="path">{text(line)}</code></p>{changed}'
        )
        if links
        else ""
    )


def _confusion(details: Details) -> str:
    return "".join(
        f"<h3>Confusion matrix: {text(found['set'])}/{text(found['metric'])}</h3>"
        f"{matrix_picture(found['classes'], found['matrix'])}"
        for found in details["confusion"]
    )


def _classes(details: Details) -> str:
    return "".join(
        f"<h3>By class: {text(eval_set)}</h3>"
        f"{_by_label('class', eval_set, by_metric, details['goals'].get(eval_set, {}))}"
        for eval_set, by_metric in details["classes"].items()
        if by_metric
    )


def _slices(details: Details) -> str:
    found = []
    for eval_set, slices in details["slices"].items():
        by_metric: dict[str, dict[str, Any]] = {}
        for label, one in slices.items():
            for name, json in one["metrics"].items():
                by_metric.setdefault(name, {})[label] = json
        examples = {label: one["examples"] for label, one in slices.items()}
        shown = _by_label("slice", eval_set, by_metric, details["goals"].get(eval_set, {}), examples)
        found.append(f"<h3>By slice: {text(eval_set)}</h3>{shown}")
    return "".join(found)


def _by_label(
    kind: str,
    eval_set: str,
    by_metric: Mapping[str, Mapping[str, dict[str, Any]]],
    goals: Mapping[str, str],
    examples: Mapping[str, int] | None = None,
) -> str:
    """Return a table with a row for each class or slice, those with the worst first number first."""
    labels = list(dict.fromkeys(label for by_label in by_metric.values() for label in by_label))
    first = next(iter(by_metric), None)
    sign = -1 if first is not None and goals.get(first) == "min" else 1
    labels.sort(key=lambda label: _rank(by_metric[first].get(label) if first is not None else None, sign))
    counts = [head("examples", "number")] if examples else []
    heads = [head(kind), *(head(name, "number") for name in by_metric), *counts]
    rows = [
        f"<tr><th scope='row'>{_label(kind, eval_set, label, first)}</th>"
        + "".join(cell(_with_bar(by_label.get(label)), "number") for by_label in by_metric.values())
        + (cell(text(examples.get(label)), "number") if examples else "")
        + "</tr>"
        for label in labels
    ]
    shown = table(heads, rows, caption=f"Numbers of each {kind}, the worst first", style="sortable")
    metrics = " ".join(map(quoted, by_metric))
    return f'{shown}<div class="part-curve" data-metrics="{text(metrics)}" hidden></div>'


def _label(kind: str, eval_set: str, label: str, metric: str | None) -> str:
    """Return the name of a class or slice, which leads to its numbers of all evaluations: with scripts, as curves."""
    if metric is None:
        return text(label)
    part = f"api/curve?set={quoted(eval_set)}&{kind}={quoted(label)}"
    return f'<a class="part" href="{text(f"{part}&metric={quoted(metric)}")}" title="its curves">{text(label)}</a>'


def _rank(json: Details | None, sign: int) -> tuple[bool, float]:
    known = json is not None and json["value"] is not None
    return not known, sign * json["value"] if json is not None and known else 0.0


def _with_bar(json: Details | None) -> str:
    """Return a number with a bar if it is from 0 to 1; its interval as text is for those who do not see the bar."""
    shown = f'{value(json)}<span class="unseen"> {bounds(json)}</span>' if bounds(json) else value(json)
    if json is None or json["value"] is None or not 0 <= json["value"] <= 1:
        return shown
    ends = [100 * min(max(json[end], 0), 1) for end in ("lower", "upper") if json.get(end) is not None]
    interval = (
        f'<rect class="interval" x="{ends[0]:.2f}" y="4" width="{ends[1] - ends[0]:.2f}" height="4"/>'
        if ends[1:]
        else ""
    )
    return (
        f'<svg class="bar" aria-hidden="true" viewBox="0 0 100 12" preserveAspectRatio="none">'
        f'<rect class="value" width="{100 * json["value"]:.2f}" height="12"/>{interval}</svg> {shown}'
    )


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
    title = f"<h3>{counted(len(rows), 'worker')}</h3>"
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


def phases_picture(seconds: Mapping[str, float]) -> str:
    """Return the time of each phase: a bar, and a list of what its parts are. A phase has always the same colour."""
    total, start, parts, items = max(sum(seconds.values()), 1e-9), 0.0, [], []
    for name, length in seconds.items():
        place = PHASES.index(name)
        width = 1000 * max(length, 0.0) / total
        shape = f'<rect class="phase-{place}" x="{start:.2f}" y="0" width="{width:.2f}" height="20">'
        parts.append(f"{shape}<title>{text(name)}: {length:.3f} s</title></rect>")
        swatch = f'<svg class="swatch" aria-hidden="true"><rect class="phase-{place}" width="12" height="12"/></svg>'
        items.append(f"<li>{swatch}{text(name)} {length:.2f} s</li>")
        start += width
    return (
        f'<svg class="phases" role="img" aria-label="Share of each phase in the time" viewBox="0 0 1000 20" '
        f'preserveAspectRatio="none">{"".join(parts)}</svg><ul class="phase-list">{"".join(items)}</ul>'
    )
