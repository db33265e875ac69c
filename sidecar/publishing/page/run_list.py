"""Build the page that lists the runs of a process. Pure."""

from collections.abc import Collection, Mapping
from typing import Any, Final

from sidecar.publishing.page.document import CURVES, Files, frame
from sidecar.publishing.page.markup import cell, counted, head, moment, table, text

_STYLES: Final[Mapping[str, str]] = {"serving": "good", "failed": "bad"}


def runs_page(runs: Collection[Mapping[str, Any]], files: Files) -> str:
    """Return the page. `runs`: what /api/status says of each."""
    heads = (
        *(head("run"), head("state"), head("newest evaluation"), head("waiting", "number")),
        *(head("evaluated", "number"), head("workers"), head("directory", "wide")),
    )
    rows = [_row(run) for run in runs]
    listed = (
        table(heads, rows, caption="Runs of this daemon", part="runs-rows")
        if rows
        else '<p class="note">No directory of checkpoints is found yet.</p>'
    )
    evaluated = sum(run["evaluated"] or 0 for run in runs)
    body = f"""<header><h1>{counted(len(rows), "run", "runs")}</h1></header>
<main id="page" data-entries="{evaluated}"><div id="alerts">{"".join(map(_alert, runs))}</div>
<section id="runs" data-each aria-label="Runs">{listed}</section>
{CURVES if rows else ""}</main>
<footer><p>More: <a href="metrics">metrics for Prometheus</a> · <a href="api/status">status as JSON</a> ·
<a href="healthz">health</a> · <a href="readyz">readiness</a></p></footer>"""
    return frame("sidecar", body, files)


def _alert(run: Mapping[str, Any]) -> str:
    """Return why a run is not served, or why its evaluations fail."""
    if run["state"] == "failed":
        told = f"Run {text(run['run'])} is not served:</strong> {text(run['reason'])}. It begins again after a pause."
    elif run["failing"]:
        told = f"Evaluations of run {text(run['run'])} fail:</strong> {text(run['failing'].get('kind'))}."
    else:
        return ""
    return f'<div class="alert bad"><p><strong>{told}</p></div>'


def _row(run: Mapping[str, Any]) -> str:
    name = f'<a href="{text(run["url"])}">{text(run["run"])}</a>' if run["pending"] is not None else text(run["run"])
    step, at = run["newest_step"], run["newest_completed_at"]
    newest = "none yet" if at is None else f"{'' if step is None else f'step {text(step)} '}{moment(at)}"
    why = run["unready"] if run["state"] == "serving" else run["reason"]
    note = f' <span class="note">{text(why)}</span>' if why and run["state"] != "failed" else ""
    badge = f'<span class="badge {_STYLES.get(run["state"], "")}">{text(run["state"])}</span>'
    return (
        f'<tr id="run-{text(run["run"])}"><th scope="row">{name}</th>{cell(badge + note)}{cell(newest)}'
        f"{cell(text(run['pending']), 'number')}{cell(text(run['evaluated']), 'number')}"
        f"{cell('has its turn' if run['has_turn'] else '')}{cell(text(run['checkpoint_dir']), 'wide')}</tr>"
    )
