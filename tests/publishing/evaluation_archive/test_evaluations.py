"""The compact record of all evaluations says the same as `sidecar history`."""

import math

import pytest
from journals import ACCURACY, Journal, settlement

from sidecar.protocol.records import Value
from sidecar.publishing import report
from sidecar.publishing.evaluation_archive.evaluations import MESSAGE_CHARACTERS, ArchivedEvaluations


def fold(journal):
    """Add all entries of a journal, one by one."""
    archive = ArchivedEvaluations()
    for entry in journal.history.entries:
        archive.add(entry)
    return archive


@pytest.fixture
def journal():
    """A run with successes, failures, settlements, and numbers that JSON cannot carry."""
    journal = Journal()
    odd = {"accuracy": ACCURACY, "loss": Value(value=None, hex="nan", goal="min"), "top": Value(value=None, hex="-inf")}
    journal.evaluate("ckpt-1", 100, odd, eval_sets=("test", "train"))
    journal.plan("ckpt-2", step=200, attempt=1)
    journal.fail()
    journal.plan("ckpt-3", step=None, attempt=1, settles=[settlement("ckpt-2"), settlement("ckpt-0", "skipped")])
    journal.succeed({"accuracy": ACCURACY})
    journal.plan("ckpt-4", settles=[settlement("ckpt-3", "requeued")])
    return journal


def test_the_rows_are_those_of_the_history(journal):
    """Every number, to the bit; a settlement shares the row of the last failed attempt."""
    keys = fold(journal).rows[0].as_json().keys()
    expected = [{key: row[key] for key in keys} for row in report.rows(journal.history)]
    assert [row.as_json() for row in fold(journal).rows] == expected
    assert {"metrics", "final", "message", "completed_at", "step_source"} <= keys


def test_series_name_every_curve_with_its_points(journal):
    """Also those that only some evaluations have."""
    found = {(each.eval_set, each.metric): (each.goal, each.points) for each in fold(journal).series()}
    assert found == {
        ("test", "accuracy"): ("max", 2),
        ("test", "loss"): ("min", 1),
        ("test", "top"): ("none", 1),
        ("train", "accuracy"): ("max", 1),
        ("train", "loss"): ("min", 1),
        ("train", "top"): ("none", 1),
    }


def test_points_of_a_curve(journal):
    """With the interval of each; a missing bound is NaN."""
    (first, one), (second, _) = fold(journal).points("test", "accuracy")
    assert (first.plan, second.plan) == (1, 3)
    assert one == (0.97, 0.95, 0.98)
    ((_, loss),) = fold(journal).points("train", "loss")
    assert math.isnan(loss.value)
    assert math.isnan(loss.lower)
    assert list(fold(journal).points("train", "nothing")) == []


def test_a_long_message_is_cut():
    """Its end stays, since the last line of a traceback names the error."""
    journal = Journal()
    journal.plan()
    journal.fail(message="x" * 5000 + "the end")
    (row,) = fold(journal).rows
    assert len(row.message) <= MESSAGE_CHARACTERS + 2
    assert row.message.endswith("the end")


def test_pages_of_rows_leave_out_nothing():
    """All rows of one plan are on the same page, however many there are."""
    journal = Journal()
    for number in range(1, 6):
        journal.plan(
            f"ckpt-{number}", step=number, settles=[settlement(f"old-{number}-{each}", "skipped") for each in range(3)]
        )
        journal.succeed()
    archive = fold(journal)
    listed, before = [], 10**6
    while rows := archive.before(before, 2):
        listed += rows
        before = rows[-1].plan
    assert listed == archive.rows[::-1]


def test_thousands_of_evaluations_are_small():
    """2,000 evaluations with 20 metrics take some megabytes: names are shared."""
    metrics = {f"metric-{number}": Value(value=0.5, hex=(0.5).hex(), goal="max") for number in range(20)}
    journal = Journal()
    for number in range(50):
        journal.evaluate(f"ckpt-{number}", number, metrics)
    archive = fold(journal)
    assert len({id(row.names) for row in archive.rows}) == len({id(row.examples) for row in archive.rows}) == 1
    assert all(row.numbers.itemsize * len(row.numbers) == 20 * 3 * 8 for row in archive.rows)
