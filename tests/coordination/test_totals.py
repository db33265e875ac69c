"""Which evaluations are the best ones of each metric, as all nodes read it in the journal."""

import random

from records import make_plan

from sidecar.coordination.totals import RANKED, Totals
from sidecar.protocol.records import Checkpoint, Result, Value
from sidecar.settings.values import MOST_EXPORTS


def evaluate(totals, number, accuracy, goal="max"):
    checkpoint = Checkpoint(name=f"ckpt-{number}", digest=f"{number:064x}", step=number, format="tf")
    plan = make_plan(number, checkpoint, nonce="n", members=(), task="t", proposer="n")
    finite = accuracy if abs(accuracy) < float("inf") else None
    value = Value(value=finite, hex=float(accuracy).hex(), goal=goal)
    result = Result(
        group="g",
        workers=1,
        examples={"test": 1},
        metrics={"test": {"m": value}},
        phases={},
        variables="v",
        task="t",
        profile={},
        saves=(),
    )
    totals.succeeded(plan, checkpoint, result)
    return checkpoint


def ranked(totals):
    return [best.plan for best in totals.ranked.get(("test", "m"), ())]


def test_the_best_are_ranked_and_the_first_of_equal_ones_is_ahead():
    """As a stable sort ranks them, whatever the order in which they come."""
    for seed, goal in ((1, "max"), (2, "min"), (3, "max")):
        totals, choose = Totals(), random.Random(seed)
        values = [choose.choice([0.1, 0.2, 0.3, float("inf"), float("-inf"), choose.random()]) for _ in range(50)]
        for number, value in enumerate(values, start=1):
            evaluate(totals, number, value, goal)
        sign = -1 if goal == "max" else 1
        expected = sorted(range(1, 51), key=lambda number: sign * values[number - 1])
        assert ranked(totals) == expected[:RANKED]


def test_what_cannot_be_ranked_is_not():
    """NaN, and values without a direction; with another direction the ranking begins anew."""
    totals = Totals()
    evaluate(totals, 1, float("nan"))
    evaluate(totals, 2, 0.5, "none")
    assert ranked(totals) == []
    evaluate(totals, 3, 0.5)
    evaluate(totals, 4, 0.4)
    assert ranked(totals) == [3, 4]
    evaluate(totals, 5, 0.9, "min")
    assert ranked(totals) == [5]


def test_a_requeued_one_leaves_its_place_to_the_next():
    """So the second best is best then."""
    totals = Totals()
    best = evaluate(totals, 1, 0.9)
    evaluate(totals, 2, 0.8)
    assert (totals.best["test", "m"].checkpoint, totals.best["test", "m"].pin) == ("ckpt-1", best.folder)
    totals.reopened(best.key)
    assert ranked(totals) == [2]
    totals.reopened(("ckpt-2", f"{2:064x}"))
    assert totals.best == {}


def test_as_many_are_known_as_can_be_exported():
    """A larger setting could not be honoured."""
    assert RANKED == MOST_EXPORTS
