"""Build the dashboard *Training run*: how good the newest checkpoint is, its progress, and the queue of evaluations."""

from typing import Final

from grafana_foundation_sdk.models import dashboard as model

from sidecar_dashboards import panels, queries
from sidecar_dashboards.dashboard import Mark, Place, assemble, choice
from sidecar_dashboards.panels import BLUE, DARK_BLUE, GREY, ORANGE, PURPLE, VERMILION, Panel, fixed, steps, texts
from sidecar_dashboards.queries import CHECKPOINT_STEP, COMPLETED, METRIC, RUN, SET_STEP, last, rule

UID: Final = "sidecar-training-run"

_VALUE: Final = rule("eval_metric:latest", METRIC)
_LOWER: Final = rule("eval_metric_lower:latest", METRIC)
_UPPER: Final = rule("eval_metric_upper:latest", METRIC)
_BEST: Final = rule("eval_best_metric:latest", METRIC)
_BEST_STEP: Final = rule("eval_best_step:latest", METRIC)
_SET_INFO: Final = rule("eval_checkpoint_info:latest", f'{RUN},eval_set="$eval_set"')
_NAMED: Final = "{{checkpoint}} · step from {{step_source}}"
_SETTLED: Final = {
    "evaluated": ("checkpoints_evaluated:max", BLUE),
    "skipped": ("checkpoints_skipped:max", GREY),
    "vanished": ("checkpoints_vanished:max", PURPLE),
    "corrupt": ("checkpoints_corrupt:max", ORANGE),
    "unseen": ("checkpoints_unseen:max", DARK_BLUE),
    "given up": ("checkpoints_failed:max", VERMILION),
}


