"""Hold prepared batches in memory as they were read."""

from evaluation.backends.python.tasks import (
    changed_input,
    task,
)

from sidecar.evaluation.backends.python.evaluator import PythonEvaluator
from sidecar.evaluation.data.shard import Shard


def test_batches_that_stay_in_memory_do_not_change(checkpoint):
    """One worker process evaluates many checkpoints with them."""
    evaluator = PythonEvaluator.build(task(predict=changed_input), Shard(0, 1), cache_bytes=1 << 20)
    evaluator.read(lambda: None)
    evaluator.restore(str(checkpoint))()
    found = [evaluator.compute(evaluator.evaluate(lambda: None))["test"] for _ in range(2)]
    assert found[0] == found[1]
