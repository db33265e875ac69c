"""Build the page that lists the runs of a process. Pure."""

from collections.abc import Collection, Mapping
from typing import Any, Final

from sidecar.publishing.page.document import CURVES, Files, frame, more_of_daemon
from sidecar.publishing.page.markup import cell, head, moment, step, table, text, value
from sidecar.publishing.page.numbers import BEST, GOALS
from sidecar.system.plain_text import counted, number

_STYLES: Final[Mapping[str, str]] = {"serving": "good", "failed": "bad", "unreadable": "bad"}

Run = Mapping[str, Any]
"""What /api/status says of a run."""


def runs_page(runs: Collection[Run], files: Files) -> str:
    """Return the page."""
    is_only_read = bool(runs) and all(run["ready"] is None for run in runs)
    heads = (
        *(head("run"), head("state"), head("newest evaluation"), head("best", "number")),
        *(head("against the best run", "number"), head("newest", "number"), head("waiting", "number")),
        *(head("evaluated", "number"), *([] if is_only_read else [head("workers")]), head("directory", "wide")),
    )
    leaders = _leaders(runs)
    rows = [_row(run, leaders, is_only_read=is_only_read) for run in runs]
    listed = (
        table(heads, rows, caption="Runs, with the first metric of each that has a direction", part="runs-rows")
        if rows
        else '<p class="note">No directory of checkpoints is found yet.</p>'
    )
    evaluated = sum(run["evaluated"] or 0 for run in runs)
    of_daemon = "" if is_only_read else more_of_daemon("")
    body = f"""<header><h1>{counted(len(rows), "run")}</h1></header>
<main id="page" data-entries="{evaluated}"><div id="alerts">{"".join(map(_alert, runs))}</div>
<section id="runs" data-each aria-label="Runs">{listed}</section>
{CURVES if rows else ""}</main>
<footer><p>More: <a href="api/status">status as JSON</a>{of_daemon}</p></footer>"""
    return frame("sidecar", body, files)


def _alert(run: Run) -> str:
    """Return why a run is not served or read, or why its evaluations fail."""
    if run["state"] == "failed":
        told = f"Run {text(run['run'])} is not served:</strong> {text(run['reason'])}. It begins again after a pause."
    elif run["state"] == "unreadable":
        told = f"Run {text(run['run'])} cannot be read:</strong> {text(run['reason'])}. It is tried again."
    elif run["failing"]:
        told = f"Evaluations of run {text(run['run'])} fail:</strong> {text(run['failing'].get('kind'))}."
    else:
        return ""
    return f'<div class="alert bad"><p><strong>{told}</p></div>'


def _comparable(run: Run) -> tuple[object, ...] | None:
    """Return what must be equal so that the best numbers of two runs may be compared; None: they never may."""
    main = run["main"]
    if main is None or main["best"]["value"] is None or main["data"] is None:
        return None
    return main["metric"], main["goal"], main["data"], main["examples"]


def _leaders(runs: Collection[Run]) -> dict[tuple[object, ...], tuple[float, int]]:
    """Return the best number of all runs that may be compared, and how many they are."""
    found: dict[tuple[object, ...], list[float]] = {}
    for run in runs:
        if (key := _comparable(run)) is not None:
            found.setdefault(key, []).append(run["main"]["best"]["value"])
    return {key: (max(each) if key[1] == "max" else min(each), len(each)) for key, each in found.items()}


def _against(run: Run, leaders: Mapping[tuple[object, ...], tuple[float, int]]) -> str:
    """Return the best number of a run minus that of the best run; nothing if there is none to compare with."""
    key = _comparable(run)
    if key is None or leaders[key][1] == 1:
        return ""
    difference = run["main"]["best"]["value"] - leaders[key][0]
    return BEST if difference == 0 else text(f"{'+' if difference > 0 else ''}{number(difference)}")


def _row(run: Run, leaders: Mapping[tuple[object, ...], tuple[float, int]], *, is_only_read: bool) -> str:
    name = f'<a href="{text(run["url"])}">{text(run["run"])}</a>' if run["pending"] is not None else text(run["run"])
    at, main, best, newest = run["newest_completed_at"], run["main"], "", ""
    evaluated = "none yet" if at is None else f"{_at_step(run['newest_step'])}{moment(at)}"
    if main is not None:
        shown = step(main["best"])
        where = f" at step {shown}" if shown else ""
        best = (
            f"{value(main['best'])}&nbsp;{GOALS.get(main['goal'], '')} "
            f'<span class="note">{text(main["metric"])}{where}</span>'
        )
        newest = value(main["newest"])
    why = run["unready"] if run["state"] == "serving" else run["reason"]
    note = f' <span class="note">{text(why)}</span>' if why and run["state"] not in ("failed", "unreadable") else ""
    badge = f'<span class="badge {_STYLES.get(run["state"], "")}">{text(run["state"])}</span>'
    state = text(why) if run["state"] == "read" else badge + note
    return (
        f'<tr id="run-{text(run["run"])}"><th scope="row">{name}</th>{cell(state)}{cell(evaluated)}'
        f"{cell(best, 'number')}{cell(_against(run, leaders), 'number')}{cell(newest, 'number')}"
        f"{cell(text(run['pending']), 'number')}{cell(text(run['evaluated']), 'number')}"
        f"{'' if is_only_read else cell('has its turn' if run['has_turn'] else '')}"
        f"{cell(text(run['checkpoint_dir']), 'wide')}</tr>"
    )


def _at_step(number_of_step: object) -> str:
    return "" if number_of_step is None else f"step {text(number_of_step)} "
