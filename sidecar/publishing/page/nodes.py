"""Show the nodes of the run, and the worker processes of this node. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from sidecar.publishing.page.markup import cell, counted, head, link, table, text
from sidecar.publishing.page.overview import phase_words, progress

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
        return '<p class="note">No node has reported yet.</p>'
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
    if status.get("role") == "chief":
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
        cell(text("waiting" if state == "idle" else phase_words(state))),
        cell(progress(worker["batches"], worker["total_batches"], state)),
    )
    return (
        f'<tr id="worker-{text(worker["worker"])}"><th scope="row">{text(worker["worker"])}</th>{"".join(cells)}</tr>'
    )
