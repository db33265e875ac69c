"""A filtered history has exactly the rows that were asked for, and their numbers are unchanged."""

import pytest

from sidecar.protocol.records import Value
from sidecar.publishing.history_filter import HistoryFilter
from sidecar.publishing.report import entry_rows

LOSS = Value(value=0.5, hex=(0.5).hex(), goal="min")
TOP = Value(value=0.75, hex=(0.75).hex(), goal="max")


@pytest.fixture
def history(journal, settle):
    """Evaluations at steps 100 to 500, one failure at 300, one checkpoint skipped at 600, one without a step."""
    for step in (100, 200, 300, 400, 500):
        journal.plan(f"ckpt-{step}", step=step)
        if step == 300:
            journal.fail()
        else:
            journal.succeed({"loss": LOSS, "top_5": TOP}, classes={"top_5": {"cat": TOP}}, eval_sets=("test", "hard"))
    journal.plan(None, settles=[settle("ckpt-600", "skipped", step=600), settle("odd", "vanished", step=None)])
    return journal.history.entries


def steps(history):
    return [row["step"] for row in entry_rows(history)]


def test_all_of_it(history):
    """Nothing was asked for."""
    assert entry_rows(HistoryFilter().apply(history)) == entry_rows(history)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"first_step": 300}, [300, 400, 500, 600]),
        ({"last_step": 300}, [100, 200, 300]),
        ({"first_step": 200, "last_step": 400}, [200, 300, 400]),
        ({"first_step": 601}, []),
    ],
)
def test_a_range_of_steps(history, asked, expected):
    """Both ends are in it; what has no step is in no range."""
    assert steps(HistoryFilter(**asked).apply(history)) == expected


def test_some_metrics(history):
    """Show all eval sets with their classes; evaluations without such a number are left out."""
    left = list(HistoryFilter(metrics=("top*",)).apply(history))
    assert steps(left) == [100, 200, 400, 500]
    assert {eval_set: list(values) for eval_set, values in entry_rows(left)[0]["metrics"].items()} == {
        "test": ["top_5"],
        "hard": ["top_5"],
    }
    assert left[0].outcome.result.classes == {"test": {"top_5": {"cat": TOP}}}
    assert steps(HistoryFilter(metrics=("recall",)).apply(history)) == []


def test_some_eval_sets(history):
    """Their numbers, and the counts of their examples."""
    left = list(HistoryFilter(eval_sets=("h*", "none"), metrics=("loss",)).apply(history))
    assert entry_rows(left)[-1]["metrics"] == {"hard": {"loss": entry_rows(history)[0]["metrics"]["hard"]["loss"]}}
    assert entry_rows(left)[-1]["examples"] == {"hard": 1003}


def test_the_history_stays_as_it_was(history):
    """It may be shown in another way afterwards."""
    before = entry_rows(history)
    assert list(HistoryFilter(metrics=("loss",), first_step=200).apply(history))
    assert entry_rows(history) == before
