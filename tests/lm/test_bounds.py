"""Tokens and time of an eval set of generated texts have bounds; without the harness."""

import itertools

import pytest

from sidecar.errors import TaskError
from sidecar.evaluation.failures import EvaluationError
from sidecar.lm import harness
from sidecar.lm.bounds import Bounds


def take(bounds, batches):
    """Take the time of so many batches, a second each."""
    for _ in range(batches):
        with bounds.batch():
            pass


def test_the_time_is_that_of_one_evaluation():
    """Whole sets begin anew, and checks of some of their requests do not."""
    bounds = Bounds("test", None, 3, clock=itertools.count().__next__)
    for _ in range(3):
        bounds.begin(40, of=40)
        take(bounds, 2)
        bounds.begin(8, of=40)
        take(bounds, 1)
    with pytest.raises(EvaluationError, match=r"'test'.* 4 s .*max_seconds=6"):
        take(bounds, 1)
    take(Bounds("test", None, None, clock=itertools.count().__next__), 1000)


def test_tokens_are_those_that_all_answers_may_have():
    """With the numbers, and what to write; the bound itself is allowed."""
    for bounds in (Bounds("test", 1100, None), Bounds("test", None, None)):
        bounds.require_tokens([1000, 100])
        bounds.require_tokens([])
    with pytest.raises(EvaluationError, match=r"1,100 tokens.* 2 .* 1,099: .*=1100"):
        Bounds("test", 1099, None).require_tokens([1000, 100])


@pytest.mark.parametrize("given", [{"max_tokens": 0}, {"max_seconds": True}, {"max_seconds": "1"}])
def test_wrong_bounds_are_refused(given):
    """When the task is made."""
    ((name, found),) = given.items()
    with pytest.raises(TaskError, match=f"{name}={found!r}.*None"):
        harness("arc_easy", **given)
