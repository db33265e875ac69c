"""Keep the answer of each request in its own place, and turn all answers into the harness's numbers. Imports numpy."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from sidecar.evaluation.failures import task_error
from sidecar.evaluation.intervals import Interval
from sidecar.evaluation.metrics.metric import EvalBatch, EvalSetInfo, MetricResult, value
from sidecar.evaluation.metrics.sample import Sample, usual_interval
from sidecar.evaluation.states import GatheredBatches, PerExampleValues, SetStates, state_of
from sidecar.protocol.records import Goal

_STDERR: Final = "_stderr"
_UNFILTERED: Final = "none"


class HarnessNumbers:
    """Hold a log-likelihood and a flag for each request, or texts; implements `sidecar.metrics.Metric`.

    `begin` is called with the number of requests before their states are made. `aggregated` takes the answers to all
    requests, and returns what `lm_eval.evaluate` returns, with its `tasks` and `version`, and `estimates`: by task and
    name, a number for each document. `notes` say how the answers were computed.
    """

    name = "harness"

    def __init__(
        self,
        name: str,
        begin: Callable[[int | None], None],
        aggregated: Callable[[Sequence[Any]], Mapping[str, Any]],
        *,
        has_texts: bool,
        notes: tuple[str, ...] = (),
    ) -> None:
        self._set, self._begin, self._aggregated, self._notes = name, begin, aggregated, notes
        self._has_texts = has_texts

    def states(self, info: EvalSetInfo) -> SetStates:
        """Return new states: 16 bytes for each request on every rank, or the texts."""
        self._begin(info.examples)
        if self._has_texts:
            return {"texts": GatheredBatches(info.shard)}
        assert info.examples is not None, "the number of requests is known"
        return {"values": PerExampleValues(info.examples), "flags": PerExampleValues(info.examples)}

    def add(self, states: SetStates, batch: EvalBatch) -> None:
        """Add the answers of one batch."""
        assert batch.first is not None, "the places of requests are known"
        if self._has_texts:
            texts = state_of(states, "texts", GatheredBatches)
            content = json.dumps(batch.predictions.tolist()).encode()
            texts.put(batch.first, np.frombuffer(content, np.uint8))
            return
        for name, column in (("values", 0), ("flags", 1)):
            state = state_of(states, name, PerExampleValues)
            state.put(batch.first, batch.predictions[:, column])

    def compute(self, states: SetStates) -> MetricResult:
        """Return the harness's numbers, with intervals of means over documents."""
        results = self._aggregated(self._answers(states))
        documents = sum(each["effective"] for each in results["n-samples"].values())
        note = f"lm-eval {results['version']}: {documents:,} documents; examples are requests to the model"
        return MetricResult(dict(self._values(results)), {}, (note, *self._notes))

    def _answers(self, states: SetStates) -> list[Any]:
        """Return the answers in the order of the data, as the model of the harness returns them."""
        if self._has_texts:
            texts = state_of(states, "texts", GatheredBatches)
            return [_decoded(text) for content in texts.contents() for text in json.loads(content.tobytes())]
        values, flags = (state_of(states, name, PerExampleValues) for name in ("values", "flags"))
        return [(number, bool(flag)) for number, flag in zip(values.values().tolist(), flags.values(), strict=True)]

    def _values(self, results: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        by_task = results["results"]
        whole = self._set if self._set in by_task else next(iter(by_task)) if len(by_task) == 1 else None
        for task, numbers in by_task.items():
            prefix = "" if task == whole else f"{task}/"
            for key, number in numbers.items():
                metric, _, of_filter = key.partition(",")
                if not of_filter or isinstance(number, str):
                    continue
                try:
                    found = float(number)
                except (TypeError, ValueError):
                    raise task_error(
                        f"eval set {self._set!r}: {task} returns {number!r:.60} as {key!r}, no number"
                    ) from None
                shown = metric if of_filter == _UNFILTERED else f"{metric},{of_filter}"
                interval = self._interval(results, task, metric, of_filter)
                yield prefix + shown, value(found, _goal(results, task, metric), interval)
            for name, estimates in results["estimates"].get(task, {}).items():
                yield prefix + name, value(math.fsum(estimates) / len(estimates), "max", _interval_of_mean(estimates))

    def _interval(self, results: Mapping[str, Any], task: str, metric: str, of_filter: str) -> Interval:
        """Return the 95 % interval of a mean over documents; none for another number."""
        if task not in results["tasks"] or not _is_mean(results["tasks"][task], metric):
            return None, None
        found = [each[metric] for each in results["samples"][task] if each["filter"] == of_filter and metric in each]
        if not found or not all(isinstance(one, bool | int | float | np.number | np.bool_) for one in found):
            return None, None
        numbers = [float(one) for one in found]
        if not all(map(math.isfinite, numbers)):
            return None, None
        return _interval_of_mean(numbers)


def _interval_of_mean(numbers: Sequence[float]) -> Interval:
    binary = sum(number in (0, 1) for number in numbers)
    total, squares, cubes = (math.fsum(number**power for number in numbers) for power in (1, 2, 3))
    return usual_interval(Sample(len(numbers), total, squares, binary, cubes))


def _is_mean(task: Any, metric: str) -> bool:
    aggregation = task.aggregation().get(metric)
    return aggregation is None or getattr(aggregation, "__name__", "") == "mean"


def _goal(results: Mapping[str, Any], task: str, metric: str) -> Goal:
    if metric.endswith(_STDERR):
        return "none"
    higher = results["higher_is_better"].get(task, {}).get(metric)
    return "none" if higher is None else "max" if higher else "min"


def _decoded(text: str) -> Any:
    answer = json.loads(text)
    if isinstance(answer, str):
        return answer
    if isinstance(answer[0], str) and isinstance(answer[1], bool):  # a text, and whether it passes
        return answer[0], answer[1]
    number, flag = map(float.fromhex, answer)
    return number, bool(flag)
