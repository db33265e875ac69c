"""Every name becomes one that MLflow permits, and no two names become one."""

import re
from collections import Counter

import pytest
from journals import ACCURACY, Journal

from sidecar.protocol.records import Value
from sidecar.publishing.sinks.mlflow import points, series

PERMITTED = re.compile(r"[/\w.\- ]{1,250}")
LOSS = Value(value=0.5, hex=(0.5).hex(), goal="min")
ODD = ["", ".", "..", "/", "a/", "/a", "a//b", "a/../b", "a/./b", "..a", "a\nb", "a\tb", "<a>", "é", "\udc80", "\udc81"]
ODD += ["a:b", "a;b", 'a"b', "x" * 500, "x" * 501, "a" * 99 + "/b", "a_b", "a b", "recall/cat", "\x00", "\u202e", "%0a"]


def names(metrics, eval_set="test"):
    """Names of the series of an evaluation of one set."""
    journal = Journal()
    journal.plan("ckpt-1")
    return series(journal.succeed(metrics, eval_sets=(eval_set,)).outcome.result)


def test_usual_names_stay_as_they_are():
    """Set and metric, its bounds, and the examples."""
    assert names({"accuracy": ACCURACY, "recall/a cat": LOSS}, "test set") == {
        "test set/accuracy": 0.97,
        "test set/accuracy_lower": 0.95,
        "test set/accuracy_upper": 0.98,
        "test set/recall/a cat": 0.5,
        "test set/examples": 1003.0,
    }


@pytest.mark.parametrize("odd", ODD)
def test_odd_names_are_permitted(odd):
    """As a metric and as an eval set: the rules are those of mlflow/utils/validation.py."""
    for name in (*names({odd: ACCURACY}), *names({"accuracy": ACCURACY}, odd)):
        assert PERMITTED.fullmatch(name)
        assert not name.startswith("..")
        assert not {"", ".", ".."} & set(name.split("/"))


def test_no_two_names_become_one():
    """Try eval sets and metrics in all combinations."""
    pairs = [(eval_set, metric) for eval_set in ODD for metric in ODD]
    made = [names({metric: LOSS}, eval_set) for eval_set, metric in pairs]
    count = Counter(name for found in made for name in found if not name.endswith("/examples"))
    assert count.most_common(1)[0][1] == 1
    assert len(count) == len(pairs)


def test_a_metric_with_the_name_of_a_bound():
    """The metric itself is shown under its name."""
    assert names({"accuracy_lower": LOSS, "accuracy": ACCURACY, "examples": LOSS}) == {
        "test/accuracy": 0.97,
        "test/accuracy_lower": 0.5,
        "test/accuracy_upper": 0.98,
        "test/examples": 0.5,
    }


def test_points_have_all_bits():
    """Also of numbers that JSON cannot carry."""
    assert points({"a": 0.1, "b": float("-inf")}) == [("a", (0.1).hex()), ("b", "-inf")]
