from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests_torch import torch_evaluator

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
