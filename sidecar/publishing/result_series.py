"""Name the series of all results: one sample for each number of each evaluation, at the time of its completion.

A gauge shows the newest result only, and a scrape misses one that is replaced within its interval. These series have
other names than the gauges, so that no query counts a result twice. `sidecar export` prints them and remote write sends
them. Pure.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from sidecar.coordination.totals import number_of
from sidecar.protocol.records import Checkpoint, Result

_METRIC: Final = ("run", "eval_set", "metric")

FAMILIES: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "sidecar_result": (_METRIC, "Value of a metric over all workers, one sample for each evaluation."),
    "sidecar_result_lower": (_METRIC, "Lower end of the metric's 95 % confidence interval."),
    "sidecar_result_upper": (_METRIC, "Upper end of the metric's 95 % confidence interval."),
    "sidecar_result_class": ((*_METRIC, "class"), "Value of a metric for one class."),
    "sidecar_result_slice": ((*_METRIC, "slice"), "Value of a metric for one slice."),
    "sidecar_result_examples": (("run", "eval_set"), "Examples counted, each once."),
    "sidecar_result_step": (("run", "eval_set"), "Training step of the checkpoint."),
}
"""Labels and help texts of the families."""


class ResultSample(NamedTuple):
    """Hold one number of one evaluation: family, values of its labels, value."""

    family: str
    labels: tuple[str, ...]
    value: float


def result_samples(run: str, checkpoint: Checkpoint, result: Result) -> Iterator[ResultSample]:
    """Yield the samples of an evaluation. Series are never repeated."""
    for eval_set, metrics in result.metrics_of_examples():
        for name, value in metrics.items():
            yield ResultSample("sidecar_result", (run, eval_set, name), number_of(value))
            if value.lower is not None:
                yield ResultSample("sidecar_result_lower", (run, eval_set, name), value.lower)
            if value.upper is not None:
                yield ResultSample("sidecar_result_upper", (run, eval_set, name), value.upper)
        yield from _samples_of_parts(run, eval_set, result)
        if (examples := result.counted().get(eval_set)) is not None:
            yield ResultSample("sidecar_result_examples", (run, eval_set), examples)
        if checkpoint.step is not None:
            yield ResultSample("sidecar_result_step", (run, eval_set), checkpoint.step)


def _samples_of_parts(run: str, eval_set: str, result: Result) -> Iterator[ResultSample]:
    """Yield the samples of the classes and slices of an eval set."""
    for name, classes in result.classes.get(eval_set, {}).items():
        for label, value in classes.items():
            yield ResultSample("sidecar_result_class", (run, eval_set, name, label), number_of(value))
    for label, one in result.slices.get(eval_set, {}).items():
        for name, value in one.metrics.items():
            yield ResultSample("sidecar_result_slice", (run, eval_set, name, label), number_of(value))
