"""List evaluations, newest first: their numbers, or why they failed. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from sidecar.publishing.failures import ADVICE
from sidecar.publishing.page.markup import advice, cell, head, lines, moment, step, table, text, value
from sidecar.publishing.page.numbers import plan_link
from sidecar.system.plain_text import counted

_COLUMNS: Final = 4
"""The most metrics with a column of their own. The page of an evaluation has all of them."""

Row = Mapping[str, Any]


def evaluations(status: Mapping[str, Any]) -> str:
    """Return the table of the newest evaluations."""
    rows = status.get("recent") or ()
    title = '<h2 id="evaluations-title">Evaluations</h2>'
    if not rows:
        return (
            f'<section id="evaluations" aria-labelledby="evaluations-title">{title}'
            '<p class="note">None yet.</p></section>'
        )
    return (
        f'<section id="evaluations" aria-labelledby="evaluations-title">{title}{rows_table(rows)}'
        f"{older_link(rows, more=status.get('entries', 0) > len(rows))}</section>"
    )


def rows_table(rows: Sequence[Row]) -> str:
    """Return a table of rows, with a column for each of the first metrics."""
    columns = list(
        dict.fromkeys((eval_set, name) for row in rows for eval_set, by in row["metrics"].items() for name in by)
    )
    shown = columns[:_COLUMNS]
    several = len({eval_set for eval_set, _ in columns}) > 1
    heads = [head("step", "step"), head("checkpoint"), head("result")]
    heads += [head(f"{eval_set}/{name}" if several else name, "number") for eval_set, name in shown]
    heads += [head("more", "wide")] * (len(columns) > len(shown)) + [head("finished")]
    return table(
        heads,
        [_row(row, shown, others=len(columns) > len(shown)) for row in rows],
        caption="Evaluations, newest first",
        part="evaluations-rows",
    )


def older_link(rows: Sequence[Row], *, more: bool) -> str:
    """Return a link to the evaluations before these rows, if there are any."""
    oldest = min((row["plan"] for row in rows), default=0)
    if not more or oldest <= 1:
        return '<p id="older"></p>'
    return f'<p id="older"><a href="evaluations?before={oldest}" data-before="{oldest}">Older evaluations</a></p>'


def _row(row: Row, shown: Iterable[tuple[str, str]], *, others: bool) -> str:
    identity = f"row-{row['plan']}" if row["attempt"] is not None else f"row-{row['plan']}-{row['digest'][:12]}"
    label = step(row) or "-"
    cells = [
        cell(plan_link(row["plan"] if row["attempt"] is not None else None, label), "step"),
        cell(f'<span class="name">{text(row["checkpoint"])}</span>'),
        cell(_result(row, identity)),
    ]
    cells += [cell(value(row["metrics"].get(eval_set, {}).get(name)), "number") for eval_set, name in shown]
    if others:
        count = sum(map(len, row["metrics"].values()))
        cells.append(cell(text(counted(count, "number")) if count else "", "wide"))
    cells.append(cell(moment(row["completed_at"])))
    return f'<tr id="{text(identity)}" data-plan="{text(row["plan"])}">{"".join(cells)}</tr>'


def _result(row: Row, identity: str) -> str:
    """Return the end of an evaluation: a word, and for a failure the reason behind it."""
    if row["status"] == "succeeded":
        why = "; ".join(dict.fromkeys((row.get("data_changed") or {}).values()))
        changed = f" <span class='warn' title='older numbers cannot be compared'>{text(why)}</span>" if why else ""
        return f'<span class="good">evaluated</span>{changed}{_attention(row)}'
    bad = row["status"] in ("failed", "corrupt", "vanished")
    style, word = ("bad" if bad else "plain"), text(row["status"])
    kind = f": {text(row['kind'])}" if row["kind"] else ""
    end = f", attempt {text(row['attempt'])}" if row["attempt"] and not row["final"] else ""
    if not row["message"]:
        return f'<span class="{style}">{word}{kind}</span>{end}'
    known = ADVICE.get(row["kind"] or "")
    told = f"<p>{advice(known.cause)} {advice(known.remedy)}</p>" if known else ""
    return (
        f'<details id="why-{text(identity)}"><summary class="{style}">{word}{kind}{end}</summary>{told}'
        f"<pre>{lines(row['message'])}</pre></details>"
    )


def _attention(row: Row) -> str:
    """Return a mark if examples had NaN or infinite numbers."""
    return " <span class='warn'>NaN or infinite numbers</span>" if row.get("nonfinite") else ""
