"""Build the dashboard *Training run*: how good the newest checkpoint is, its progress, and the queue of evaluations."""

from typing import Final

from grafana_foundation_sdk.builders import stat
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.common import BigValueTextMode

from sidecar_dashboards import joins, panels, queries
from sidecar_dashboards.dashboard import TRAINING_RUN, Mark, Place, assemble, choice, metrics, newest_runs
from sidecar_dashboards.metric import MetricPanels
from sidecar_dashboards.panels import (
    BLUE,
    COUNT,
    DARK_BLUE,
    GREY,
    NUMBER,
    ORANGE,
    PURPLE,
    VERMILION,
    YELLOW,
    Panel,
    fixed,
    steps,
)
from sidecar_dashboards.queries import CHECKPOINT_STEP, COMPLETED, EVAL_SET, RUN, last, rule

_BEST_STEP: Final = rule("eval_best_step:latest", f'{EVAL_SET},metric=~"$metric|$others"')
_SET_INFO: Final = rule("eval_checkpoint_info:latest", EVAL_SET)
_NAMED: Final = "{{checkpoint}} · step from {{step_source}}"
_SETTLED: Final = {
    "evaluated": ("checkpoints_evaluated:max", BLUE),
    "skipped": ("checkpoints_skipped:max", GREY),
    "vanished": ("checkpoints_vanished:max", PURPLE),
    "corrupt": ("checkpoints_corrupt:max", ORANGE),
    "unseen": ("checkpoints_unseen:max", DARK_BLUE),
    "failed for good": ("checkpoints_failed:max", VERMILION),
}


def build() -> model.Dashboard:
    """Return the dashboard."""
    recorded = f'label_values(sidecar:eval_metric:latest{{{EVAL_SET},metric!="$metric"}}, metric)'
    return assemble(
        TRAINING_RUN,
        "Sidecar: training run",
        "The quality of a training run's checkpoints, as its sidecar evaluates them.",
        [
            newest_runs(),
            choice("eval_set", "Eval set", f"label_values(sidecar:eval_metric:latest{{{RUN}}}, eval_set)"),
            metrics(EVAL_SET),
            choice("others", "More metrics", recorded)
            .multi(multi=True)
            .include_all(include_all=True)
            .current(model.VariableOption(selected=True, text=["All"], value=["$__all"])),
        ],
        [_new_best(), failures(), _data_changed()],
        [
            Place(None, _at_a_glance()),
            Place(panels.row(100, "$metric on $eval_set"), MetricPanels("metric", 100).all()),
            Place(
                panels.row(200, "$others on $eval_set").repeat("others"),
                MetricPanels("others", 200).main(),
                closed=True,
            ),
            Place(panels.row(300, "Last checkpoints and the data"), [_table(), _nonfinite()], "how-to/data"),
            Place(panels.row(400, "Is evaluation keeping up?"), _keeping_up(), "how-to/choose-checkpoints"),
        ],
    )


def failures() -> Mark:
    """Return the marks of failed attempts."""
    grown = queries.per_interval(rule("plans_failed:max"))
    why = "Run {{run}}; `sidecar history` says why."
    return Mark("Failed attempts", VERMILION, f"{grown} > 0", "Attempt failed: {{kind}}", why, "kind")


def _new_best() -> Mark:
    """Return the marks of evaluations that improved the best value."""
    with_step = f'count_values by (run, eval_set, metric) ("step", {_BEST_STEP})'
    changed = f"{with_step} and on (run, eval_set, metric) changes({_BEST_STEP}[$__interval]) > 0"
    return Mark("New best", BLUE, changed, "New best {{metric}}", "Step {{step}} on {{eval_set}}", "metric")


def _data_changed() -> Mark:
    """Return the marks of evaluations whose eval set held other data than before."""
    grown = queries.per_interval(rule("data_changes:max", EVAL_SET))
    text = "Numbers before and after this moment are about other data, so do not compare them."
    return Mark("Data changed", YELLOW, f"{grown} > 0", "The data of {{eval_set}} changed", text, "eval_set")


