"""Build the panels of one metric: how good the newest checkpoint is, the best one, and the curve."""

from collections.abc import Mapping
from typing import Final, TypeVar

from grafana_foundation_sdk.builders import bargauge, timeseries
from grafana_foundation_sdk.models.common import LineInterpolation, VisibilityMode

from sidecar_dashboards import joins, panels, queries
from sidecar_dashboards.panels import (
    BLUE,
    COUNT,
    GREY,
    NUMBER,
    ORANGE,
    VERMILION,
    Panel,
    Properties,
    fixed,
    steps,
    texts,
)
from sidecar_dashboards.queries import EVAL_SET, last, rule

_NAMED: Final = "{{checkpoint}} · step from {{step_source}}"
_NO_RESULT: Final = "No evaluation has ended in this time."
_NO_CLASSES: Final = "This metric has no numbers by class."
_NO_SLICES: Final = "No slices of this metric, or it has no direction."
_MOST_SLICES: Final = 20
_WORST: Final = "worst slice"
_P = TypeVar("_P", bargauge.Panel, timeseries.Panel)
_DASHED: Final = {"fill": "dash", "dash": [8, 8]}
_EVERY: Final = "Results shown, above, says whether each evaluation has a point."


class MetricPanels:
    """Build the panels of the metric in a variable of the dashboard.

    Args:
        variable: The variable's name.
        first: The number of the heading; those of the panels follow it.
    """

    def __init__(self, variable: str, first: int) -> None:
        self._name = f"${variable}"
        self._labels = f'{EVAL_SET},metric=~"${variable}"'
        self._first = first

    def all(self) -> list[Panel]:
        """Return all panels."""
        of_newest = [self._newest(), self._best(), self._better(), self._verdict(), self._best_checkpoint()]
        by_part = [self._classes(), self._classes_over_time(), self._slices(), self._slices_over_time()]
        return [*of_newest, *self._curves(), *by_part]

    def main(self) -> list[Panel]:
        """Return the newest value, the best one and the curves."""
        return [self._newest(), self._best(), self._verdict(), *self._curves()]

    def _gauge(self, name: str) -> str:
        return last(rule(f"{name}:latest", self._labels))

    def _curves(self) -> list[Panel]:
        return [self._over_step(), self._over_time()]

    def _newest(self) -> Panel:
        panel = panels.numbers(
            self._first + 1,
            f"Newest {self._name}",
            "The metric of the checkpoint evaluated last, and the ends of its 95 % confidence interval. Metrics that "
            "are not means over examples have no interval.",
            panels.now("A", self._gauge("eval_metric"), "value"),
            panels.now("B", self._gauge("eval_metric_lower"), "from"),
            panels.now("C", self._gauge("eval_metric_upper"), "to"),
            width=8,
        )
        panel.unit(NUMBER.unit).decimals(NUMBER.decimals).no_value("none yet")
        return panels.dress(panel, {"from": fixed(GREY), "to": fixed(GREY)})

    def _best(self) -> Panel:
        panel = panels.numbers(
            self._first + 2,
            f"Best {self._name} so far",
            "The best value of the whole run and the step that reached it, also if that was before the time in view. "
            "Empty for a metric of which it is not known whether more or less is better.",
            panels.now("A", self._gauge("eval_best_metric"), "value"),
            panels.now("B", self._gauge("eval_best_step"), "at step"),
            width=5,
        )
        panel.unit(NUMBER.unit).decimals(NUMBER.decimals).no_value("no goal")
        return panels.dress(panel, {"at step": {**fixed(GREY), **COUNT.properties}})

    def _better(self) -> Panel:
        panel = panels.numbers(
            self._first + 3,
            "Better by",
            "How much better the newest value is than that of the evaluation before it, and than the best before it. "
            "Above 0 is better, also where less is better (a loss). Rules remember both numbers, so the time in view "
            "does not matter; they follow an evaluation within 10 s.",
            panels.now("A", queries.better_than_previous(self._labels), "than the previous"),
            panels.now("B", queries.better_than_best_before(self._labels), "than the best before"),
            width=7,
        )
        panel.thresholds(steps({None: ORANGE, 0: BLUE}))
        return panel.unit(NUMBER.unit).decimals(NUMBER.decimals).no_value("needs two evaluations")

    def _verdict(self) -> Panel:
        verdicts = {
            0: ("worse than the best", ORANGE),
            1: ("within noise of the best", GREY),
            2: ("new best", BLUE),
        }
        names = ("eval_metric", "eval_best_metric", "eval_metric_lower", "eval_metric_upper")
        panel = panels.numbers(
            self._first + 4,
            f"Verdict on {self._name}",
            "New best: no checkpoint of the run was better. Within noise of the best: the best value lies in the "
            "newest one's 95 % interval, so the difference may be chance. Worse than the best: it does not, or there "
            "is no interval; now and then that is normal, checkpoint after checkpoint it is not.",
            panels.now("A", queries.verdict(*map(self._gauge, names))),
            width=4,
        )
        return panel.mappings(texts(verdicts)).unit("none").no_value("no goal")

    def _best_checkpoint(self) -> Panel:
        return panels.names(
            self._first + 7,
            f"Best checkpoint by {self._name}",
            "The checkpoint that reached the best value of the run, and where its step was found: the one to keep.",
            panels.now("A", queries.last_named(rule("eval_best_info:latest", self._labels)), _NAMED),
            width=24,
        ).no_value("no goal")

    def _over_step(self) -> Panel:
        panel = panels.over_step(
            self._first + 6,
            f"{self._name} over step",
            "One point per step evaluated in the time in view; the band is its 95 % interval. It does not depend on "
            "how fast training was. If a step was evaluated twice (after a rollback), the last one counts. Where "
            f"names have no step, checkpoints are numbered in order of writing. {_EVERY}",
            panels.rows("A", queries.samples("result_upper", self._labels)),
            panels.rows("B", queries.samples("result_lower", self._labels)),
            panels.rows("C", queries.samples("result", self._labels)),
            panels.rows("D", queries.samples("result_step", EVAL_SET)),
        )
        joins.join_results(panel, {"A": "to", "B": "from", "C": "value", "D": "step"})
        panel.unit(NUMBER.unit).decimals(NUMBER.decimals).no_value(_NO_RESULT)
        return panels.dress(panel, {"step": panels.STEP_AXIS, **_band(), "value": fixed(BLUE)})

    def _over_time(self) -> Panel:
        panel = panels.lines(
            self._first + 5,
            f"{self._name} over time",
            "The metric at the times when evaluations were completed; the band is its 95 % interval, the dashed "
            f"line the best so far. Marks show new bests, failed attempts and changes of the data. {_EVERY}",
            panels.now("A", queries.samples("result_upper", self._labels), "to"),
            panels.now("B", queries.samples("result_lower", self._labels), "from"),
            panels.now("C", queries.samples("result", self._labels), "value"),
            panels.query("D", rule("eval_best_metric:latest", self._labels), "best so far"),
            width=12,
        )
        panel.height(9).span_nulls(span_nulls=True).show_points(VisibilityMode.ALWAYS)
        panel.unit(NUMBER.unit).decimals(NUMBER.decimals).no_value(_NO_RESULT)
        best = {
            **fixed(ORANGE),
            "custom.lineStyle": _DASHED,
            "custom.lineWidth": 1,
            "custom.showPoints": VisibilityMode.NEVER.value,
        }
        return panels.dress(panel, {**_band(), "value": fixed(BLUE), "best so far": best})

    def _classes(self) -> Panel:
        panel = panels.by_class(
            self._first + 8,
            f"{self._name} by class",
            "The newest number of each class, for metrics that have one per class and up to 50 classes. A short bar "
            "is a class that the model does not know well.",
            panels.now("A", self._gauge("eval_class_metric"), "{{class}}"),
            width=12,
        )
        return _numbers(panel, _NO_CLASSES)

    def _classes_over_time(self) -> Panel:
        panel = panels.lines(
            self._first + 9,
            f"{self._name} by class over time",
            "The number of each class as evaluations were completed: a class that falls while the whole rises is being "
            "forgotten. Empty for a metric without numbers by class.",
            panels.query("A", rule("eval_class_metric:latest", self._labels), "{{class}}"),
            width=12,
        )
        return _numbers(panel.height(9), _NO_CLASSES)

    def _slices(self) -> Panel:
        panel = panels.by_class(
            self._first + 10,
            f"{self._name} by slice",
            f"The newest numbers of the {_MOST_SLICES} worst slices. A slice that is far behind the others is a kind "
            "of examples that the model does not know well.",
            panels.now("A", queries.worst_slices(self._labels, _MOST_SLICES), "{{slice}}"),
            width=12,
        )
        return _numbers(panel, _NO_SLICES)

    def _slices_over_time(self) -> Panel:
        panel = panels.lines(
            self._first + 11,
            f"{self._name} by slice over time",
            "The slices that are the worst now, and the metric worst_slice_… (dashed): the number of the worst slice "
            "of each evaluation. An alert may watch it, and best_metric may name it.",
            panels.query("A", queries.worst_slices(self._labels, _MOST_SLICES), "{{slice}}"),
            panels.query("B", rule("eval_metric:latest", f'{EVAL_SET},metric=~"worst_slice_{self._name}"'), _WORST),
            width=12,
        )
        dashed = {**fixed(VERMILION), "custom.lineStyle": _DASHED}
        return panels.dress(_numbers(panel.height(9), _NO_SLICES), {_WORST: dashed})


def _numbers(panel: _P, if_none: str) -> _P:
    """Return a panel with the unit and digits of results, and with words for the case that there are none."""
    return panel.unit(NUMBER.unit).decimals(NUMBER.decimals).no_value(if_none)


def _band() -> Mapping[str, Properties]:
    """Return the looks of an interval: the area between two lines that are not drawn."""
    invisible = {
        **fixed(BLUE),
        "custom.lineWidth": 0,
        "custom.showPoints": VisibilityMode.NEVER.value,
        "custom.lineInterpolation": LineInterpolation.LINEAR.value,
    }
    return {"to": {**invisible, "custom.fillBelowTo": "from", "custom.fillOpacity": 25}, "from": invisible}
