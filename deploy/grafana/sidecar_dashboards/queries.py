"""Build pieces of PromQL. They read recording rules, which survive a move of the publisher, or a node's own series."""

from collections.abc import Mapping
from typing import Final

RUN: Final = 'run="$run"'
METRIC: Final = f'{RUN},eval_set="$eval_set",metric=~"$metric"'  # =~: Grafana escapes the values of a multiple choice

CHECKPOINT_STEP: Final = f"sidecar:eval_checkpoint_step:latest{{{RUN}}}"
SET_STEP: Final = f'sidecar:eval_set_checkpoint_step:latest{{{RUN},eval_set="$eval_set"}}'
COMPLETED: Final = f"sidecar:eval_completed_timestamp_seconds:latest{{{RUN}}}"
NODE_INFO: Final = f"sidecar_node_info{{{RUN}}}"
ALERTS: Final = 'ALERTS{alertstate="firing",alertname=~"Sidecar.*",run=~"$run|"}'  # some have no run


def rule(name: str, labels: str = RUN) -> str:
    """Return a recorded series: `rule("group_size:max")`."""
    return f"sidecar:{name}{{{labels}}}"


def last(series: str) -> str:
    """Return the last value in view, which is also shown while daemons restart, and after a run has ended."""
    return f"last_over_time({series}[$__range])"


def last_named(info: str) -> str:
    """Return the newest series of an info metric, which has one for each checkpoint, also after a run has ended."""
    return f"topk(1, max_over_time(timestamp({info})[$__range:$__interval]))"


def of_node(series: str) -> str:
    """Return a daemon's series with the label `node`, which only its info metric has."""
    return f"{series} * on (job, instance) group_left (node) {NODE_INFO}"


def per_interval(counter: str) -> str:
    """Return how much a counter grew between two points of the panel, exactly, without `increase`'s extrapolation."""
    return f"clamp_min({counter} - {counter} offset $__interval, 0)"


def before(series: str) -> str:
    """Return the last value before the newest evaluation was completed; nothing if that was before the view."""
    earlier = f"{COMPLETED} < on (run) last_over_time({COMPLETED}[$__range] @ end())"
    return f"last_over_time(({series} and on (run) ({earlier}))[$__range:$__interval])"


def better_by(before_it: str) -> str:
    """Return how much better the newest value is: positive if better, whether the goal is max or min."""
    more, less = (
        f"max without (goal) ({last(rule('eval_metric_info:latest', METRIC + goal))})"
        for goal in (',goal="max"', ',goal="min"')
    )
    newest = last(rule("eval_metric:latest", METRIC))
    return f"({newest} - {before_it}) * on (run, eval_set, metric) ({more} or -{less})"


def verdict() -> str:
    """Return 2 if the newest value is the best, 1 if the best lies in its interval, and 0 if it is worse."""
    newest, best, lower, upper = (
        last(rule(name, METRIC))
        for name in ("eval_metric:latest", "eval_best_metric:latest", "eval_metric_lower:latest",
                     "eval_metric_upper:latest")
    )  # fmt: skip
    is_best = f"2 * ({newest} == bool {best})"
    return f"clamp_max({is_best} + ({best} >= bool {lower}) * ({best} <= bool {upper}), 2) or {is_best}"


def by_step(series: str, *labels: str) -> str:
    """Return the last value of the eval set for each training step in view, with the step as a label."""
    with_step = f'{series} * on (run) group_left (step) count_values by (run) ("step", {SET_STEP})'
    return f"max by ({', '.join((*labels, 'step'))}) (last_over_time(({with_step})[$__range:$__interval]))"


def columns(named: Mapping[str, str]) -> str:
    """Return the columns of a table as one query, so that an empty column does not rename the others.

    `$1` as a name stands for the label `metric` of each series.
    """
    return " or ".join(
        f'label_replace({series}, "column", "{name}", "metric", "(.*)")' for name, series in named.items()
    )
