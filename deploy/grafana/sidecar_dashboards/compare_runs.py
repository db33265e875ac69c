"""Build the dashboard *Compare runs*: one metric of several runs over step, and the best and the newest of each run."""

from typing import Final

from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.common import VisibilityMode

from sidecar_dashboards import joins, panels, queries
from sidecar_dashboards.dashboard import TRAINING_RUN, Place, assemble, choice, metrics, newest_runs
from sidecar_dashboards.panels import COUNT, NUMBER, Panel
from sidecar_dashboards.queries import last, last_named, rule

UID: Final = "sidecar-compare-runs"

_RUNS: Final = 'run=~"$run"'
_SET: Final = f'{_RUNS},eval_set="$eval_set"'
_METRIC: Final = f'{_SET},metric=~"$metric"'
_NO_RESULT: Final = "No evaluation of these runs has ended in this time."


def build() -> model.Dashboard:
    """Return the dashboard."""
    return assemble(
        UID,
        "Sidecar: compare runs",
        "One metric of several training runs over step, and the best checkpoint of each.",
        [
            newest_runs()
            .multi(multi=True)
            .include_all(include_all=True)
            .current(model.VariableOption(selected=True, text=["All"], value=["$__all"])),
            choice("eval_set", "Eval set", f"label_values(sidecar:eval_metric:latest{{{_RUNS}}}, eval_set)"),
            metrics(_SET),
        ],
        [],
        [
            Place(None, [_over_step(), _best_of_each()]),
            Place(panels.row(100, "The same runs over time"), [_over_time(), _over_hours(), *_about()]),
        ],
        one_run=False,
    )


def _over_step() -> Panel:
    panel = panels.over_step(
        1,
        "$metric on $eval_set over step",
        "One curve per run, one point per step evaluated in the time in view: lengthen it until it holds the runs that "
        "you compare. It does not depend on when or how fast a run trained. If a run evaluated a step twice (after a "
        "rollback), the last one counts. Choose runs above, or click a name below the chart to see one alone.",
        panels.rows("A", queries.samples("result", _METRIC)),
        panels.rows("B", queries.samples("result_step", _SET)),
        width=24,
    ).height(13)
    joins.join_runs(panel, "A", "B")
    panel.unit(NUMBER.unit).decimals(NUMBER.decimals).no_value(_NO_RESULT)
    return panels.dress(panel, {"step": panels.STEP_AXIS})


def _best_of_each() -> Panel:
    best, newest = (last_named(rule(name, labels)) for name, labels in (
        ("eval_best_info:latest", _METRIC), ("eval_checkpoint_info:latest", _SET)
    ))  # fmt: skip
    named = f'label_replace({newest}, "newest_checkpoint", "$1", "checkpoint", "(.*)")'
    panel = panels.grid(
        2,
        "Best and newest $metric of each run",
        "The best value of each whole run, the step and the checkpoint that reached it, and the newest value. No "
        "best: it is not known whether more or less of this metric is better. Click a run to see it alone.",
        panels.rows("A", f"max by (run) ({last(rule('eval_best_metric:latest', _METRIC))})"),
        panels.rows("B", f"max by (run) ({last(rule('eval_best_step:latest', _METRIC))})"),
        panels.rows("C", f"max by (run, checkpoint) ({best})"),
        panels.rows("D", f"max by (run) ({last(rule('eval_metric:latest', _METRIC))})"),
        panels.rows("E", f"max by (run) ({last(rule('eval_set_checkpoint_step:latest', _SET))})"),
        panels.rows("F", f"max by (run, newest_checkpoint) ({named})"),
    )
    columns = {
        "Value #A": "best",
        "Value #B": "at step",
        "checkpoint": "best checkpoint",
        "Value #D": "newest",
        "Value #E": "newest step",
        "newest_checkpoint": "newest checkpoint",
    }
    joins.join_by(panel, "run", columns, hide=("Value #C", "Value #F"))
    panel.unit(NUMBER.unit).decimals(NUMBER.decimals).no_value(_NO_RESULT)
    run = {"links": [panels.to_dashboard("Open this run", TRAINING_RUN, "${__data.fields.run}")]}
    return panels.dress(
        panel, {"run": {"unit": "string", **run}, "at step": COUNT.properties, "newest step": COUNT.properties}
    )


def _over_time() -> Panel:
    panel = panels.lines(
        101,
        "$metric over time, each run",
        "The metric at the times when evaluations were completed. Runs that trained one after the other stand side by "
        "side; over step, above, they lie upon each other.",
        panels.now("A", queries.samples("result", _METRIC), "{{run}}"),
        width=12,
    )
    panel.span_nulls(span_nulls=True).show_points(VisibilityMode.ALWAYS)
    return panel.unit(NUMBER.unit).decimals(NUMBER.decimals).no_value(_NO_RESULT)


def _over_hours() -> Panel:
    panel = panels.lines(
        102,
        "Evaluated step over time, each run",
        "How far training had come in the checkpoints evaluated: a steeper line is a run that trains faster.",
        panels.query("A", rule("eval_checkpoint_step:latest", _RUNS), "{{run}}"),
        width=12,
    )
    return panel.unit(COUNT.unit).decimals(COUNT.decimals).no_value(_NO_RESULT)


def _about() -> list[Panel]:
    return [panels.setup(103, width=12).height(3), panels.results_shown(104, _RUNS, width=12).height(3)]
