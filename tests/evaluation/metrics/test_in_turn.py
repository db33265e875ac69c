"""Update metrics of a task in turn, and publish their numbers to all workers."""

import pytest
from evaluation.backends.python.tasks import (
    run,
    task,
)

from sidecar.errors import TaskError
from sidecar.evaluation.backends.python.evaluator import PythonEvaluator
from sidecar.evaluation.data.shard import Shard


def test_a_task_asks_for_its_metrics_in_turn(checkpoint, tmp_path):
    """Worker 0 evaluates the set alone, with a note; a name that no metric has is refused."""
    expected = run(task(), checkpoint, tmp_path / "divided", 1)[0].result.metrics
    ends = run(task(in_turn=["accuracy"]), checkpoint, tmp_path / "in turn", 2)
    for done in ends:
        assert done.result.metrics == expected
        assert "accuracy: worker 0 evaluates this set alone" in done.result.notes[0]
    evaluator = PythonEvaluator.build(task(in_turn=True), Shard(1, 2), cache_bytes=0)
    assert evaluator.read(lambda: None)[0].own_batches == 0
    with pytest.raises(TaskError, match=r"'acuracy'.*'accuracy'"):
        PythonEvaluator.build(task(in_turn=["acuracy"]), Shard(0, 1), cache_bytes=0)
