"""The public API as users write it: never run, only type-checked."""

from collections.abc import Sequence
from typing import Any

from sidecar import EvalSet, Shard, Task


def build_model() -> Any:
    """A model of any framework."""


def arrays() -> tuple[list[float], list[int]]:
    """Arrays, or anything that becomes a dataset."""
    return [0.5], [1]


def own_part(shard: Shard) -> Sequence[float]:
    """A source that divides the data itself."""
    return [float(index) for index in range(10) if shard.owns(index)]


smallest: Task = Task(build_model=build_model, eval_sets={"test": arrays})
whole: Task = Task(
    build_model,
    {"test": EvalSet(arrays, prepare=lambda x, y: (x, y), examples=1), "own": EvalSet(own_part), "plain": arrays},
    metrics=lambda: [object()],
    loss=object(),
    batch_size=64,
    checkpoint=lambda model: model,
    restore=lambda model, path: model.load(path),
)
