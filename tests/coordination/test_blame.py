"""Count failures by who is to blame: the checkpoint, or single nodes."""

import pytest
from records import A, B, failure, fold, make_plan

from sidecar.coordination.blame import blamed


@pytest.mark.parametrize(
    ("entries", "group", "checkpoint"),
    [
        ([make_plan(1), failure(1)], 1, 0),
        (
            [make_plan(1), failure(1), make_plan(2), failure(2, "member_lost"), make_plan(3), failure(3, "mismatch")],
            2,
            1,
        ),
        ([make_plan(1), failure(1), make_plan(2, task="t2"), failure(2, "task_error")], 1, 0),
        ([make_plan(1), failure(1), make_plan(2), failure(2, "a kind of a newer version")], 2, 0),
        ([make_plan(1), failure(1), make_plan(2), failure(2, None)], 2, 0),
        ([make_plan(1), failure(1), make_plan(2, B), failure(2)], 1, 0),
    ],
    ids=["one", "two classes", "another task has its own", "unknown kind", "no kind", "another checkpoint"],
)
def test_failures_are_counted_by_who_is_to_blame(entries, group, checkpoint):
    """Per checkpoint and task digest that tried it; an unknown kind is the machines' fault."""
    failures = fold(*entries).verdicts.failed_under(A.key, "t1")
    assert (blamed(failures, "group"), blamed(failures, "checkpoint")) == (group, checkpoint)
    assert blamed(failures, "corrupt") == blamed(failures, "vanished") == 0


def test_a_failure_of_odd_nodes_is_not_the_checkpoints():
    """It counts as one of the machines', whatever its kind."""
    failures = [failure(1, "mismatch", odd=("n2",)), failure(2, "mismatch"), failure(3, "stream_differs", odd=("n1",))]
    assert (blamed(failures, "group"), blamed(failures, "checkpoint")) == (2, 1)
