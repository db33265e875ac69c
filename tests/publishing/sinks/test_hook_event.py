"""Make the body of an event: numbers, names and sentences."""

import jsonschema
import pytest
from journals import Journal
from publishing.sinks.hooks import NAN, NASTY, SCHEMA, events_of, make, make_journal, target, value

from sidecar.publishing.sinks.hook import HOOKS

__all__ = ["target"]


def test_numbers_are_those_of_the_history(tmp_path, target):
    """With all of their bits, and the best one so far."""
    made = make(tmp_path, target)
    for event in events_of(make_journal()):
        made.write(event)
    second = target.got[1]
    assert second["metrics"]["test"]["accuracy"] == {"value": 0.4, "hex": (0.4).hex(), "lower": None, "upper": None}
    assert second["best"]["checkpoint"]["name"] == "ckpt-1"
    assert second["best"]["evaluations_since"] == 1
    assert target.got[3]["metrics"]["test"]["accuracy"]["hex"] == "nan"


def test_failures_say_whether_the_checkpoint_is_given_up(tmp_path, target):
    """An attempt that failed, and ends without a result."""
    made = make(tmp_path, target, "failure")
    for event in events_of(make_journal()):
        made.write(event)
    assert [(each["final"], each["kind"], each["checkpoint"]["name"]) for each in target.got] == [
        (False, "stalled", "ckpt-3"),
        (True, "failed", "ckpt-3"),
        (True, "vanished", "ckpt-6"),
        (True, "corrupt", "ckpt-7"),
    ]


@pytest.mark.parametrize("hook", HOOKS)
def test_hostile_names(tmp_path, target, hook):
    """Names of files and messages of user code reach the receiver as valid JSON, and a text of one line."""
    journal = Journal()
    journal.plan(NASTY, step=1)
    journal.fail(message=NASTY)
    journal.evaluate(NASTY, 1, value(0.5), eval_sets=(NASTY,))
    journal.evaluate("ckpt", 2, {NASTY: NAN})
    made = make(tmp_path, target, hook)
    for event in events_of(journal):
        made.write(event)
    assert target.got
    for each in target.got:
        jsonschema.validate(each, SCHEMA)
        assert each["text"].isprintable()


def test_an_event_that_comes_again_is_the_same(tmp_path, target):
    """A second delivery after a crash, or by another node, has the same id and content."""
    for _ in range(2):
        made = make(tmp_path, target, "best")
        for event in events_of(make_journal()):
            made.write(event)
    assert target.got[:2] == target.got[2:]
