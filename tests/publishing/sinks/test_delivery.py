"""Each result reaches a sink once and in order, whatever fails meanwhile and whoever delivers."""

import json
import threading
from dataclasses import replace

import pytest
from journals import Journal
from publishing.sinks.conftest import PATIENCE_SECONDS, VirtualHours, finish, publishing, until
from receivers import receiver

from sidecar.coordination.journal_state import JournalState
from sidecar.protocol.records import Value
from sidecar.publishing.sinks.delivery_thread import PAUSES
from sidecar.publishing.sinks.hook import Hook
from sidecar.publishing.sinks.remote_write import RemoteWrite
from sidecar.publishing.sinks.sink import SinkRefusedError, SinkUnavailableError
from sidecar.publishing.sinks.webhook import Webhook
from sidecar.publishing.status import SinkStatus
from sidecar.settings.hook_values import DEADLINE_SECONDS


def test_each_evaluation_is_delivered_once(deliver, sink):
    """In their order, without failed attempts; a daemon that is restarted goes on where the other one ended."""
    journal = Journal()
    journal.evaluate("ckpt-1", 100)
    journal.plan("ckpt-2", step=200)
    journal.fail()
    journal.evaluate("ckpt-2", 200)
    finish(deliver(), journal.history)
    assert [(each.plan, each.checkpoint.step, each.run) for each in sink.got] == [(1, 100, "mnist"), (3, 200, "mnist")]
    journal.evaluate("ckpt-3", 300)
    finish(deliver(), journal.history)
    assert sink.plans == [1, 3, 4]
    finish(deliver(), journal.history)
    assert sink.plans == [1, 3, 4]


def test_a_delivery_gets_what_comes_while_it_runs(deliver, sink):
    """The loop tells of each change, and never waits, though the sink hangs."""
    journal, delivery = Journal(), deliver()
    sink.hold.clear()
    for step in range(1, 6):
        journal.evaluate(f"ckpt-{step}", step)
        delivery.update(publishing(), journal.history)
    assert sink.got == []
    sink.hold.set()
    delivery.close(PATIENCE_SECONDS)
    assert sink.plans == [1, 2, 3, 4, 5]


def test_a_sink_that_is_away(deliver, sink, log):
    """The same result is delivered until it is taken; the log tells of it once."""
    journal = Journal()
    journal.evaluate("ckpt-1", 100)
    journal.evaluate("ckpt-2", 200)
    sink.raises = [SinkUnavailableError("away") for _ in range(5)]
    delivery = deliver()
    delivery.update(publishing(), journal.history)
    until(lambda: "sink_recovered" in log.names())
    assert log.names() == ["sink_failed", "sink_recovered"]
    assert sink.plans == [1, 2]
    assert delivery.status == SinkStatus(name="notes")


def test_pauses_between_tries_have_a_longest_one(deliver, sink):
    """Else a sink that was away for a night would wait for another one."""
    journal = Journal()
    journal.evaluate("ckpt-1", 100)
    sink.raises = [SinkUnavailableError("away") for _ in range(15)]  # doubled each time: 5 minutes
    deliver(pauses=(0.01, 0.02)).update(publishing(), journal.history)
    until(lambda: sink.plans == [1])


def test_a_sink_that_fails_for_another_reason(deliver, sink, log):
    """The log tells of it, too: a full disk may keep an event waiting for ever after a receiver that was down."""
    journal = Journal()
    journal.evaluate("ckpt-1", 100)
    sink.raises = [SinkUnavailableError(reason) for reason in ("away", "away", "disk full", "disk full")]
    deliver().update(publishing(), journal.history)
    until(lambda: "sink_recovered" in log.names())
    assert log.names() == ["sink_failed", "sink_failed", "sink_recovered"]


def test_a_sink_with_a_bug(deliver, sink, log):
    """Any exception counts as a failure, and is shown; the thread lives."""
    journal = Journal()
    journal.evaluate("ckpt-1", 100)
    sink.raises = [ZeroDivisionError("oops")]
    finish(deliver(), journal.history)
    assert log.names()[:1] == ["sink_failed"]
    finish(deliver(), journal.history)
    assert sink.plans == [1]


NO_PAUSES = (0.001, 0.002)


