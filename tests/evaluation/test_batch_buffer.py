"""Hand batches over in order through a bounded buffer."""

import numpy as np
import pytest


@pytest.fixture
def pending():
    """Return what gathers outputs, and what a measurement was given so far."""
    from sidecar.evaluation.batch_buffer import BatchBuffer

    calls = []

    return BatchBuffer(lambda outputs, firsts: calls.append((outputs, list(firsts)))), calls


def outputs(number, width=4):
    return [np.float32(number), np.full(width, number)]


def test_every_batch_arrives_once_in_order(pending):
    """Whether the number of batches fills the buffer or not."""
    gathered, calls = pending
    for number in range(150):
        gathered.add(outputs(number), number * 4)
    gathered.flush()
    gathered.flush()
    assert [first for _, firsts in calls for first in firsts] == [number * 4 for number in range(150)]
    assert [float(each) for found, _ in calls for each in found[0]] == list(range(150))
    assert [int(each[0]) for found, _ in calls for each in found[1]] == list(range(150))
    assert len(calls) == 3


def test_large_outputs_do_not_wait(pending):
    """A megabyte is added at once: sixty-four segmentation maps would fill the memory."""
    gathered, calls = pending
    gathered.add(outputs(1, width=1 << 18), 0)
    assert len(calls) == 1
