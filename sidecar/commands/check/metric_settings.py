"""Compare the settings that name metrics with the numbers of a trial, which show what the task measures. Pure.

`trial` calls this. Settings that other settings contradict: `commands.ineffective_settings`.
"""

from collections.abc import Collection, Iterator, Mapping

from sidecar.commands.check.finding import Finding
from sidecar.commands.ineffective_settings import acts_on_best
from sidecar.coordination.totals import has_direction
from sidecar.protocol.records import Result, Value
from sidecar.retention.saves.example_values import is_paired_by, remedy
from sidecar.settings import Settings


def unsupported(
    settings: Settings, result: Result, eval_sets: Collection[str], columns: Mapping[str, Collection[str]]
) -> Iterator[Finding]:
    """Report each setting that the numbers of a trial do not support.

    `eval_sets`: names of all eval sets and functions of the task; a function was not called in the trial. `columns`:
    names of the columns that a worker saved, by eval set.
    """
    values = {f"{name}/{metric}": value for name, found in result.metrics.items() for metric, value in found.items()}
    untried = tuple(f"{name}/" for name in eval_sets if name not in result.metrics)
    with_direction = [name for name, value in values.items() if has_direction(value)]
    named = {"best_metric": settings.best_metric, "early_stop_metric": settings.early_stop_metric}
    for setting, metric in named.items():
        if metric is None or metric.startswith(untried) or metric in with_direction:
            continue
        others = f"these could be: {', '.join(with_direction) or 'none'}"
        trouble = f"has no direction: {_goal(metric)}" if metric in values else "is not measured by the task"
        yield _problem(f"{setting} = {metric!r} {trouble}; {others}")
    if (acts := acts_on_best(settings)) and not (with_direction or untried or any(named.values())):
        first = next(iter(values), "test/score")
        yield _problem(f"{' and '.join(acts)} can do nothing, as no metric has a direction: {_goal(first)}")
    chosen = settings.best_metric or next(iter(with_direction), None)
    if settings.best_by == "significant" and chosen is not None and chosen in values:
        yield from _noise(chosen, values[chosen], columns)


def _problem(text: str) -> Finding:
    return Finding(what="settings", ok=False, text=text)


def _goal(metric: str) -> str:
    return f"write Task(goals={{{metric!r}: 'max'}}) if larger is better, else 'min'"


def _noise(metric: str, value: Value, columns: Mapping[str, Collection[str]]) -> Iterator[Finding]:
    """Report that the noise of a metric would not be known, or not well."""
    by_set = {name: metric.removeprefix(f"{name}/") for name in columns if metric.startswith(f"{name}/")}
    if any(is_paired_by(own, columns[name]) for name, own in by_set.items()):
        return
    to_save = remedy(metric.rpartition("/")[2])
    if value.lower is None or value.upper is None:
        yield _problem(
            f"best_by = 'significant' has no effect on {metric!r}, which has no interval, while no values of examples "
            f"are saved: every better number counts. If it is a mean over examples, {to_save}"
        )
    else:
        text = (
            f"best_by = 'significant' compares {metric!r} by its intervals alone, which finds large improvements only. "
            f"To compare example by example, {to_save}"
        )
        yield Finding(what="settings", ok=True, text=text)