def test_an_event_that_the_program_never_takes(deliver, sink, log, tmp_path):
    """After eight errors of the program the event is among the dead letters, and the next ones are delivered."""
    journal = Journal()
    journal.evaluate("ckpt-1", 100)
    journal.evaluate("ckpt-2", 200)
    sink.raises = [KeyError("other")] * 8
    delivery = deliver(run_dir=tmp_path, pauses=NO_PAUSES)
    delivery.update(publishing(), journal.history)
    until(lambda: delivery.has_delivered)
    until(lambda: "sink_recovered" in log.names())
    assert (sink.plans, delivery.status.refused, delivery.status.failing) == ([2], 1, None)
    assert log.names() == ["sink_failed", "sink_refused", "sink_recovered"]
    (line,) = (tmp_path / "sinks/dead_letters/notes.jsonl").read_text().splitlines()
    letter = json.loads(line)
    assert letter["event"]["checkpoint"]["name"] == "ckpt-1"
    assert "KeyError('other')" in letter["reason"]
    finish(deliver(), journal.history)
    assert sink.plans == [2]


def test_a_receiver_that_is_away_costs_no_event(deliver, sink, tmp_path):
    """Sinks of others raise whatever their library does for it: they are asked as long as that lasts."""
    journal = Journal()
    journal.evaluate("ckpt-1", 100)
    sink.raises = [error for _ in range(7) for error in (ConnectionError("away"), RuntimeError("503"), KeyError("x"))]
    delivery = deliver(run_dir=tmp_path, pauses=NO_PAUSES)
    delivery.update(publishing(), journal.history)
    until(lambda: delivery.has_delivered)
    assert (sink.plans, delivery.status.refused) == ([1], 0)


class Away(list):
    """The answers of a receiver that is down for an hour: `503` each time."""

    def __init__(self, clock):
        super().__init__()
        self.clock = clock

    def __bool__(self):
        return self.clock.seconds < 3600

    def pop(self, _):
        """Count the request, and refuse it."""
        self.clock.tries += 1
        return 503


@pytest.mark.parametrize(("name", "letters"), [("remote_write", 0), ("webhook", 0), ("impatient webhook", 3)])
def test_a_receiver_that_is_dead_for_an_hour(deliver, log, monkeypatch, tmp_path, name, letters):
    """It is asked about once a minute, and gets all in the end. The log says twice what happened.

    A hook may give an event up before that: it is among the dead letters then, once, and the next one follows.
    """
    monkeypatch.setenv("no_proxy", "*")
    clock, journal = VirtualHours(), Journal()
    with receiver() as server:
        server.answers, deadline = Away(clock), 1000.0 if letters else DEADLINE_SECONDS
        webhook = Webhook(server.url, None, PATIENCE_SECONDS)
        hook = Hook(
            hook="result", target=webhook, run_dir=tmp_path, deadline_seconds=deadline, now=lambda: clock.seconds
        )
        sink = RemoteWrite(server.url, PATIENCE_SECONDS) if name == "remote_write" else hook
        delivery = deliver(sink=sink, changed=clock, pauses=PAUSES)
        delivery.update(publishing(), journal.history)
        until(lambda: delivery.has_delivered)  # a hook begins with what happens after its first start
        for step in range(1, 13):
            value = Value(value=step / 20, hex=(step / 20).hex(), goal="max")
            journal.evaluate(f"ckpt-{step}", step, {"accuracy": value})
        delivery.update(publishing(), journal.history)
        until(lambda: "sink_recovered" in log.names())
    assert log.names() == ["sink_failed", *["sink_refused"] * letters, "sink_recovered"]
    assert 60 <= clock.tries <= 75
    assert (delivery.status.pending, delivery.status.refused) == (0, letters)
    assert len(server.requests) - clock.tries == 12 - letters
    if name != "remote_write":
        kept = tmp_path / "sinks/dead_letters/result.jsonl"
        given_up = [json.loads(line)["event"]["id"] for line in kept.read_text().splitlines()] if letters else []
        taken = [each.headers["webhook-id"] for each in server.requests[clock.tries :]]
        assert len({*given_up, *taken}) == len(given_up) + len(taken) == 12


def test_how_far_a_sink_is_behind(deliver, sink):
    """While it fails, the number of results that it lacks, and the time of the oldest."""
    journal = Journal()
    for step in (1, 2, 3):
        journal.evaluate(f"ckpt-{step}", step)
    sink.hold.clear()
    sink.raises = [SinkUnavailableError("away")]
    delivery = deliver()
    assert delivery.status is None
    delivery.update(publishing(), journal.history)
    until(lambda: delivery.status.pending == 3)
    assert delivery.status.oldest_pending == 1769860801.5
    sink.hold.set()


