"""Pieces of PromQL. All read recording rules, whose series survive a move of the publisher, unless a node is meant."""

from collections.abc import Mapping
from typing import Final

RUN: Final = 'run="$run"'
METRIC: Final = f'{RUN},eval_set="$eval_set",metric=~"$metric"'  # =~: Grafana escapes the values of a multiple choice

CHECKPOINT_STEP: Final = f"sidecar:eval_checkpoint_step:latest{{{RUN}}}"
SET_STEP: Final = f'sidecar:eval_set_checkpoint_step:latest{{{RUN},eval_set="$eval_set"}}'
COMPLETED: Final = f"sidecar:eval_completed_timestamp_seconds:latest{{{RUN}}}"
NODE_INFO: Final = f"sidecar_node_info{{{RUN}}}"
ALERTS: Final = 'ALERTS{alertstate="firing",alertname=~"Sidecar.*",run=~"$run|"}'  # some know no run


def rule(name: str, labels: str = RUN) -> str:
    """A recorded series: `rule("group_size:max")`."""
    return f"sidecar:{name}{{{labels}}}"


def last(series: str) -> str:
    """Its last value in view: what is known stays on show while daemons restart, and after a run has ended."""
    return f"last_over_time({series}[$__range])"


def last_named(info: str) -> str:
    """The one series of information that was there last, also after a run has ended: each checkpoint has its own."""
    return f"topk(1, max_over_time(timestamp({info})[$__range:$__interval]))"


def of_node(series: str) -> str:
    """A daemon's own series with the label `node`, which only its info metric has."""
    return f"{series} * on (job, instance) group_left (node) {NODE_INFO}"


def per_interval(counter: str) -> str:
    """How much it grew from one point of the panel to the next. Exact, where `increase` extrapolates."""
    return f"clamp_min({counter} - {counter} offset $__interval, 0)"


def before(series: str) -> str:
    """What it was, per evaluation, before the newest one was completed; nothing if that was before the view."""
    earlier = f"{COMPLETED} < on (run) last_over_time({COMPLETED}[$__range] @ end())"
    return f"last_over_time(({series} and on (run) ({earlier}))[$__range:$__interval])"


def better_by(before_it: str) -> str:
    """How much better the newest value is, positive whether more or less of the metric is better."""
    more, less = (
        f"max without (goal) ({last(rule('eval_metric_info:latest', METRIC + goal))})"
        for goal in (',goal="max"', ',goal="min"')
    )
    newest = last(rule("eval_metric:latest", METRIC))
    return f"({newest} - {before_it}) * on (run, eval_set, metric) ({more} or -{less})"


def verdict() -> str:
    """2: the newest is the best; 1: the best lies in its interval; 0: it is worse."""
    newest, best, lower, upper = (
        last(rule(name, METRIC))
        for name in ("eval_metric:latest", "eval_best_metric:latest", "eval_metric_lower:latest",
                     "eval_metric_upper:latest")
    )  # fmt: skip
    is_best = f"2 * ({newest} == bool {best})"
    return f"clamp_max({is_best} + ({best} >= bool {lower}) * ({best} <= bool {upper}), 2) or {is_best}"


def by_step(series: str, *labels: str) -> str:
    """One value of the eval set per training step in view, with the step as a label: its last evaluation there."""
    with_step = f'{series} * on (run) group_left (step) count_values by (run) ("step", {SET_STEP})'
    return f"max by ({', '.join((*labels, 'step'))}) (last_over_time(({with_step})[$__range:$__interval]))"


def columns(named: Mapping[str, str]) -> str:
    """Columns of one table as one query, so that one that is empty renames none of the others.

    `$1` as a name stands for the label `metric` of each series.
    """
    return " or ".join(
        f'label_replace({series}, "column", "{name}", "metric", "(.*)")' for name, series in named.items()
    )
