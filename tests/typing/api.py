"""The public API as users write it: never run, only type-checked."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sidecar import EvalSet, Shard, Task, results
from sidecar.data import npz, tfrecords
from sidecar.keras import SidecarEvaluator, SidecarEvaluatorModelExport
from sidecar.metrics import AUC, R2, Accuracy, ConfusionMatrix, Mean, Metric, Sample, TopK
from sidecar.sinks import Evaluation, Sink, SinkRefusedError, SinkUnavailableError


def build_model() -> Any:
    """A model of any framework."""


def arrays() -> tuple[list[float], list[int]]:
    """Arrays, or anything that becomes a dataset."""
    return [0.5], [1]


def own_part(shard: Shard) -> Sequence[float]:
    """A source that divides the data itself."""
    return [float(index) for index in range(10) if shard.owns(index)]


smallest: Task = Task(build_model=build_model, eval_sets={"test": arrays})
stored: Task = Task(None, {"test": arrays}, metrics=lambda: [Accuracy()], signature="serving_default")
whole: Task = Task(
    build_model,
    {
        "test": EvalSet(arrays, prepare=lambda x, y: (x, y), examples=1),
        "own": EvalSet(own_part, every_nth=10),
        "plain": arrays,
    },
    metrics=lambda: [object()],
    loss=object(),
    batch_size=64,
    checkpoint=lambda model: model,
    restore=lambda model, path: model.load(path),
    predictions=lambda _x, _y, predictions: {"guess": predictions.argmax(axis=1)},
)
files: Task = Task(
    build_model,
    {
        "npz": npz("test.npz", "x", "y"),
        "records": EvalSet(
            tfrecords(["a.tfrecord", Path("b")], compression="GZIP", by="file"), prepare=lambda r: (r, r)
        ),
    },
)
loaded: Task = Task(
    load=lambda path: Path(path).read_bytes(),
    predict=lambda model, x: x * len(model),
    eval_sets={"test": npz("test.npz", "x", "y")},
    metrics=lambda: [Accuracy()],
    batch_size=64,
)
joined: dict[str, dict[str, Any]] = dict(results.read("ckpts/.sidecar/run/evaluations/ckpt-5@0123").predictions)


def twice_as_wide(sample: Sample) -> tuple[float, float]:
    """An interval of one's own."""
    return sample.total / sample.count - 0.5, sample.total / sample.count + 0.5


def distance(y: NDArray[np.float32], predictions: NDArray[np.float32]) -> NDArray[np.float32]:
    """One value for each example."""
    return np.asarray(np.abs(y - predictions).max(axis=-1))


built_in: list[Metric] = [
    Accuracy("one_hot", name="top", interval=twice_as_wide),
    TopK(5),
    ConfusionMatrix(["cat", "dog"], zero_division=float("nan")),
    AUC(positive=1, max_examples=1000),
    Mean(distance, name="distance", goal="min"),
    R2(),
]


export = SidecarEvaluatorModelExport("best/m-{epoch}", Path("ckpts/m-{epoch}.keras"), monitor="accuracy", mode="max")
evaluator: SidecarEvaluator = SidecarEvaluator(object(), arrays(), Path("ckpts"), None, 10, [export], every=True)
evaluator.start()
accuracies: list[float] = [result.metrics["accuracy"] for result in evaluator.results]


class OwnSink:
    """A sink of another package."""

    name = "own"

    def write(self, evaluation: Evaluation) -> None:
        """Look at every part that a sink may use."""
        for eval_set, metrics in evaluation.result.metrics.items():
            for metric, value in metrics.items():
                if value.lower is None:
                    raise SinkRefusedError(f"{evaluation.run}: {eval_set}/{metric} of {evaluation.checkpoint.name}")
                if float.fromhex(value.hex) > value.lower:
                    raise SinkUnavailableError(f"{evaluation.plan} at {evaluation.milliseconds}")


sink: Sink = OwnSink()