def test_what_a_sink_lacks_grows_while_a_call_hangs(deliver, sink):
    """The loop counts what the thread, which hangs, cannot count; failed attempts are no events of this sink."""
    journal, delivery = Journal(), deliver()
    journal.evaluate("ckpt-1", 1)
    sink.hold.clear()
    delivery.update(publishing(), journal.history)
    until(lambda: delivery.status.pending == 1)
    for step in (2, 3, 4):
        journal.plan(f"ckpt-{step}", step=step)
        journal.fail()
        journal.evaluate(f"ckpt-{step}", step)
        delivery.update(publishing(), journal.history)
        assert delivery.status.pending == step
        assert delivery.status.oldest_pending == 1769860801.5
    delivery.update(publishing(), journal.history)  # nothing new
    assert delivery.status.pending == 4
    sink.hold.set()
    until(lambda: delivery.has_delivered)
    assert (len(sink.plans), delivery.status.pending, delivery.status.oldest_pending) == (4, 0, None)


def test_what_becomes_known_between_two_events_is_counted_once(deliver, sink):
    """The thread first delivers what it knew, then what came meanwhile, and no event is counted twice."""
    journal, delivery = Journal(), deliver()
    gate, seen = threading.Semaphore(0), []

    def write(evaluation):
        assert gate.acquire(timeout=PATIENCE_SECONDS)
        seen.append(evaluation.plan)

    sink.write = write
    journal.evaluate("ckpt-1", 1)
    journal.evaluate("ckpt-2", 2)
    delivery.update(publishing(), journal.history)
    until(lambda: delivery.status.pending == 2)
    journal.evaluate("ckpt-3", 3)
    delivery.update(publishing(), journal.history)
    for left in (2, 1, 0):
        assert delivery.status.pending == left + 1
        gate.release()
        until(lambda left=left: len(seen) == 3 - left)
        until(lambda left=left: delivery.status.pending == left)


def test_a_new_turn_counts_only_what_it_adds(deliver, sink):
    """While a call hangs, another node publishes for a time; what it delivered is known once the call ends."""
    journal, delivery = Journal(), deliver()
    journal.evaluate("ckpt-1", 1)
    sink.hold.clear()
    delivery.update(publishing(), journal.history)
    until(lambda: delivery.status.pending == 1)
    delivery.update(replace(publishing(), publisher=False), journal.history)
    journal.evaluate("ckpt-2", 2)
    delivery.update(publishing(), journal.history)
    assert delivery.status.pending == 1
    journal.evaluate("ckpt-3", 3)
    delivery.update(publishing(), journal.history)
    assert delivery.status.pending == 2
    sink.hold.set()
    until(lambda: delivery.has_delivered)
    assert (sink.plans[-1], delivery.status.pending) == (3, 0)


def test_a_result_that_is_refused_holds_up_nothing(deliver, sink, log):
    """It is counted, and never delivered again."""
    journal = Journal()
    journal.evaluate("ckpt-1", 100)
    journal.evaluate("ckpt-2", 200)
    sink.raises = [SinkRefusedError("no")]
    delivery = deliver()
    finish(delivery, journal.history)
    assert (sink.plans, delivery.status.refused, log.names()) == ([2], 1, ["sink_refused"])
    finish(deliver(), journal.history)
    assert sink.plans == [2]


def test_only_the_publisher_delivers(deliver, sink):
    """Nobody else does; who publishes later goes on with what the other one has left."""
    journal, first, second = Journal(), deliver(), deliver()
    journal.evaluate("ckpt-1", 100)
    first.update(publishing(), journal.history)
    second.update(replace(publishing(), publisher=False), journal.history)
    until(lambda: first.has_delivered)  # also recorded: what was delivered but not recorded comes again
    first.update(replace(publishing(), publisher=False), journal.history)
    journal.evaluate("ckpt-2", 200)
    first.update(replace(publishing(), publisher=False), journal.history)
    finish(second, journal.history)
    first.close(PATIENCE_SECONDS)
    assert sink.plans == [1, 2]
    assert first.status is None


def test_nothing_is_delivered_before_the_journal_is_read(deliver, sink):
    """A part of it would make later results look like the first ones."""
    journal, delivery = Journal(), deliver()
    journal.evaluate("ckpt-1", 100)
    delivery.update(replace(publishing(), journal_read=False), journal.history)
    delivery.close(PATIENCE_SECONDS)
    assert sink.got == []


def test_times_increase(deliver, sink):
    """Also where clocks of nodes differ, or a time is none: Prometheus refuses samples that are out of order."""
    journal, history = Journal(), JournalState()
    times = ("2026-01-31T12:00:05.000Z", "2026-01-31T12:00:01.000Z", "yesterday", "2026-01-31T12:00:09.000Z")
    for step in range(1, 5):
        journal.evaluate(f"ckpt-{step}", step)
    for entry, completed in zip(journal.history.entries, times, strict=True):
        history.apply(entry.plan)
        history.apply(replace(entry.outcome, completed_at=completed))
    finish(deliver(), history)
    first = sink.got[0].milliseconds
    assert [each.milliseconds - first for each in sink.got] == [0, 1, 2, 4000]
