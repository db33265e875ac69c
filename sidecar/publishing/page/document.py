"""Build the status page, its frame, and the tables of nodes and of the workers of this node. Pure.

A missing key of the status shows as nothing, because the daemon answers requests before its first scan. Elements with
an `id` keep their place, and what a reader has opened or selected, when a script replaces the parts that changed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sidecar.publishing.page.evaluations import evaluations
from sidecar.publishing.page.markup import cell, head, link, table, text
from sidecar.publishing.page.numbers import numbers
from sidecar.publishing.page.overview import alerts, doing_words, header, present, progress, summary
from sidecar.system.plain_text import counted

Status = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Files:
    """Name the files that a page loads."""

    base: str = "/static"  # the folder of the files, with their version in its path: `/static/0123456789ab`


def page(status: Status, files: Files = Files()) -> str:
    """Return the status page."""
    body = f"""{header(status)}
<main id="page" data-entries="{text(status.get("entries", 0))}">
<div id="alerts">{alerts(status)}</div>
{summary(status)}
{present(status)}
{CURVES}
{numbers(status)}
{evaluations(status)}
{nodes(status)}
</main>
{_footer(status)}"""
    run, node = text(status.get("run")) or "sidecar", text(status.get("node"))
    return frame(f"{run} · {node}" if node else run, body, files)


def frame(title: str, body: str, files: Files) -> str:
    """Return a document with everything that each page has. `title` and `body` are markup."""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<title>{title}</title><link rel="icon" href="{files.base}/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="{files.base}/uPlot.min.css"><link rel="stylesheet" href="{files.base}/page.css">
<script src="{files.base}/uPlot.iife.min.js" defer></script>
<script type="module" src="{files.base}/main.js"></script>
</head><body>
<p id="away" role="status" hidden></p>
{body}
<dialog id="evaluation" aria-label="Evaluation"></dialog>
</body></html>
"""


CURVES: Final = """<section id="curves" data-own aria-labelledby="curves-title">
<h2 id="curves-title">Curves</h2>
<noscript><p class="note">Curves need JavaScript. The tables below have the numbers.</p></noscript>
<form id="curve-controls" hidden>
<label>Smoothing <input id="smoothing" type="range" min="0" max="0.99" step="0.01" value="0">
<output id="smoothing-value" for="smoothing">0</output></label>
<label><input id="log-scale" type="checkbox"> Log scale</label>
<label title="Otherwise 90 % of the values take at least a third of the height"><input id="all-values" type="checkbox">
All values</label>
<label>Axis <select id="x-axis"><option value="step">step</option><option value="time">time</option>
<option value="order">evaluation</option><option value="epoch">epoch</option></select></label>
<label id="epoch-label" hidden>Steps of an epoch <input id="epoch" type="number" min="1" step="any" required></label>
<fieldset id="chosen-runs" hidden></fieldset>
<fieldset id="eval-sets" hidden></fieldset>
<label id="filter-label" hidden>Filter <input id="filter" type="search" autocomplete="off"
placeholder="name of a metric"></label>
<button id="whole-range" type="button" hidden>Show all steps</button>
</form>
<ul id="legend" hidden><li class="key-value">value</li><li class="key-smooth">smoothed</li>
<li class="key-band">95 % interval</li><li class="key-best">best</li></ul>
<p id="curves-note" class="note" role="status"></p>
<div id="charts"></div>
</section>"""


def _footer(status: Status) -> str:
    links = [link(url, name) for name, url in (status.get("page_links") or {}).items()]
    elsewhere = f"<p>Elsewhere: {' · '.join(links)}</p>" if links else ""
    return f"<footer>{elsewhere}{_MORE}{more_of_daemon('/') if 'ready' in status else ''}</p></footer>"


_MORE: Final = """<p>More: <code>sidecar status</code> and <code>sidecar history</code> in a terminal ·
<a href="api/status">status as JSON</a>"""


def more_of_daemon(base: str) -> str:
    """Return links to what only a daemon answers, below a path."""
    return f""" · <a href="{base}metrics">metrics for Prometheus</a> ·
<a href="{base}healthz">health</a> · <a href="{base}readyz">readiness</a>"""


_STATES: Final[Mapping[str, str]] = {
    "starting": "starting",
    "ready": "ready",
    "draining": "stopping after this evaluation",
    "left": "stopped",
}
"""Words for the states of a node."""


def nodes(status: Mapping[str, Any]) -> str:
    """Return the nodes, the worker processes of this node, and what cannot be read."""
    unknown = "".join(f"<li>{text(entry)}</li>" for entry in status.get("unknown") or ())
    more = status.get("unknown_count", 0) - len(status.get("unknown") or ())
    notes = f'<p class="warn">This node cannot read these entries now:</p><ul>{unknown}</ul>' if unknown else ""
    notes += f'<p class="note">and {counted(more, "more entry", "more entries")}</p>' if more > 0 and unknown else ""
    title = '<section id="nodes" aria-labelledby="nodes-title"><h2 id="nodes-title">Nodes</h2>'
    return f"{title}{notes}{_nodes(status)}{_workers(status)}</section>"


def _nodes(status: Mapping[str, Any]) -> str:
    listed = status.get("nodes") or ()
    if not listed:
        return f'<p class="note">{"No node has reported yet" if "ready" in status else "No daemon is alive"}.</p>'
    rows = []
    for node in listed:
        chief = node["role"] == "chief"
        is_here = node["node"] == status.get("node")
        name = text(node["node"]) if is_here else link(node.get("page_url"), node["node"])
        here = " <span class='note'>(this node)</span>" if is_here else ""
        workers = node["workers"]
        numbers = [f"{workers['active']} in a group"] * bool(workers["active"])
        numbers += [f"{workers['standby']} ready for a group"] * bool(workers["standby"])
        count = "none: it is the chief" if chief else ", ".join(numbers) or "none"
        rows.append(
            f'<tr id="node-{text(node["node"])}"><th scope="row">{name}{here}</th>'
            f"{cell(text(_STATES.get(node['state'], node['state'])))}{cell(text(count))}"
            f"{cell(text(node['version']), 'wide')}</tr>"
        )
    heads = (head("node"), head("state"), head("worker processes"), head("version", "wide"))
    return table(heads, rows, caption="Nodes of this run that are alive", part="nodes-rows")


def _workers(status: Mapping[str, Any]) -> str:
    if status.get("role") == "chief" or "workers" not in status:
        return ""
    rows = [_worker(worker) for worker in status.get("workers") or ()]
    title = "<h3>Worker processes on this node</h3>"
    if not rows:
        return f'{title}<p class="note">There is none now.</p>'
    heads = (head("worker"), head("process id", "number"), head("doing"), head("batches"))
    return title + table(heads, rows, caption="Worker processes on this node", part="workers-rows")


def _worker(worker: Mapping[str, Any]) -> str:
    state = worker["state"]
    cells = (
        cell(text(worker["pid"]), "number"),
        cell(text("waiting" if state == "idle" else doing_words(state, waits=worker.get("waits")))),
        cell(progress(worker["batches"], worker["total_batches"], state)),
    )
    return (
        f'<tr id="worker-{text(worker["worker"])}"><th scope="row">{text(worker["worker"])}</th>{"".join(cells)}</tr>'
    )
