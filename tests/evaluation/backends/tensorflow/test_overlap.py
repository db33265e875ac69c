"""Batches that are computed at the same time give what they give one after the other."""

import threading

import pytest

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize("compiled", [False, True])
def test_short_batches_are_computed_two_at_a_time(trained, digits, compiled):
    """Bits and rows are the same as before; a step that changes variables, as of metrics, has no second thread."""
    from sidecar.evaluation.backends.tensorflow.evaluator import KerasEvaluator
    from sidecar.evaluation.data.shard import Shard

    own = {"build_model": digits.compiled, "metrics": None, "loss": None} if compiled else {}
    task = digits.make(predictions=True, **own)
    evaluator = KerasEvaluator.build(task, Shard(0, 1), threads=2, cache_bytes=1 << 20)
    evaluator.restore(trained.path("model"))()
    evaluator.read(lambda: None)
    before, found, threads = set(threading.enumerate()), [], []
    while len(found) < 3 or not (compiled or threads[-2] or len(found) == 50):  # on a busy machine no batch is short
        rows = []
        states = evaluator.evaluate(lambda: None, lambda _, batch, rows=rows: rows.append(batch))
        numbers = {name: value.hex for name, value in evaluator.compute(states)["test"].values.items()}
        found.append((numbers, [(each.first, each.columns["predictions"].tobytes()) for each in rows]))
        threads.append(sum(each.name.startswith("batch") for each in set(threading.enumerate()) - before))
    assert (threads[0], threads[-1]) == (0, 0 if compiled else 2)
    assert all(each == found[0] for each in found)
