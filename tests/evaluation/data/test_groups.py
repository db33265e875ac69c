"""The groups of examples have the same numbers on each rank."""

import numpy as np
import pytest

from sidecar.errors import TaskError
from sidecar.evaluation.data.groups import group_numbers


@pytest.mark.parametrize(
    "groups",
    [["b", "a", "b"], ("b", "a", "b"), np.array(["b", "a", "b"]), np.array([7.5, 1, 7.5]), lambda: [(1, 2), 3, (1, 2)]],
)
def test_groups_are_numbered_as_they_appear(groups):
    """Keys are texts, numbers or tuples."""
    assert group_numbers("test", groups, 3).tolist() == [0, 1, 0]


def test_the_trial_of_a_task_reads_only_the_first_examples():
    """Then there are more keys than examples."""
    assert group_numbers("test", ["b", "a", "b"], 2, is_whole=False).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("groups", "examples", "words"),
    [
        ([1], 2, "each of 2 examples, found 1"),
        ([[1], [2]], 2, "one key for each"),
        (5, 2, "one key for each"),
        ([1], None, "leave groups"),
    ],
)
def test_impossible_groups_are_refused(groups, examples, words):
    """With the name of the set, and the remedy."""
    with pytest.raises(TaskError, match=words):
        group_numbers("test", groups, examples)
