"""Hooks whose target notes what it gets, and a journal of events of every kind."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from journals import Journal, settlement

from sidecar.protocol.records import Nonfinite, Value
from sidecar.publishing.sinks.hook import Hook
from sidecar.publishing.sinks.journal_events import event_of, placed, run_end

SCHEMA = json.loads((Path(__file__).parents[3] / "docs/reference/hook-event.schema.json").read_text())
NAN = Value(value=None, hex="nan", goal="max")
NASTY = '<script>alert(1)</script>\n\x1b[31m\udc80"\u202e' + "x" * 300


class Target:
    """Notes what it gets, after the exceptions that `raises` lists."""

    shown = "target"

    def __init__(self):
        self.got, self.ids, self.raises = [], [], []

    def send(self, body, id_):
        """Note a request and its id, or raise the next exception."""
        if self.raises:
            raise self.raises.pop(0)
        self.got.append(json.loads(body.decode()))
        self.ids.append(id_)

    def close(self):
        """Close the target, which holds nothing open."""


def value(number):
    return {"accuracy": Value(value=number, hex=number.hex(), goal="max")}


def events_of(journal):
    """The events of a journal, as a delivery makes them, and the end of the run."""
    found, milliseconds = [], 0
    for place, entry in placed(journal.history.entries):
        if (event := event_of(entry, place, "mnist", milliseconds)) is not None:
            milliseconds = event.milliseconds
            found.append(event)
    end = run_end("mnist", journal.history, "all is done", 1)
    return [*found, replace(end, milliseconds=milliseconds + 1, id=f"{journal.run}-{end.plan}-end")]


def make_journal():
    """Return a journal with one event of every kind."""
    journal = Journal()
    journal.evaluate("ckpt-1", 100, value(0.5))
    journal.evaluate("ckpt-2", 200, value(0.4))
    journal.plan("ckpt-3", step=300)
    journal.fail()
    journal.plan("ckpt-4", step=400, settles=[settlement("ckpt-3"), settlement("ckpt-0", "skipped")])
    journal.succeed(value(0.6), nonfinite={"prediction": Nonfinite(3, 1, 65)})
    journal.evaluate("ckpt-5", 500, {"accuracy": NAN})
    journal.plan(None, settles=[settlement("ckpt-6", "vanished"), settlement("ckpt-7", "corrupt")])
    return journal


@pytest.fixture
def target():
    return Target()


def make(tmp_path, target, hook="result", **more):
    return Hook(hook=hook, target=target, run_dir=tmp_path, **({"deadline_seconds": 100.0} | more))