def _at_a_glance() -> list[Panel]:
    attention = steps({None: BLUE, 1: ORANGE})
    lag, limit = rule("eval_lag_seconds:max"), rule("eval_lag_limit_seconds:max")

    def count(identity: int, title: str, description: str, expr: str) -> stat.Panel:
        panel = panels.numbers(identity, title, description, panels.now("A", expr), width=3)
        return panel.unit(COUNT.unit).decimals(COUNT.decimals).no_value("no daemon")

    seconds_since = panels.numbers(
        5,
        "Time since last evaluation",
        "Time since an evaluation was completed. Compare it with how often training saves: if nothing waits, training "
        "saves nothing new.",
        panels.now("A", f"time() - {last(COMPLETED)}"),
        width=3,
    )
    lag_now = panels.numbers(
        3,
        "Lag",
        "How long the oldest checkpoint that still waits has been waiting; 0 if none waits. Orange from the limit of "
        "the alert SidecarEvaluationLagging on: three times a usual evaluation, at least 15 minutes. Then look at "
        "Phases in the fleet's dashboard, and give it more nodes or replicas, or let it skip (the queue setting).",
        panels.now("A", f"{lag} <= on (run) {limit}", "within its limit"),
        panels.now("B", f"{lag} > on (run) {limit}", "over its limit"),
        width=3,
    )
    panels.dress(lag_now, {"within its limit": fixed(BLUE), "over its limit": fixed(ORANGE)})
    return [
        count(
            1,
            "Evaluated step",
            "Step of the checkpoint evaluated last: everything below that says newest is about it. It is an epoch "
            "where names count epochs, and a number in order of writing where nothing tells a step: see Evaluated "
            "checkpoint. Empty until the first evaluation has ended.",
            last(CHECKPOINT_STEP),
        ).no_value("none yet"),
        count(
            2,
            "Steps behind",
            "Steps (epochs or checkpoints, where these are counted) from the checkpoint evaluated last to the newest "
            "one on disk. It falls back to 0 after every evaluation; if it only grows, evaluation is slower than "
            "training saves, or stands still. Negative after training went back to an earlier checkpoint, until that "
            "is evaluated.",
            f"{last(rule('newest_checkpoint_step:latest'))} - {last(CHECKPOINT_STEP)}",
        ).no_value("none yet"),
        lag_now.unit("s").decimals(0).text_mode(BigValueTextMode.VALUE).no_value("no daemon"),
        count(
            4,
            "Checkpoints waiting",
            "Complete checkpoints that still need an evaluation. 0 or 1 is normal.",
            rule("checkpoints_pending:max"),
        ).thresholds(steps({None: BLUE, 3: ORANGE})),
        seconds_since.unit("s").decimals(0).no_value("none yet"),
        count(
            6,
            "Checkpoints evaluated",
            "Checkpoints evaluated successfully since the run began, each counted once.",
            last(rule("checkpoints_evaluated:max")),
        ),
        count(
            7,
            "Checkpoints failed",
            "Checkpoints that will have no result, because attempts failed too often. `sidecar history` says why; "
            "after fixing the cause, `sidecar requeue` opens one again.",
            last(rule("checkpoints_failed:max")),
        ).thresholds(attention),
        count(
            8,
            "Alerts firing",
            "Alerts about this run and about daemons of no known run. The fleet's dashboard (link above) lists them.",
            f"count({queries.ALERTS}) or vector(0)",
        ).thresholds(steps({None: BLUE, 1: VERMILION})),
        panels.names(
            9,
            "Evaluated checkpoint",
            "The checkpoint that the newest numbers of this eval set are about, and where its step was found: in the "
            "optimizer or another variable, by step_key or step_pattern, in the name, or nowhere (order): then "
            "checkpoints are numbered in order of writing.",
            panels.now("A", queries.last_named(_SET_INFO), _NAMED),
            width=8,
        ).no_value("none yet"),
        panels.names(
            10,
            "Newest checkpoint on disk",
            "The complete checkpoint that was discovered last, and where its step was found, likewise.",
            panels.now("A", queries.last_named(rule("newest_checkpoint_info:latest")), _NAMED),
            width=8,
        ).no_value("none yet"),
        _early_stop(),
        panels.setup(11, width=3).height(3),
        panels.results_shown(12, RUN, width=3).height(3),
    ]


def _early_stop() -> Panel:
    panel = panels.numbers(
        13,
        "Early stop",
        "Whether the signal to stop training is there: the metric of early_stop_metric did not improve for "
        "early_stop_patience evaluations. Training looks for it, and decides. Off: early_stop_patience is not set, or "
        "no daemon publishes.",
        panels.now("A", f"max(sidecar_early_stop{{{RUN}}})"),
        width=2,
    ).height(3)
    said = {0: ("go on", BLUE), 1: ("stop", ORANGE)}
    return panel.mappings(panels.texts(said)).unit("none").no_value("off")


