"""Evaluate one set on one rank: count, progress, and files that ranks divide."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from evaluation.fake_framework import (
    STREAM,
    FakeEvaluator,
    ranks,
    run,
)

from sidecar.evaluation.backend import Stream
from sidecar.protocol.messages import Progress
from sidecar.protocol.records import EvalData


def test_progress_is_not_told_too_often(tmp_path):
    """The first and the last batch always, others once per interval."""
    ((_, _, reports),) = run(tmp_path, ranks([[1.0] * 5]), progress_seconds=[1000.0])
    assert reports == [Progress(7, 1, None), Progress(7, 1, 1)]


def test_a_set_divided_by_file(tmp_path):
    """Its list of files is compared; how many examples it has only the sum tells, and the result says how it was."""
    by_file = replace(STREAM, batches=0, examples=0, own_batches=0, sharding="files")
    evaluators = ranks(streams=(by_file,))
    for end, _, reports in run(tmp_path, evaluators):
        assert end.result.data == {"test": EvalData("abc", None, "files")}
        assert end.result.examples == {"test": 5}
        assert reports[-1] == Progress(7, 1, None)
    for changed in (replace(by_file, fingerprint="xyz"), replace(by_file, sharding="batches")):
        evaluators[1].streams = (changed,)
        assert "eval set 'test': ranks read different data" in str(run(tmp_path, evaluators)[0][0])
    for each in evaluators:
        each.streams = (replace(by_file, expected=6),)
    error = run(tmp_path, evaluators)[0][0]
    assert (error.kind, str(error)) == ("count", "eval set 'test': 5 examples were evaluated, EvalSet says 6")


def test_count_is_checked(tmp_path):
    """Examples evaluated against those read, and against those that the task expects."""
    error = run(tmp_path, ranks([[1.0], [2.0]]))[0][0]
    assert (error.kind, str(error)) == ("count", "eval set 'test': 2 of 5 examples were evaluated")
    by_itself = Stream(
        eval_set="test",
        fingerprint="",
        batches=0,
        examples=0,
        own_batches=0,
        expected=4,
        sharding="own",
    )
    error = run(tmp_path, [FakeEvaluator((by_itself,), [1.0]), FakeEvaluator((by_itself,), [2.0])])[1][0]
    assert (error.kind, str(error)) == ("count", "eval set 'test': 2 examples were evaluated, EvalSet says 4")
    error = run(tmp_path, [FakeEvaluator((replace(by_itself, expected=None),), [])])[0][0]
    assert (error.kind, "is empty" in str(error)) == ("task_error", True)


@pytest.mark.parametrize("threads", [None, 2])
def test_batches_are_taken_in_order(threads):
    """In whichever order they end; after an error of one, none is computed any more."""
    from sidecar.evaluation.eval_loop import computed_in_order

    own = [(number, 4 * number, f"batch {number}") for number in range(7)]
    later, running = threading.Event(), []

    def compute(batch, number, first):
        running.append(number)
        if number == 0 and threads is not None:
            assert later.wait(60), "the next batch was not begun"
        later.set()
        if number == 4:
            raise ValueError(batch)
        running.remove(number)
        return f"{batch} from {first}"

    with ThreadPoolExecutor(2) as executor:
        found = computed_in_order(own, compute, executor if threads else None)
        for number in range(4):
            place, output = next(found)
            assert (place, output()) == (own[number], f"batch {number} from {4 * number}")
        _, output = next(found)
        with pytest.raises(ValueError, match="batch 4"):
            output()
        found.close()
        assert running == [4]


@pytest.fixture
def pending():
    """Return what gathers outputs, and what a measurement was given so far."""
    from sidecar.evaluation.eval_loop import BatchBuffer

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
