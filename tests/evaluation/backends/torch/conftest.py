"""Checkpoints of small networks, and evaluations of them as worker processes make them."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from evaluation.backends.torch import batch_models, models, small_nets
from tests_torch import result_of_ranks, torch_evaluator

from sidecar.errors import TaskError
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.evaluate_functions import EvaluateFunctions
from sidecar.evaluation.failures import EvaluationError
from sidecar.evaluation.rank_evaluation import RankEvaluation
from sidecar.evaluation.reduction import LocalCollective
from sidecar.evaluation.task import Task
from sidecar.protocol.messages import Done, Evaluate, Join
from sidecar.protocol.records import Checkpoint, Member


@pytest.fixture
def evaluated(tmp_path) -> Callable[..., Done | Exception]:
    """Evaluates a checkpoint on one rank, as a worker process does; returns its Done or its error."""
    numbers = iter(range(1000))

    def evaluate(task: Task, checkpoint: Any, **options: Any) -> Done | Exception:
        number = next(numbers)
        members = (Member(0, "node", "w.0", ""),)
        command = Evaluate(
            plan=number,
            checkpoint=Checkpoint(name="step-1.pt", digest="digest", step=1, format="torch_zip"),
            path=str(checkpoint),
            save_to=str(tmp_path / f"saved-{number}" / "worker-0-of-1"),
            save_weights="all",
            progress_seconds=10.0,
        )
        try:
            return RankEvaluation(
                command=command,
                join=Join(
                    group="group", members=members, rank=0, task="t", framework="torch", search_path="/", threads=1
                ),
                collective=LocalCollective(),
                evaluator=torch_evaluator(task, **options),
                task_digest="t",
                profile={},
                enter=lambda _: None,
                report=lambda _: None,
                functions=EvaluateFunctions(task, Shard(0, 1)) if task.evaluate else None,
                in_parallel=ThreadPoolExecutor(1),
            ).run()
        except (EvaluationError, TaskError) as error:
            return error

    return evaluate


checkpoint = models.checkpoint_of(models.net)


@pytest.fixture
def trained():
    import torch

    torch.manual_seed(4)
    model = small_nets.net()
    x, y = small_nets.tensors()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.eval()


@pytest.fixture
def evaluate(tmp_path):
    """Evaluates a task with 1, 2 and 3 ranks, whose results must be equal with their notes."""
    import torch

    def run(given, ranks=(1, 2, 3)):
        torch.manual_seed(4)
        path = batch_models.saved(given.build_model(), tmp_path / "step-1.pt")
        results = [result_of_ranks(given, path, count)["test"] for count in ranks]
        assert all(result == results[0] for result in results[1:])
        return results[0]

    return run