def _table() -> Panel:
    panel = panels.grid(
        301,
        "Evaluations on $eval_set",
        "Every evaluation in the time in view, the newest on top, with all metrics. An evaluation that is missing "
        "failed, or followed another one within a scrape interval (see Results shown). `sidecar history` has all.",
        panels.rows("A", queries.samples("result", EVAL_SET)),
        panels.rows("B", queries.samples("result_step", EVAL_SET)),
        panels.rows("C", queries.samples("result_examples", EVAL_SET)),
        width=16,
    ).height(9)
    joins.join_evaluations(panel, "A", {"B": "step", "C": "examples"})
    panel.unit(NUMBER.unit).decimals(NUMBER.decimals).no_value("No evaluation has ended in this time.")
    return panels.dress(
        panel,
        {
            "step": {**COUNT.properties, "custom.width": 120},
            "completed at": {"unit": "dateTimeAsIso", "custom.width": 200},
            "examples": {**COUNT.properties, "custom.width": 120},
        },
    )


def _nonfinite() -> Panel:
    panel = panels.lines(
        302,
        "Examples with NaN or infinity",
        "Examples whose inputs or predictions held NaN or infinite numbers, by the place. It should be empty: the "
        "place never held any. Predictions: training diverges. Inputs: the data is broken; nonfinite says what "
        "happens then.",
        panels.query("A", rule("eval_nonfinite_examples:latest", EVAL_SET), "{{place}}"),
        width=8,
    )
    panel.height(9).min(0).unit(COUNT.unit).decimals(COUNT.decimals)
    return panel.no_value("No place ever held such numbers.")


def _keeping_up() -> list[Panel]:
    lag = (
        panels.lines(
            401,
            "Lag over time",
            "How long the oldest waiting checkpoint has been waiting. A saw that comes back to 0 is healthy; a line "
            "that climbs means that evaluation is too slow, cannot form a group, or has no daemon. The dashed line "
            "is the limit of the alert SidecarEvaluationLagging.",
            panels.query("A", rule("eval_lag_seconds:max"), "oldest waiting"),
            panels.query("B", rule("eval_lag_limit_seconds:max"), "limit of the alert"),
            slopes=True,
        )
        .unit("s")
        .min(0)
        .fill_opacity(10)
        .no_value("No daemon exports this run.")
    )
    both = (
        panels.lines(
            402,
            "Newest step and evaluated step",
            "What is on disk and what is evaluated. The gap between them is work to do; a drop of the newest step is "
            "training that went back.",
            panels.query("A", rule("newest_checkpoint_step:latest"), "newest on disk"),
            panels.query("B", CHECKPOINT_STEP, "evaluated"),
        )
        .unit(COUNT.unit)
        .decimals(COUNT.decimals)
        .no_value("No checkpoint has been seen in this time.")
    )
    settled = (
        panels.lines(
            403,
            "How checkpoints ended",
            "How checkpoints ended, counted since the run began; unseen: deleted before any node saw them, counted "
            "since the daemons started. Skipped: passed over on purpose (queue, every_steps and start settings) or "
            "for want of room (pin_max_bytes, keep_free_bytes). Vanished: deleted before they could be held. "
            "Corrupt: their files contradict themselves; look at the storage. Failed for good: see `sidecar history`.",
            *(
                panels.query(ref, rule(series), name)
                for ref, (name, (series, _)) in zip("ABCDEF", _SETTLED.items(), strict=True)
            ),
        )
        .unit(COUNT.unit)
        .decimals(COUNT.decimals)
        .min(0)
        .no_value("No daemon exports this run.")
    )
    dashed = {**fixed(ORANGE), "custom.lineStyle": {"fill": "dash", "dash": [8, 8]}, "custom.fillOpacity": 0}
    colours = {"newest on disk": fixed(GREY), "evaluated": fixed(BLUE)}
    return [
        panels.dress(lag, {"oldest waiting": fixed(DARK_BLUE), "limit of the alert": dashed}),
        panels.dress(both, colours),
        panels.dress(settled, {name: fixed(colour) for name, (_, colour) in _SETTLED.items()}),
    ]
