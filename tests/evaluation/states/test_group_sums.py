"""Sums by group are exact sums, of which a state has few."""

import math

import numpy as np

from sidecar.evaluation.states import GroupSums
from sidecar.evaluation.states.group_sums import MOST_GROUPS


def added(state, *batches):
    for places, values, weights in batches:
        state.add_values(np.array(places), np.array(values), np.array(weights, np.float32))
    return state


def test_values_and_weights_are_summed_by_group():
    """In any order, and as exactly as any sum."""
    groups = np.array([0, 1, 0, 2])
    batches = ([0, 1], [0.1, 0.2], [1, 2]), ([2, 3, 0], [0.3, 1e300, 0.7], [1, 1, 0.5])
    one, other = added(GroupSums(4, groups), *batches), added(GroupSums(4, groups), *batches[::-1])
    assert one.round().tolist() == [[math.fsum([0.1, 0.3, 0.7]), 0.2, 1e300], [2.5, 2, 1]]
    assert (one.pack() == other.pack()).all()


def test_many_groups_share_sums():
    """The number of an example without groups is that of its group."""
    state = added(GroupSums(2000, None), ([3, MOST_GROUPS + 3], [1.5, 2.0], [1, 1]))
    assert state.round()[:, 3].tolist() == [3.5, 2]
    assert state.width == 2 * MOST_GROUPS
    assert (GroupSums(None, None).width, GroupSums(7, None).width) == (2, 14)
