"""Build pieces of PromQL. They read recording rules, which survive a move of the publisher, or a node's own series."""

from typing import Final

RUN: Final = 'run="$run"'
EVAL_SET: Final = f'{RUN},eval_set="$eval_set"'
METRIC: Final = f'{EVAL_SET},metric=~"$metric"'  # =~: Grafana escapes the values of a multiple choice

CHECKPOINT_STEP: Final = f"sidecar:eval_checkpoint_step:latest{{{RUN}}}"
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
    """Return each run's newest series of an info metric, which has one for each checkpoint, also after its end.

    A subquery ends up to an interval before now, so it is asked only if there is no series now.
    """
    earlier = f"max_over_time(timestamp({info})[$__range:$__interval])"
    return f"topk by (run) (1, timestamp({info}) or {earlier} unless on (run) {info})"


def of_node(series: str) -> str:
    """Return a daemon's series with the label `node`, which only its info metric has."""
    return f"{series} * on (job, instance) group_left (node) {NODE_INFO}"


def per_interval(counter: str) -> str:
    """Return how much a counter grew between two points of the panel, exactly, without `increase`'s extrapolation."""
    return f"clamp_min({counter} - {counter} offset $__interval, 0)"


def samples(family: str, labels: str) -> str:
    """Return every sample in view of the results, each with the time of its evaluation: `samples("result", METRIC)`.

    They come from the daemons (remote write), or from rules that see the newest result of each scrape.
    """
    return f'{{__name__=~"sidecar_{family}|sidecar:{family}:sampled",{labels}}}[$__range]'


def every_result(run: str = RUN) -> str:
    """Return 2 if daemons send every result, 1 if some are on their way, and 0 if Prometheus sees scrapes alone."""
    sent = f"max(present_over_time(sidecar_result_step{{{run}}}[$__range]))"
    waiting = f'sum(max by (run) (sidecar_sink_pending_results{{{run},sink="remote_write"}}))'
    return f"{sent} + ({waiting} == bool 0) or 2 * {sent} or vector(0)"


def setup() -> str:
    """Return 4 if rules of both files are there, 3 without alerts, 2 without recording rules, 0 without daemons."""
    stages = {4: "sidecar:daemon_seen_timestamp_seconds:max", 3: "sidecar:publishers:sum", 2: "sidecar_node_info"}
    found = {stage: f"max(present_over_time({series}[$__range]))" for stage, series in stages.items()}
    return f"(4 * {found[4]} * {found[3]}) or 3 * {found[3]} or 2 * {found[2]} or vector(0)"


def better_than_previous(labels: str) -> str:
    """Return how much better the newest value is than the one before: of the results in view, else as rules saw it."""
    newest, previous = (last(rule(name, labels)) for name in ("eval_metric:latest", "eval_metric:previous"))
    return _goodness(f"(idelta(sidecar_result{{{labels}}}[$__range]) or {newest} - {previous})", labels)


def better_than_best_before(labels: str) -> str:
    """Return how much better the newest value is than the best before it."""
    newest, best = (last(rule(name, labels)) for name in ("eval_metric:latest", "eval_best_metric:previous"))
    return _goodness(f"({newest} - {best})", labels)


def _goodness(growth: str, labels: str, group: str = "") -> str:
    """Return a growth as it is where the goal is max, and its opposite where it is min."""
    more, less = (
        f"max without (goal) ({last(rule('eval_metric_info:latest', labels + goal))})"
        for goal in (',goal="max"', ',goal="min"')
    )
    return f"{growth} * on (run, eval_set, metric){group} ({more} or -{less})"


def worst_slices(labels: str, most: int) -> str:
    """Return the newest numbers of the slices that are the worst at the end of the time in view."""
    newest = last(rule("eval_slice_metric:latest", labels))
    goodness = _goodness(newest.replace("]", "] @ end()"), labels, " group_left ()")
    return f"{newest} and on (run, eval_set, metric, slice) bottomk by (run, eval_set, metric) ({most}, {goodness})"


def verdict(newest: str, best: str, lower: str, upper: str) -> str:
    """Return 2 if the newest value is the best, 1 if the best lies in its interval, and 0 if it is worse."""
    is_best = f"2 * ({newest} == bool {best})"
    return f"clamp_max({is_best} + ({best} >= bool {lower}) * ({best} <= bool {upper}), 2) or {is_best}"
