"""Which evaluation is the best: by which metric, and against whom it competes."""

import pytest
from records import make_plan

from sidecar.coordination.journal_state import JournalState
from sidecar.protocol.records import Checkpoint, Member, Outcome, Result, Value
from sidecar.retention.saves.best import BestBy


def value(number, goal="max"):
    return Value(value=number if abs(number) < float("inf") else None, hex=float(number).hex(), goal=goal)


def result(task="t", **sets):
    return Result(
        group="g", workers=1, examples={}, metrics=sets, phases={}, variables="v", task=task, profile={}, saves=()
    )


class Follower:
    """Follows a journal of successes and tells which of them was the best when it came."""

    def __init__(self, metric=None):
        self.by, self.history = BestBy(metric), JournalState()

    def improves(self, result):
        """Return whether the best evaluation is this one now."""
        number = self.history.through + 1
        checkpoint = Checkpoint(name=f"ckpt-{number}", digest="d" * 64, step=number, format="tf")
        members = (Member(0, "n", "w", "h:1"),)
        plan = make_plan(number, checkpoint, nonce="n", members=members, task=result.task)
        self.history.apply(plan)
        self.history.apply(
            Outcome(
                plan=number, run="r", nonce="o", status="succeeded", closed_by="n1", completed_at="now", result=result
            )
        )
        return self.by.folder(self.history) == plan.folder


def test_the_first_metric_with_a_direction_decides():
    """Take the first eval set that has one, as the task lists them."""
    best = Follower()
    few = {"rows": value(9, "none")}
    assert best.improves(result(few=few, test={"accuracy": value(0.5), "loss": value(1.0, "min")}))
    assert not best.improves(result(few=few, test={"accuracy": value(0.4), "loss": value(0.1, "min")}))
    assert best.improves(result(few=few, test={"accuracy": value(0.6), "loss": value(9.0, "min")}))


def test_a_smaller_loss_is_better():
    """Each metric knows its direction; the first of equal ones stays the best."""
    best = Follower()
    assert best.improves(result(test={"accuracy": value(0.5)}))
    assert not best.improves(result(test={"accuracy": value(0.5)}))
    best = Follower("test/loss")
    given = [3.0, 2.0, 2.0, 2.5, float("nan"), 1.0]
    found = [best.improves(result(test={"accuracy": value(0.5), "loss": value(each, "min")})) for each in given]
    assert found == [True, True, False, False, False, True]


def test_an_evaluation_without_that_metric_does_not_compete():
    """A set that is evaluated now and then is not replaced by another meanwhile."""
    best = Follower()
    assert best.improves(result(big={"accuracy": value(0.5)}, small={"accuracy": value(0.9)}))
    assert not best.improves(result(small={"accuracy": value(0.99)}))
    assert best.improves(result(big={"accuracy": value(0.6)}, small={"accuracy": value(0.1)}))


def test_another_task_may_measure_something_else():
    """Its numbers cannot be compared with those before, so the best one is found anew."""
    best = Follower()
    assert best.improves(result(test={"accuracy": value(0.9)}))
    assert best.improves(result("changed", test={"accuracy": value(0.8)}))
    assert not best.improves(result("changed", test={"accuracy": value(0.7)}))
    assert best.improves(result("other", test={"f1": value(0.1)}))
    assert best.improves(result("again", test={"f1": value(0.5, "min")}))


@pytest.mark.parametrize(
    "sets", [{}, {"test": {}}, {"test": {"rows": value(3, "none")}}, {"test": {"x": value(float("nan"))}}]
)
def test_nothing_is_best_where_nothing_has_a_direction(sets):
    """Then the newest are kept, and no other."""
    assert not Follower().improves(result(**sets))


def test_a_metric_that_nobody_measures_is_told():
    """With those that could be meant; names may hold a slash."""
    assert complaint("test/acc/top5", MEASURED) is None
    assert complaint(None, MEASURED) is None
    assert complaint("test/acc", MEASURED) == "best_metric 'test/acc' was not measured; these could be: test/acc/top5"
    assert complaint("test/rows", MEASURED) == (
        "best_metric 'test/rows' has no direction: write Task(goals={'test/rows': 'max'}) if larger is better, else "
        "'min'; these could be: test/acc/top5"
    )


def test_a_metric_of_a_set_that_was_left_out_is_no_mistake():
    """The same task measured it before; another one may not have it."""
    rare, often = {"rare": {"f1": value(0.5)}}, {"often": {"f1": value(0.1)}}
    assert complaint("rare/f1", result(**rare, **often), result(**often)) is None
    assert complaint("rare/f1", result(**rare, **often), result("changed", **often)) == (
        "best_metric 'rare/f1' was not measured; these could be: often/f1"
    )


MEASURED = result(test={"acc/top5": value(0.5), "rows": value(3, "none")})


def complaint(metric, *results):
    """Return what is wrong after these results, if anything."""
    follower = Follower(metric)
    for each in results:
        follower.improves(each)
    return follower.by.complaint(follower.history)
