"""Evaluate tasks of PyTorch with any number of ranks in this process."""

from collections.abc import Mapping
from typing import Any

from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.metrics.metric import MetricResult
from sidecar.evaluation.task import Task


def torch_evaluator(task: Task, rank: int = 0, ranks: int = 1, cache_bytes: int = 1 << 20):
    """The evaluator of one rank, on the CPU."""
    import torch

    from sidecar.evaluation.backends.torch.evaluator import TorchEvaluator

    return TorchEvaluator.build(task, Shard(rank, ranks), cache_bytes=cache_bytes, device=torch.device("cpu"))


def result_of_ranks(task: Task, checkpoint: Any, ranks: int, **options: Any) -> Mapping[str, MetricResult]:
    """Evaluate one rank after the other, merge their states, and return the numbers by eval set.

    Ranks are processes. Threads would share the generators of random numbers, so they are tried one by one.
    """
    evaluators = [torch_evaluator(task, rank, ranks, **options) for rank in range(ranks)]
    again = True
    while again:
        states = []
        for evaluator in evaluators:
            evaluator.read(lambda: None)
            evaluator.restore(str(checkpoint))()
            evaluator.digest()
            states.append(evaluator.evaluate(lambda: None))
        merged = states[0]
        for other in states[1:]:
            for eval_set, by_name in other.items():
                for name, state in by_name.items():
                    merged[eval_set][name].merge(state)
        (again,) = {evaluator.begins_again(merged) for evaluator in evaluators}
    return evaluators[0].compute(merged)
