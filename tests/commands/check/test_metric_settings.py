"""Compare settings with the numbers of a trial in `sidecar check`."""

from pathlib import Path

import pytest

from sidecar.commands.check.metric_settings import unsupported
from sidecar.protocol.records import Result, Value
from sidecar.settings import Settings

ACCURACY = Value(value=0.5, hex="0x1p-1", lower=0.4, upper=0.6, goal="max")
AUC = Value(value=0.5, hex="0x1p-1", goal="max")
SCORE = Value(value=0.5, hex="0x1p-1")
SIGNIFICANT = {"best_by": "significant", "early_stop_patience": 3}
SAVED = {"place", "y", "predictions"}


def found(given, metrics=None, columns=(), eval_sets=("test", "harness")):
    result = Result(
        group="g",
        workers=1,
        examples={"test": 8},
        metrics={"test": {"accuracy": ACCURACY, "auc": AUC, "score": SCORE} if metrics is None else metrics},
        phases={},
        variables="v",
        task="t",
        profile={},
        saves=(),
    )
    settings = Settings(checkpoint_dir=Path("/ckpts"), **given)
    return list(unsupported(settings, result, eval_sets, {"test": set(columns)}))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"best_metric": "test/acc"}, ["best_metric = 'test/acc'", "not measured", "test/accuracy, test/auc"]),
        ({"best_metric": "tset/accuracy"}, ["not measured"]),
        ({"early_stop_metric": "test/score"}, ["early_stop_metric", "Task(goals={'test/score': 'max'})"]),
        (SIGNIFICANT | {"best_metric": "test/auc"}, ["no effect", "'test/auc'", "a column 'auc'"]),
    ],
)
def test_what_the_numbers_do_not_support_is_a_problem(given, words):
    """With the line to write."""
    (finding,) = found(given)
    assert not finding.ok
    assert [word for word in words if word not in finding.text] == []


def test_large_improvements_only_are_found_without_saved_values():
    """That is a note; with the values there is none."""
    given = SIGNIFICANT | {"best_metric": "test/accuracy"}
    (finding,) = found(given)
    assert (finding.ok, "Task(predictions=True)" in finding.text) == (True, True)
    assert found(given, columns=SAVED) == []
    assert found(given, columns=SAVED - {"place"}) != []
    assert found(SIGNIFICANT | {"best_metric": "test/auc"}, columns={"place", "auc"}) == []


def test_numbers_of_functions_are_unknown():
    """A trial does not call them."""
    assert found({"best_metric": "harness/acc", "early_stop_metric": "harness/acc"}) == []
    assert found({"early_stop_patience": 3}, metrics={}) == []


def test_nothing_can_be_best_without_a_direction():
    """The early stop and the hook would wait for ever."""
    given = {"early_stop_patience": 3, "hooks": {"best": "true"}}
    (finding,) = found(given, metrics={"score": SCORE}, eval_sets=("test",))
    assert "the early stop and the hook best" in finding.text
    assert "Task(goals={'test/score': 'max'})" in finding.text
