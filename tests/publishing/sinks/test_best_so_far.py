"""Each evaluation is compared with the best one before it, in the order of the journal."""

import math

import pytest
from journals import Journal

from sidecar.protocol.records import Value
from sidecar.publishing.sinks.best_so_far import BestSoFar, better_by
from sidecar.publishing.sinks.journal_events import event_of, placed
from sidecar.retention.saves.best import BestBy


def value(number, goal="max"):
    finite = math.isfinite(number)
    return Value(value=number if finite else None, hex=number.hex() if finite else str(number), goal=goal)


def evaluations(*numbers, names=None, goal="max", data=None, tasks=None):
    """Evaluations with these accuracies; None for one that did not measure it. `data`, `tasks`: of each of them."""
    journal = Journal()
    for step, number in enumerate(numbers):
        name = f"ckpt-{step}" if names is None else names[step]
        metrics = {"other": value(1.0)} if number is None else {"accuracy": value(number, goal)}
        task = "t1" if tasks is None else tasks[step]
        journal.evaluate(name, step, metrics, task=task, data=None if data is None else data[step])
    return [event_of(entry, place, "run", 0) for place, entry in placed(journal.history.entries)]


def noted(best, events):
    """Return whether each is a new best one, and how many came since the best."""
    return [(best.note(event), best.since) for event in events]


def test_new_best_ones():
    """Equal is not better, and the number of evaluations since grows."""
    found = noted(BestSoFar(), evaluations(0.5, 0.5, 0.4, 0.6))
    assert found == [(True, 0), (False, 1), (False, 2), (True, 0)]


@pytest.mark.parametrize("kind", ["data", "tasks"])
def test_numbers_of_other_data_or_another_task_do_not_compete(kind):
    """The first of them is a new best one, however good, and a checkpoint that is evaluated again counts again."""
    names, change = ["a", "b", "a", "b", "a"], ["x", "x", "y", "y", "x"]
    best = BestSoFar()
    found = noted(best, evaluations(0.9, 0.8, 0.5, 0.4, 0.3, names=names, **{kind: change}))
    assert found == [(True, 0), (False, 1), (True, 0), (False, 1), (True, 0)]
    assert best.begun == 2
    assert best.best[1].plan == 5


def test_only_the_set_whose_data_changed_begins_anew():
    """The best one by a metric of another set stays."""
    journal, best = Journal(), BestSoFar(metric="test/accuracy")
    for step, (sets, data, number) in enumerate(
        [(("test",), "a", 0.9), (("other",), "b", 0.1), (("other",), "c", 0.2)]
    ):
        journal.evaluate(f"ckpt-{step}", step, {"accuracy": value(number)}, sets, data=data)
    for entry, place in ((entry, place) for place, entry in placed(journal.history.entries)):
        best.note(event_of(entry, place, "run", 0))
    assert best.best[1].plan == 1
    assert best.begun == 0


def test_less_is_better():
    """If the metric says so."""
    assert [new for new, _ in noted(BestSoFar(), evaluations(2.0, 1.0, 3.0, goal="min"))] == [True, True, False]


def test_nan_is_no_improvement():
    """Neither at the beginning nor later; infinity is the best of all."""
    found = noted(BestSoFar(), evaluations(math.nan, 0.1, math.nan, math.inf, 0.2))
    assert found == [(False, 1), (True, 0), (False, 1), (True, 0), (False, 1)]


def test_an_evaluation_that_did_not_measure_the_metric_does_not_count():
    """With `every_nth`, sets take part in some evaluations only."""
    assert noted(BestSoFar(metric="test/accuracy"), evaluations(0.5, None, 0.4)) == [(True, 0), (False, 0), (False, 1)]


def test_a_checkpoint_does_not_count_twice():
    """Requeued ones are evaluated again."""
    found = noted(BestSoFar(), evaluations(0.5, 0.4, 0.4, 0.4, names=["a", "b", "b", "b"]))
    assert found == [(True, 0), (False, 1), (False, 1), (False, 1)]


def test_the_best_checkpoint_is_measured_again():
    """Its new number counts, and the old one does not."""
    found = noted(BestSoFar(), evaluations(0.9, 0.5, 0.6, names=["a", "a", "b"]))
    assert [new for new, _ in found] == [True, False, True]


@pytest.mark.parametrize("goal", ["max", "min"])
def test_an_improvement_may_have_to_be_larger(goal):
    """Than a difference, in the direction of the metric."""
    sign = 1 if goal == "max" else -1
    numbers = [sign * number for number in (1.0, 1.0625, 1.125, 1.25)]
    found = noted(BestSoFar(is_better=better_by(0.125)), evaluations(*numbers, goal=goal))
    assert [new for new, _ in found] == [True, False, False, True]


def test_the_metric_is_the_one_of_the_saves():
    """The first one with a direction, also where names hold slashes."""
    journal = Journal()
    numbers = {"count": value(1.0, "none"), "a/b": value(0.3), "accuracy": value(0.9)}
    closed = journal.evaluate("ckpt", 1, numbers, eval_sets=("x/y",))
    best = BestSoFar()
    ((place, entry),) = placed(journal.history.entries)
    assert best.note(event_of(entry, place, "run", 0))
    assert best.best[0] == ("x/y", "a/b")
    assert BestBy().folder(journal.history) == closed.plan.folder


def test_the_comparison_can_be_replaced():
    """By one that knows the noise, for instance."""
    asked = []

    def never(evaluation, best, metric):
        asked.append((evaluation.plan, best, metric))
        return best is None

    best = BestSoFar(is_better=never)
    first, second = evaluations(0.1, 0.9)
    assert [best.note(first), best.note(second)] == [True, False]
    assert asked == [(1, None, ("test", "accuracy")), (2, first, ("test", "accuracy"))]
