"""Each hook gets the events of its kind, and an event that no receiver takes is kept in a file."""

import json

import jsonschema
import pytest
from journals import Journal
from publishing.sinks.hooks import SCHEMA, events_of, make, make_journal, target, value

from sidecar.protocol.records import Value
from sidecar.publishing.sinks.best_so_far import BestSoFar
from sidecar.publishing.sinks.dead_letters import FOLDER
from sidecar.publishing.sinks.sink import Evaluation, SinkRefusedError, SinkUnavailableError

__all__ = ["target"]


@pytest.mark.parametrize(
    ("hook", "plans"),
    [
        ("result", [1, 2, 4, 5]),
        ("best", [1, 4]),
        ("failure", [3, 4, 6, 6]),
        ("nan", [4, 5]),
        ("end", [6]),
    ],
)
def test_each_hook_gets_the_events_of_its_kind(tmp_path, target, hook, plans):
    """In their order, each with an id of its own, and as the schema says."""
    made = make(tmp_path, target, hook)
    for event in events_of(make_journal()):
        made.write(event)
    assert [each["plan"] for each in target.got] == plans
    assert len(set(target.ids)) == len(plans)
    assert [each["id"] for each in target.got] == target.ids
    for each in target.got:
        jsonschema.validate(each, SCHEMA)
        assert each["event"] == hook


def test_a_best_one_is_judged_by_the_past(tmp_path, target):
    """After a restart, and once for each evaluation, however often it is tried."""
    first, second, *_ = (event for event in events_of(make_journal()) if isinstance(event, Evaluation))
    made = make(tmp_path, target, "best")
    made.resume([first])
    made.write(second)
    assert target.got == []
    target.raises = [SinkUnavailableError("away")] * 3
    made.resume([])
    for _ in range(3):
        with pytest.raises(SinkUnavailableError):
            made.write(first)
    made.write(first)
    made.write(second)
    assert [each["plan"] for each in target.got] == [1]


def letters(tmp_path, hook="result"):
    return [json.loads(line) for line in (tmp_path / FOLDER / f"{hook}.jsonl").read_text().splitlines()]


def test_an_event_is_given_up_at_its_deadline(tmp_path, target):
    """Counted from its own first attempt, so that the next one has its time, too."""
    now = [0.0]
    first, second = events_of(make_journal())[:2]
    made = make(tmp_path, target, now=lambda: now[0])
    target.raises = [SinkUnavailableError("away")] * 5
    for at, kind in ((0.0, SinkUnavailableError), (99.0, SinkUnavailableError), (100.0, SinkRefusedError)):
        now[0] = at
        with pytest.raises(kind):
            made.write(first)
    for at in (100.0, 199.0):
        now[0] = at
        with pytest.raises(SinkUnavailableError):
            made.write(second)
    made.write(second)
    assert [letter["event"]["plan"] for letter in letters(tmp_path)] == [1]
    assert [each["plan"] for each in target.got] == [2]


def test_the_metric_of_the_settings_decides(tmp_path, target):
    """Not the first one of the task."""
    journal = Journal()
    for step, (accuracy, loss) in enumerate([(0.5, 2.0), (0.4, 1.0)]):
        numbers = {**value(accuracy), "loss": Value(value=loss, hex=loss.hex(), goal="min")}
        journal.evaluate(f"ckpt-{step}", step, numbers)
    made = make(tmp_path, target, "best", best=BestSoFar(metric="test/loss"))
    for event in events_of(journal):
        made.write(event)
    assert [each["plan"] for each in target.got] == [1, 2]
    assert target.got[1]["best"]["metric"] == "test/loss"
