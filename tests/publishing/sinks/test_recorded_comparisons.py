"""With `best_by = "significant"` a better number within noise is not a new best one for hooks."""

from dataclasses import replace

import pytest
from fakes import FaultyStorage, ListLog
from journals import Journal

from sidecar.commands import hooks as hooks_of_settings
from sidecar.commands.sinks import _acting_sinks
from sidecar.coordination.journal import outcome_path, plan_path
from sidecar.coordination.storage import PosixStorage
from sidecar.errors import StorageError
from sidecar.evaluation.intervals import wilson
from sidecar.protocol.codec import dumps
from sidecar.protocol.records import Value
from sidecar.publishing.sinks.best_so_far import BestSoFar
from sidecar.publishing.sinks.hook import Hook
from sidecar.publishing.sinks.journal_events import event_of, placed
from sidecar.publishing.sinks.recorded_comparisons import RecordedComparisons
from sidecar.retention.saves.comparison import Difference
from sidecar.retention.saves.comparison_store import ComparisonStore
from sidecar.settings import Settings

RIGHT = 800, 810, 790, 900, 905, 990
"""Correct answers out of 1000. The second and the fifth evaluation are better within noise only."""
BEST = [1, 4, 6]


class Target:
    """Notes the plans of which it hears."""

    shown = "target"

    def __init__(self):
        self.ids = []

    def send(self, _, id_):
        """Note the number of the plan in the id of the event."""
        self.ids.append(int(id_.split("-")[1]))

    def close(self):
        """Close the target, which holds nothing open."""


@pytest.fixture
def storage(tmp_path):
    return FaultyStorage(PosixStorage(tmp_path))


@pytest.fixture
def events(storage):
    return stored(storage, RIGHT)


@pytest.fixture
def make(storage):
    """Make the hook of a daemon that just started."""

    def make(**more):
        noise = RecordedComparisons(storage, storage.root)
        best = BestSoFar(metric="test/accuracy", exceeds_noise=noise, **more)
        return Hook(hook="best", target=Target(), run_dir=storage.root, deadline_seconds=60, best=best)

    return make


def stored(storage, right):
    """Evaluations that are in the journal, as events."""
    journal = Journal("0123456789abcdef")
    for step, number in enumerate(right):
        lower, upper = wilson(number, 1000)
        share = number / 1000
        value = Value(value=share, hex=share.hex(), lower=lower, upper=upper, goal="max")
        closed = journal.evaluate(f"ckpt-{step}", step, {"accuracy": value})
        storage.create(plan_path(closed.plan.plan), dumps(closed.plan))
        storage.create(outcome_path(closed.plan.plan), dumps(closed.outcome))
    return [event_of(entry, place, "run", 0) for place, entry in placed(journal.history.entries)]


def plans(hook, events):
    for event in events:
        hook.write(event)
    return hook.target.ids


def test_noise_is_no_new_best(make, events):
    """The hook hears of those only that are better by more."""
    assert plans(make(), events) == BEST


@pytest.mark.parametrize("restarted_at", range(len(RIGHT)))
@pytest.mark.parametrize("recorded", [True, False])
def test_a_restarted_daemon_decides_the_same(make, events, storage, restarted_at, recorded):
    """Also if the hook is set for the first time, so that the past was never compared."""
    if recorded:
        plans(make(), events[:restarted_at])
    before = storage.names("comparisons")
    hook = make()
    hook.resume(iter(events[:restarted_at]))
    assert storage.names("comparisons") == before
    assert plans(hook, events[restarted_at:]) == [plan for plan in BEST if plan > restarted_at]


def test_the_past_is_as_it_was_recorded(make, events, monkeypatch):
    """Predictions showed that the second one is better. They are gone, and are not asked for."""
    paired = Difference(rule="paired", number=0.81 - 0.8, lower=0.005, upper=0.015, examples=1000)
    monkeypatch.setattr(ComparisonStore, "_paired", lambda *given: replace(paired, confidence=given[3].confidence))
    assert plans(make(), events[:2]) == [1, 2]
    monkeypatch.setattr(ComparisonStore, "_paired", lambda *_: pytest.fail("predictions are read"))
    hook = make()
    hook.resume(events[:2])
    assert hook.best.best[1].plan == 2


def test_a_long_past_is_cheap(make, storage, monkeypatch):
    """One small file is read for each comparison, and nothing is written."""
    events = stored(storage, [800, *[810] * 300])
    storage.asked.clear()
    monkeypatch.setattr(ComparisonStore, "_paired", lambda *_: pytest.fail("predictions are read"))
    make().resume(events)
    assert len(storage.asked["read"]) == 300
    assert storage.asked["create"] == []


def test_an_evaluation_that_cannot_be_compared_now(make, events, storage):
    """It is delivered again, and the event comes once."""
    hook = make()
    plans(hook, events[:3])

    storage.fails = {"read"}
    with pytest.raises(StorageError):
        hook.write(events[3])
    storage.fails = set()
    storage.remove(outcome_path(4))
    with pytest.raises(StorageError):
        hook.write(events[3])
    assert hook.target.ids == [1]
    stored(storage, RIGHT)
    hook.write(events[3])
    assert hook.target.ids == [1, 4]


@pytest.mark.parametrize(
    ("given", "asked"),
    [({}, False), ({"best_by": "significant", "best_metric": "a/b"}, True), ({"best_by": "significant"}, True)],
)
def test_the_settings_decide(tmp_path, given, asked):
    """The rule holds for `best_metric`."""
    settings = Settings(checkpoint_dir=tmp_path, hooks={"best": "true"}, **given)
    (hook,) = _acting_sinks(settings, ListLog())
    (made,) = hooks_of_settings.make_hooks(settings)
    assert [each.best.exceeds_noise is not None for each in (hook, made)] == [asked, asked]
