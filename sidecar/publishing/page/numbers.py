"""Show the newest and the best value of each metric. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from sidecar.publishing.page.markup import bounds, cell, head, quoted, step, table, text, value
from sidecar.system.plain_text import number

GOALS: Final[Mapping[str | None, str]] = {
    goal: f'<span class="goal" title="{words}" aria-hidden="true">{arrow}</span><span class="unseen"> ({words})</span>'
    for goal, arrow, words in (("max", "↑", "more is better"), ("min", "↓", "less is better"))
}
"""Marks of metrics with a direction."""

BEST: Final = '<span class="best-mark">best</span>'
"""The mark of a number that is the best one."""


def numbers(status: Mapping[str, Any]) -> str:
    """Return a table with a row for each eval set and metric."""
    row = status.get("evaluation")
    title = '<h2 id="numbers-title">Newest and best numbers</h2>'
    if not row:
        return (
            f'<section id="numbers" aria-labelledby="numbers-title">{title}<p class="note">There is no result yet. The '
            "first one appears here, without a reload, as soon as a complete checkpoint was evaluated.</p></section>"
        )
    best = status.get("best") or {}
    lines = [
        _line(row, eval_set, name, json, best.get(f"{eval_set}/{name}"))
        for eval_set, by_metric in row["metrics"].items()
        for name, json in by_metric.items()
    ]
    heads = [head("eval set"), head("metric"), head("newest", "number"), head("95 % interval"), head("step", "number")]
    heads += [
        head("best", "number"),
        head("newest against best", "number"),
        head("best checkpoint"),
        head("examples", "number wide"),
    ]
    return (
        f'<section id="numbers" aria-labelledby="numbers-title">{title}'
        f"{table(heads, lines, caption='Newest and best number of each metric', part='numbers-rows')}</section>"
    )


def _line(row: Mapping[str, Any], eval_set: str, name: str, json: dict[str, Any], best: dict[str, Any] | None) -> str:
    measured_at = {"step": row["steps"].get(eval_set), "step_source": row.get("step_sources", {}).get(eval_set)}
    cells = [
        cell(text(eval_set)),
        f"<th scope='row'>{text(name)}&nbsp;{GOALS.get(best['goal'] if best else None, '')}</th>",
        cell(value(json), "number"),
        cell(bounds(json)),
        cell(step(measured_at), "number"),
        cell(value(best) if best else "", "number"),
        cell(_difference(json, best), "number"),
        cell(_link(best) if best else ""),
        cell(text(row["examples"].get(eval_set)), "number wide"),
    ]
    # Quoted names hold no slash, so that no other eval set and metric make the same identity.
    identity = "/".join(quoted(part) for part in (eval_set, name))
    return f'<tr id="number-{identity}">{"".join(cells)}</tr>'


def _difference(json: Mapping[str, Any], best: Mapping[str, Any] | None) -> str:
    """Return the newest value minus the best one."""
    if best is None or json["value"] is None or best.get("value") is None:
        return ""
    difference = json["value"] - best["value"]
    return BEST if difference == 0 else text(f"{'+' if difference > 0 else ''}{number(difference)}")


def _link(best: Mapping[str, Any]) -> str:
    shown = f"step {step(best)}" if step(best) else text(best["checkpoint"])
    return f"{plan_link(best.get('plan'), shown)} <span class='note name'>{text(best['checkpoint'])}</span>"


def plan_link(plan: int | None, shown: str) -> str:
    """Return a link to an evaluation. `shown` is markup."""
    return shown if plan is None else f'<a href="evaluation?plan={plan}" data-plan="{plan}">{shown}</a>'
