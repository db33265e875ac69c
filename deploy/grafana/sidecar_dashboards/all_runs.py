"""Build the dashboard *All runs*: one row per training run, its newest and best number, and what needs attention."""

from typing import Final

from grafana_foundation_sdk.models import dashboard as model

from sidecar_dashboards import joins, panels, queries
from sidecar_dashboards.dashboard import TRAINING_RUN, Place, assemble, choice, metrics
from sidecar_dashboards.panels import BLUE, COUNT, NUMBER, ORANGE, VERMILION, Panel, steps
from sidecar_dashboards.queries import last, rule

UID: Final = "sidecar-all-runs"

_ANY: Final = 'run!=""'
_METRIC: Final = f'{_ANY},eval_set="$eval_set",metric=~"$metric"'
_FIRING: Final = 'ALERTS{alertstate="firing",alertname=~"Sidecar.*"}'
_NO_DAEMON: Final = "No daemon was scraped in this time."


def build() -> model.Dashboard:
    """Return the dashboard."""
    return assemble(
        UID,
        "Sidecar: all runs",
        "All training runs whose checkpoints are evaluated: what is new, what is best, and what needs attention.",
        [
            choice("eval_set", "Eval set", f"label_values(sidecar:eval_metric:latest{{{_ANY}}}, eval_set)"),
            metrics(f'{_ANY},eval_set="$eval_set"'),
        ],
        [],
        [
            Place(None, [*_at_a_glance(), _runs()]),
            Place(
                panels.row(
                    100,
                    "What needs attention",
                ),
                [_alerts()],
                "how-to/alerts",
            ),
            Place(panels.row(200, "Do they keep up?"), [_lag(), _evaluated(), _failed()], "how-to/choose-checkpoints"),
        ],
        one_run=False,
    )


def _at_a_glance() -> list[Panel]:
    broken = steps({None: BLUE, 1: VERMILION})

    def count(identity: int, title: str, description: str, expr: str) -> Panel:
        panel = panels.numbers(identity, title, description, panels.now("A", f"{expr} or vector(0)"), width=5)
        return panel.unit(COUNT.unit).decimals(COUNT.decimals).thresholds(broken).no_value("unknown")

    runs = panels.numbers(
        1,
        "Runs with a daemon now",
        "Training runs of which at least one daemon is scraped now. The table below also has those of the time in "
        "view.",
        panels.now("A", "count(count by (run) (sidecar_node_info)) or vector(0)"),
        width=5,
    )
    return [
        runs.unit(COUNT.unit).decimals(COUNT.decimals).no_value("unknown"),
        count(
            2,
            "Runs over their limit of lag",
            "Runs of which a checkpoint waits longer than three times a usual evaluation, at least 15 minutes.",
            f"count({rule('eval_lag_seconds:max', _ANY)} > on (run) {rule('eval_lag_limit_seconds:max', _ANY)})",
        ),
        count(
            3,
            "Alerts firing",
            "Alerts about any run, or about daemons of no known run. They are below.",
            f"count({_FIRING})",
        ),
        count(
            4,
            "Checkpoints failed in view",
            "Checkpoints that will have no result, of all runs, since the beginning of the time in view.",
            f"sum({last(rule('checkpoints_failed:max', _ANY))} "
            f"- min_over_time({rule('checkpoints_failed:max', _ANY)}[$__range]))",
        ),
        panels.setup(5, width=4),
    ]


