"""Estimate the time that is left by the slowest worker."""

import pytest
from commands.status.screens import screen

from sidecar.commands.status.plan_progress import plan_seconds_left
from sidecar.protocol.heartbeat import WorkerProgress


def test_the_time_that_is_left_is_that_of_the_slowest(observer, writers, clock, halfway, progress):
    """It is known once it is known of all, and there is none of a node that is silent."""
    assert plan_seconds_left(halfway[1]) is None
    for node, done in (("node-0", 33), ("node-1", 8)):
        writers.beat(node, 4, plan=4, doing=(WorkerProgress(f"{node}.a.1", "evaluate", done, 33),))
    clock.seconds += 2
    status = observer.collect()
    workers = progress.note(status)
    assert [line.seconds_left for line in workers] == [0.0, pytest.approx(12.5)]
    assert "plan 4: ckpt-400 (step 400), open for 18 s, about 12 s left" in screen(status, workers)
    clock.seconds += 20
    status = observer.collect()
    workers = progress.note(status)
    assert plan_seconds_left(workers) is None
    assert any(line.startswith("0 node-0 silent for 20 s ") for line in screen(status, workers))
