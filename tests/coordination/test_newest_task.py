"""Hold the newest numbers of each eval set, and find sets whose data changed."""

from dataclasses import replace

import pytest
from records import A, B, failure, fold, make_plan, make_result, success

from sidecar.coordination.journal_state import JournalState
from sidecar.protocol.records import EvalData


def result(examples, **fingerprints):
    data = {name: EvalData(found, found and 3, "batches" if found else "own") for name, found in fingerprints.items()}
    return make_result(examples=examples, data=data)


@pytest.mark.parametrize(
    ("now", "changed"),
    [
        (result({"test": 10}, test="aa"), ()),
        (result({"test": 10}, test="bb"), ("test",)),
        (result({"test": 11}, test="aa"), ("test",)),
        (result({"test": 10, "new": 5}, test="aa", new="cc"), ()),  # seen for the first time
        (result({"test": 10}, test=None), ()),  # it divides itself now: only the count is known
        (result({"test": 10}), ()),  # of a version that did not tell
        (result({"test": 9}), ("test",)),
    ],
)
def test_data_that_changed_since_the_last_evaluation(now, changed):
    """Another fingerprint or another number of examples: curves on both sides do not compare."""
    history = fold(make_plan(1))
    history.apply(success(1, result({"test": 10}, test="aa")))
    assert history.changed(now) == changed


def test_an_evaluation_that_leaves_out_a_set_keeps_its_numbers():
    """Each set has those of the checkpoint it was evaluated for last; another task begins without any."""
    both, one = result({"test": 5, "rare": 10}), result({"test": 5})
    history = JournalState()
    shown = [(B, "t1", both), (A, "t1", one), (B, "t1", None), (A, "t1", both), (B, "t2", one)]
    found = []
    for number, (checkpoint, task, measured) in enumerate(shown, 1):
        history.apply(make_plan(number, checkpoint, task=task))
        history.apply(failure(number) if measured is None else replace(success(number), result=measured))
        found.append(
            {name: (each.checkpoint, len(each.result.examples)) for name, each in history.newest_task.latest.items()}
        )
    assert found == [
        {"test": (B, 2), "rare": (B, 2)},
        {"test": (A, 1), "rare": (B, 2)},
        {"test": (A, 1), "rare": (B, 2)},
        {"test": (A, 2), "rare": (A, 2)},
        {"test": (B, 1)},
    ]


def test_a_set_that_was_left_out_is_compared_with_its_own_last_time():
    """Sets may be evaluated for every second checkpoint only."""
    history = fold(make_plan(1))
    history.apply(success(1, result({"rare": 10}, rare="aa")))
    history.apply(make_plan(2, B))
    history.apply(success(2, result({"test": 5}, test="bb")))
    assert history.changed(result({"rare": 10}, rare="cc")) == ("rare",)
