"""An evaluation is compared only with those that it can be compared with."""

import math

from journals import Journal

from sidecar.protocol.records import Value
from sidecar.publishing.evaluation_archive.evaluations import ArchivedEvaluations
from sidecar.publishing.evaluation_archive.neighbours import neighbours

NAME = ("test", "accuracy")


def past_of(numbers):
    """Evaluations with (step, value, data)."""
    journal, archive = Journal(), ArchivedEvaluations()
    for place, (step, number, data) in enumerate(numbers):
        value = Value(value=number if math.isfinite(number) else None, hex=number.hex(), goal="max")
        journal.evaluate(f"ckpt-{place}", step, {"accuracy": value}, data=data)
    for entry in journal.history.entries:
        archive.add(entry)
    return archive


def against(archive, plan, best=None):
    """The plans that the number of a plan is compared with."""
    found = neighbours(archive, plan, {} if best is None else {NAME: best})["against"]["test"]["accuracy"]
    return {what: one["plan"] for what, one in found.items()}


def test_the_one_before_has_the_next_lower_step():
    """Not the plan before: evaluations are not always in the order of steps."""
    archive = past_of([(10, 0.1, "a"), (30, 0.3, "a"), (20, 0.2, "a")])
    assert against(archive, 3) == {"before": 1}
    assert against(archive, 2) == {"before": 3}
    assert against(archive, 1, best=2) == {"best": 2}
    assert against(archive, 2, best=2) == {"before": 3, "best": 2}


def test_other_data_and_nan_are_no_comparison():
    """Neither as the one before nor as the best."""
    archive = past_of([(10, 0.9, "a"), (20, 0.1, "b"), (30, math.nan, "b"), (40, 0.2, "b")])
    assert against(archive, 2, best=1) == {}
    assert neighbours(archive, 2, {NAME: 1})["not_comparable"] == {"test": {"accuracy": ["before", "best"]}}
    assert neighbours(archive, 4, {NAME: 4})["not_comparable"] == {"test": {"accuracy": []}}
    assert against(archive, 4, best=1) == {"before": 2}


def test_the_next_ones_are_in_the_order_of_evaluations():
    """The first has none before, the last none behind."""
    archive = past_of([(10, 0.1, "a"), (30, 0.3, "a"), (20, 0.2, "a")])
    found = [(each["previous"], each["next"]) for each in (neighbours(archive, plan, {}) for plan in (1, 2, 3))]
    assert found == [(None, 2), (1, 3), (2, None)]
    assert neighbours(archive, 2, {})["goals"] == {"test": {"accuracy": "max"}}
