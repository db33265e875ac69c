"""Read a sample again, to notice contents that changed."""

import numpy as np
import pytest
from evaluation.data.listed_sets import BATCHES, evaluate, opened, read

from sidecar.errors import TaskError
from sidecar.evaluation.data.listed import sampled
from sidecar.evaluation.failures import EvaluationError
from sidecar.evaluation.task import EvalSet


def test_contents_that_change_are_noticed():
    """Notice the first batch at once, the sample in the first evaluation, own batches in the next one."""
    source, reader = opened()
    source.contents[0] = np.zeros(3) - 1
    with pytest.raises(EvaluationError, match="another order"):
        read(reader)

    in_sample = sampled(source.fingerprint_of_list(), BATCHES)
    source, reader = opened()
    read(reader)
    source.contents[in_sample[-1]] = np.zeros(2) - 1
    with pytest.raises(EvaluationError, match="differs from the first time"):
        evaluate(reader)

    source, reader = opened()
    read(reader)
    evaluate(reader)
    evaluate(reader)
    source.contents[next(number for number in range(BATCHES) if number not in in_sample)] = np.zeros(3) - 1
    with pytest.raises(EvaluationError, match="differs from the first time"):
        evaluate(reader)


def test_a_check_that_does_not_exist():
    with pytest.raises(TaskError, match="'none'"):
        EvalSet(lambda: None, check="none")


def test_other_contents_of_the_sample_are_noticed():
    """One batch of it is read before each evaluation, another one each time, as long as that is cheap."""
    source, reader = opened(cache_bytes=1 << 20)
    assert not reader.differs()
    read(reader)
    evaluate(reader)
    source.reads.clear()
    reader._sample._cost_seconds = 1.0  # of which 40 batches that are read in no time do not pay for
    assert (reader.differs(), source.reads) == (False, [])
    for number in sampled(source.fingerprint_of_list(), BATCHES):
        reader._sample._cost_seconds = 0.0
        assert not reader.differs()
        assert source.reads.pop() == number
    source.contents = [array + 1 for array in source.contents]
    reader._sample._cost_seconds = 0.0
    assert reader.differs()