def build() -> model.Dashboard:
    """Return the dashboard."""
    return assemble(
        UID,
        "Sidecar: training run",
        "The quality of a training run's checkpoints, as its sidecar evaluates them.",
        [
            choice("run", "Run", "label_values(sidecar_node_info, run)"),
            choice("eval_set", "Eval set", f"label_values(sidecar:eval_metric:latest{{{RUN}}}, eval_set)"),
            choice(
                "metric", "Metric", f'label_values(sidecar:eval_metric:latest{{{RUN},eval_set="$eval_set"}}, metric)'
            )
            .multi(multi=True)
            .include_all(include_all=True)
            .current(model.VariableOption(selected=True, text=["All"], value=["$__all"])),
        ],
        [_new_best(), failures()],
        [
            Place(None, _at_a_glance()),
            Place(panels.row(100, "$metric on $eval_set").repeat("metric"), _metric()),
            Place(panels.row(200, "Last checkpoints"), [_table()]),
            Place(panels.row(300, "Is evaluation keeping up?"), _keeping_up()),
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


def _at_a_glance() -> list[Panel]:
    attention = steps({None: BLUE, 1: ORANGE})
    return [
        panels.numbers(
            1,
            "Evaluated step",
            "Step of the checkpoint evaluated last: everything below that says newest is about it. It is an epoch "
            "where names count epochs, and a number in order of writing where nothing tells a step: see Evaluated "
            "checkpoint. Empty until the first evaluation has ended.",
            panels.now("A", last(CHECKPOINT_STEP)),
            width=3,
        )
        .unit("none")
        .no_value("none yet"),
        panels.numbers(
            2,
            "Steps behind",
            "Steps (epochs or checkpoints, where these are counted) from the checkpoint evaluated last to the newest "
            "one on disk. It falls back to 0 after every evaluation; if it only grows, evaluation is slower than "
            "training saves, or stands still. Negative after training went back to an earlier checkpoint, until that "
            "is evaluated.",
            panels.now("A", f"{last(rule('newest_checkpoint_step:latest'))} - {last(CHECKPOINT_STEP)}"),
            width=3,
        )
        .unit("none")
        .no_value("none yet"),
        panels.numbers(
            3,
            "Lag",
            "How long the oldest checkpoint that still waits has been waiting; 0 if none waits. Evaluation keeps up "
            "while this stays below the time between two saves. If it grows: look at Phases in the fleet's dashboard, "
            "then give it more nodes or replicas, or let it skip (the queue setting). Orange from 15 minutes on.",
            panels.now("A", rule("eval_lag_seconds:max")),
            width=3,
        )
        .unit("s")
        .decimals(0)
        .thresholds(steps({None: BLUE, 900: ORANGE}))
        .no_value("no daemon"),
        panels.numbers(
            4,
            "Waiting",
            "Complete checkpoints that still need an evaluation. 0 or 1 is normal.",
            panels.now("A", rule("checkpoints_pending:max")),
            width=3,
        )
        .unit("none")
        .thresholds(steps({None: BLUE, 3: ORANGE}))
        .no_value("no daemon"),
        panels.numbers(
            5,
            "Last evaluation",
            "Time since an evaluation was completed. Compare it with how often training saves: if nothing waits, it "
            "is training that saves nothing new.",
            panels.now("A", f"time() - {last(COMPLETED)}"),
            width=3,
        )
        .unit("s")
        .decimals(0)
        .no_value("none yet"),
        panels.numbers(
            6,
            "Evaluated",
            "Checkpoints evaluated successfully since the run began, each counted once.",
            panels.now("A", last(rule("checkpoints_evaluated:max"))),
            width=3,
        )
        .unit("none")
        .no_value("no daemon"),
        panels.numbers(
            7,
            "Given up",
            "Checkpoints that will have no result, because attempts failed too often. `sidecar history` says why; "
            "after mending the cause, `sidecar requeue` opens one again.",
            panels.now("A", last(rule("checkpoints_failed:max"))),
            width=3,
        )
        .unit("none")
        .thresholds(attention)
        .no_value("no daemon"),
        panels.numbers(
            8,
            "Alerts firing",
            "Alerts about this run and about daemons of no known run. The fleet's dashboard (link above) lists them.",
            panels.now("A", f"count({queries.ALERTS}) or vector(0)"),
            width=3,
        )
        .unit("none")
        .thresholds(steps({None: BLUE, 1: VERMILION}))
        .no_value("unknown"),
        panels.names(
            9,
            "Evaluated checkpoint",
            "The checkpoint that the newest numbers of this eval set are about, and where its step was found: in the "
            "optimizer or another variable, by step_key or step_pattern, in the name, or nowhere (order): then "
            "checkpoints are numbered in order of writing.",
            panels.now("A", queries.last_named(_SET_INFO), _NAMED),
            width=12,
        ).no_value("none yet"),
        panels.names(
            10,
            "Newest checkpoint on disk",
            "The complete checkpoint that was discovered last, and where its step was found, likewise.",
            panels.now("A", queries.last_named(rule("newest_checkpoint_info:latest")), _NAMED),
            width=12,
        ).no_value("none yet"),
    ]


def _metric() -> list[Panel]:
    return [_newest(), _best(), _better(), _verdict(), _best_checkpoint(), _over_time(), _over_step()]


def _newest() -> Panel:
    panel = (
        panels.numbers(
            101,
            "Newest",
            "The metric of the checkpoint evaluated last, and the ends of its 95 % confidence interval. Metrics that "
            "are no means over examples have no interval.",
            panels.now("A", last(_VALUE), "value"),
            panels.now("B", last(_LOWER), "from"),
            panels.now("C", last(_UPPER), "to"),
            width=8,
        )
        .unit("none")
        .decimals(4)
        .no_value("none yet")
    )
    return panels.dress(panel, {"from": fixed(GREY), "to": fixed(GREY)})


def _best() -> Panel:
    panel = (
        panels.numbers(
            102,
            "Best so far",
            "The best value of the whole run and the step that reached it, also if that was before the time "
            "in view. Empty for a metric of which nobody knows whether more or less is better.",
            panels.now("A", last(_BEST), "value"),
            panels.now("B", last(_BEST_STEP), "at step"),
            width=5,
        )
        .unit("none")
        .decimals(4)
        .no_value("no goal")
    )
    return panels.dress(panel, {"at step": {**fixed(GREY), "decimals": 0}})


def _best_checkpoint() -> Panel:
    return panels.names(
        107,
        "Best checkpoint by $metric",
        "The checkpoint that reached the best value of the run, and where its step was found: the one to keep.",
        panels.now("A", queries.last_named(rule("eval_best_info:latest", METRIC)), _NAMED),
        width=24,
    ).no_value("no goal")


def _better() -> Panel:
    return (
        panels.numbers(
            103,
            "Better by",
            "How much better the newest value is than that of the evaluation before it, and than the best before it. "
            "Above 0 is better, also where less is better (a loss). Looked up within the time in view.",
            panels.now("A", queries.better_by(queries.before(_VALUE)), "than the previous"),
            panels.now("B", queries.better_by(queries.before(_BEST)), "than the best before"),
            width=7,
        )
        .max_data_points(5000)
        .unit("none")
        .decimals(4)
        .thresholds(steps({None: ORANGE, 0: BLUE}))
        .no_value("needs two evaluations")
    )


def _verdict() -> Panel:
    verdicts = {
        0: ("worse than the best", ORANGE),
        1: ("within noise of the best", GREY),
        2: ("new best", BLUE),
    }
    return (
        panels.numbers(
            104,
            "Verdict",
            "New best: no checkpoint of the run was better. Within noise of the best: the best value lies in the "
            "newest one's 95 % interval, so the difference may be chance. Worse than the best: it does not, or there "
            "is no interval; now and then that is normal, checkpoint after checkpoint it is not.",
            panels.now("A", queries.verdict()),
            width=4,
        )
        .mappings(texts(verdicts))
        .unit("none")
        .no_value("no goal")
    )


def _over_time() -> Panel:
    panel = (
        panels.lines(
            105,
            "$metric over time",
            "The metric as evaluations were completed; the band is its 95 % interval, the dashed line the best so far. "
            "Marks show new bests and failed attempts. A value holds until the next evaluation ends.",
            panels.query("A", _UPPER, "to"),
            panels.query("B", _LOWER, "from"),
            panels.query("C", _VALUE, "value"),
            panels.query("D", _BEST, "best so far"),
            width=12,
        )
        .height(9)
        .unit("none")
        .decimals(4)
        .no_value("No evaluation has ended in this time.")
    )
    band = {**fixed(BLUE), "custom.lineWidth": 0}
    return panels.dress(
        panel,
        {
            "to": {**band, "custom.fillBelowTo": "from", "custom.fillOpacity": 25},
            "from": band,
            "value": fixed(BLUE),
            "best so far": {
                **fixed(ORANGE),
                "custom.lineStyle": {"fill": "dash", "dash": [8, 8]},
                "custom.lineWidth": 1,
            },
        },
    )


def _over_step() -> Panel:
    expr = queries.columns(
        {name: queries.by_step(series) for name, series in (("value", _VALUE), ("from", _LOWER), ("to", _UPPER))}
    )
    panel = (
        panels.over(
            "step",
            ("value", "from", "to"),
            106,
            "$metric over step",
            "One point per step evaluated in the time in view, with the ends of its 95 % interval. Use this "
            "to compare runs: it does not depend on how fast training was. If a step was evaluated twice (after a "
            "rollback), the last one counts.",
            panels.rows("A", expr),
        )
        .max_data_points(5000)
        .unit("none")
        .decimals(4)
        .no_value("No evaluation has ended in this time.")
    )
    thin = {**fixed(GREY), "custom.show": "lines", "custom.lineWidth": 1}
    panels.as_matrix(panel, "step", newest_first=False)
    return panels.dress(
        panel,
        {
            "step": {"decimals": 0, "custom.axisLabel": "step"},
            "value": fixed(BLUE),
            "from": thin,
            "to": thin,
        },
    )


def _table() -> Panel:
    per_step = {
        # Only while the set took part in the newest evaluation, because with every_nth its step may be an earlier one.
        "completed at": queries.by_step(f"(1000 * {COMPLETED} and on (run) {SET_STEP} == on (run) {CHECKPOINT_STEP})"),
        "examples": queries.by_step(rule("eval_examples:latest", f'{RUN},eval_set="$eval_set"')),
        "$1": queries.by_step(_VALUE, "metric"),
    }
    panel = (
        panels.grid(
            201,
            "Last checkpoints on $eval_set",
            "Every step evaluated in the time in view, the newest on top, with the chosen metrics. A step that is "
            "missing was skipped, failed, or followed by the next one within seconds; `sidecar history` has all.",
            panels.rows("A", queries.columns(per_step)),
        )
        .max_data_points(5000)
        .unit("none")
        .decimals(4)
        .no_value("No evaluation has ended in this time.")
    )
    panels.as_matrix(panel, "step", ("completed at", "examples"), newest_first=True)
    return panels.dress(
        panel,
        {
            "step": {"decimals": 0, "custom.width": 120},
            "completed at": {"unit": "dateTimeAsIso", "custom.width": 200},
            "examples": {"decimals": 0, "custom.width": 120},
        },
    )


def _keeping_up() -> list[Panel]:
    lag = (
        panels.lines(
            301,
            "Lag over time",
            "How long the oldest waiting checkpoint has been waiting. A saw that comes back to 0 is healthy; a line "
            "that climbs means that evaluation is too slow, cannot form a group, or has no daemon.",
            panels.query("A", rule("eval_lag_seconds:max"), "oldest waiting"),
            slopes=True,
        )
        .unit("s")
        .min(0)
        .fill_opacity(10)
        .no_value("No daemon exports this run.")
    )
    both = (
        panels.lines(
            302,
            "Newest step and evaluated step",
            "What is on disk and what is evaluated. The gap between them is work to do; a drop of the newest step is "
            "training that went back.",
            panels.query("A", rule("newest_checkpoint_step:latest"), "newest on disk"),
            panels.query("B", CHECKPOINT_STEP, "evaluated"),
        )
        .unit("none")
        .decimals(0)
        .no_value("No checkpoint has been seen in this time.")
    )
    settled = (
        panels.lines(
            303,
            "Checkpoints settled",
            "How checkpoints ended, counted since the run began; unseen: deleted before any node saw them, counted "
            "since the daemons started. Skipped: passed over on purpose (queue, every_steps "
            "and start settings) or for want of room (pin_max_bytes, keep_free_bytes). Vanished: deleted before they "
            "could be held. Corrupt: their files contradict themselves; look at the storage. Given up: see `sidecar "
            "history`.",
            *(
                panels.query(ref, rule(series), name)
                for ref, (name, (series, _)) in zip("ABCDEF", _SETTLED.items(), strict=True)
            ),
        )
        .unit("none")
        .decimals(0)
        .min(0)
        .no_value("No daemon exports this run.")
    )
    colours = {"newest on disk": fixed(GREY), "evaluated": fixed(BLUE)}
    return [
        panels.dress(lag, {"oldest waiting": fixed(DARK_BLUE)}),
        panels.dress(both, colours),
        panels.dress(settled, {name: fixed(colour) for name, (_, colour) in _SETTLED.items()}),
    ]
