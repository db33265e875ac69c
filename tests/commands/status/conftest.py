"""A live view that is drawn on a screen of any size."""

import pytest
from commands.status.screens import evaluate, measured

from sidecar.commands.status.plan_progress import PlanProgress
from sidecar.protocol.heartbeat import WorkerProgress


@pytest.fixture
def progress():
    return PlanProgress()


@pytest.fixture
def halfway(observer, writers, clock, checkpoint, progress):
    """A run with three results, whose fourth checkpoint two nodes evaluate; four seconds were observed."""
    for step, accuracy, loss in ((100, 0.5, 0.75), (200, 0.75, 0.25), (300, 0.625, 0.5)):
        evaluate(writers, checkpoint, step, accuracy=measured(accuracy, "max"), loss=measured(loss, "min"))
    writers.propose(checkpoint=checkpoint(400), nodes=("node-0", "node-1"))
    for beat, batches in ((1, 0), (2, 1), (3, 9)):
        for node, done in (("node-0", batches), ("node-1", batches // 2)):
            doing = (WorkerProgress(f"{node}.a.1", "evaluate", done, 33),)
            writers.beat(node, beat, plan=4, doing=doing)
        clock.seconds += 2
        status = observer.collect()
        workers = progress.note(status)
    return status, workers