def _runs() -> Panel:
    completed = last(rule("eval_completed_timestamp_seconds:latest", _ANY))
    of_run = {
        "newest": last(rule("eval_metric:latest", _METRIC)),
        "best": last(rule("eval_best_metric:latest", _METRIC)),
        "best at step": last(rule("eval_best_step:latest", _METRIC)),
        "evaluated step": last(rule("eval_checkpoint_step:latest", _ANY)),
        "newest step": last(rule("newest_checkpoint_step:latest", _ANY)),
        "last evaluation": f"1000 * {completed}",
        "lag": rule("eval_lag_seconds:max", _ANY),
        "waiting": rule("checkpoints_pending:max", _ANY),
        "failed": last(rule("checkpoints_failed:max", _ANY)),
        "early stop": f"sidecar_early_stop{{{_ANY}}}",
        "ready nodes": rule("members:max", f'{_ANY},state="ready"'),
        "alerts": f"count by (run) ({_FIRING[:-1]},{_ANY}}})",
    }
    references = dict(zip("ABCDEFGHIJKL", of_run, strict=True))
    panel = panels.grid(
        6,
        "Runs: $metric on $eval_set",
        "One row per run of the time in view; click its name to see it. Newest and best are empty for a run without "
        "this metric or eval set, choose another one above. Lag, waiting, early stop and ready nodes are of now: empty "
        "if no daemon of the run is scraped. Early stop: whether training is told to stop; empty if that is not set.",
        *(panels.rows(ref, f"max by (run) ({of_run[name]})") for ref, name in references.items()),
    ).height(11)
    joins.join_by(panel, "run", {f"Value #{ref}": name for ref, name in references.items()})
    panel.unit(COUNT.unit).decimals(COUNT.decimals).no_value(_NO_DAEMON)
    text: panels.Properties = {"custom.cellOptions": {"type": "color-text"}}
    run = {"links": [panels.to_dashboard("Open this run", TRAINING_RUN, "${__data.fields.run}")]}
    return panels.dress(
        panel,
        {
            "run": {"unit": "string", **run},
            "newest": NUMBER.properties,
            "best": NUMBER.properties,
            "last evaluation": {"unit": "dateTimeFromNow"},
            "lag": {"unit": "s"},
            "failed": {**text, "thresholds": _from(1, ORANGE)},
            "early stop": {**text, "mappings": panels.texts({0: ("go on", BLUE), 1: ("stop", ORANGE)})},
            "alerts": {**text, "thresholds": _from(1, VERMILION)},
        },
    )


def _from(value: int, color: str) -> object:
    """Return thresholds as a field's setting."""
    return steps({None: BLUE, value: color}).build()


def _alerts() -> Panel:
    since = 'ALERTS_FOR_STATE{alertname=~"Sidecar.*"}'
    panel = panels.alerts(
        101,
        "Alerts of all runs",
        "What fires now, and since when its condition holds. The link of an alert explains it and says what to do "
        "first.",
        f"1000 * {since} and ignoring (alertstate) {_FIRING}",
        width=24,
    )
    order = ("alertname", "severity", "run", "node", "instance", "Value")
    return joins.join_alerts(panel, order, hide=("job",))


def _lag() -> Panel:
    panel = panels.lines(
        201,
        "Lag of each run",
        "How long the oldest waiting checkpoint of each run has been waiting. A saw that comes back to 0 is healthy.",
        panels.query("A", rule("eval_lag_seconds:max", _ANY), "{{run}}"),
        slopes=True,
    )
    return panel.unit("s").min(0).no_value(_NO_DAEMON)


def _evaluated() -> Panel:
    panel = panels.bars(
        202,
        "Evaluations of each run",
        "Checkpoints evaluated in each piece of the time in view. A run whose bars end has ended, hangs, or lost its "
        "daemons.",
        panels.query("A", queries.per_interval(rule("checkpoints_evaluated:max", _ANY)), "{{run}}"),
    )
    return panel.unit(COUNT.unit).decimals(COUNT.decimals).no_value(_NO_DAEMON)


def _failed() -> Panel:
    panel = panels.bars(
        203,
        "Failed attempts of each run",
        "Attempts at an evaluation that failed. One that is tried again with success costs only time.",
        panels.query("A", f"sum by (run) ({queries.per_interval(rule('plans_failed:max', _ANY))})", "{{run}}"),
    )
    return panel.unit(COUNT.unit).decimals(COUNT.decimals).no_value(_NO_DAEMON)
