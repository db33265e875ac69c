"""Make events of the journal, each once and in order, for sinks that come and go."""

import json
import threading
import time
from dataclasses import replace

import pytest
from fakes import ListLog
from journals import Journal, settlement, short_memories
from publishing.sinks.conftest import SHORT_PAUSES, until
from statuses import make_status

from sidecar.coordination.journal import Journal as StoredJournal
from sidecar.coordination.journal_state import EntryLog, JournalState
from sidecar.coordination.run import open_run
from sidecar.coordination.storage import PosixStorage
from sidecar.errors import StorageError
from sidecar.publishing.sinks import delivery as module
from sidecar.publishing.sinks.delivery import Delivery
from sidecar.publishing.sinks.delivery_thread import close
from sidecar.publishing.sinks.sink import Evaluation, Failure, RunEnd, SinkRefusedError, SinkUnavailableError
from sidecar.publishing.status import Ended

PATIENCE_SECONDS = 240.0
LONG_PAUSES = (PATIENCE_SECONDS, PATIENCE_SECONDS)


class Recorder:
    """A sink that notes all that it gets, after the exceptions that `raises` lists."""

    name = "recorder"
    takes = frozenset({Evaluation, Failure, RunEnd})

    def __init__(self):
        self.got, self.past, self.raises, self.closed = [], [], [], threading.Event()
        self.hangs = threading.Event()

    def resume(self, past):
        """Note the plans of the events that were delivered before."""
        self.past.append([event.plan for event in past])

    def write(self, event):
        """Note it, or fail, or hang."""
        if self.hangs.is_set():
            self.closed.wait(PATIENCE_SECONDS)
            raise SinkUnavailableError("given up")
        if self.raises:
            raise self.raises.pop(0)
        self.got.append(event)

    def close(self):
        """Let a `write` that hangs return."""
        self.closed.set()

    @property
    def seen(self):
        """Class and plan of each event."""
        return [(type(event).__name__, event.plan) for event in self.got]


@pytest.fixture
def storage(tmp_path):
    return PosixStorage(tmp_path)


@pytest.fixture
def run(storage):
    return open_run(storage, 0.0)


@pytest.fixture
def sink():
    return Recorder()


@pytest.fixture
def deliver(storage, sink, request):
    def start(sink=sink, pauses=SHORT_PAUSES):
        made = Delivery(sink, storage, "mnist", ListLog(), pauses=pauses)
        made.start()
        request.addfinalizer(lambda: made.close(PATIENCE_SECONDS))
        return made

    return start


def publishing(**changes):
    return replace(
        make_status(run="mnist", node="worker-0", state="ready", publisher=True, journal_read=True), **changes
    )


ENDED = publishing(ended=Ended("all is done", 0))


def begin(deliver, journal, status=None):
    """Start a delivery, and wait until it has delivered what is known."""
    made = deliver()
    made.update(status or publishing(), journal.history)
    until(lambda: made.has_delivered)
    return made


def finish(deliver, journal, status=None):
    begin(deliver, journal, status).close(PATIENCE_SECONDS)


def mixed(journal):
    """Add a result, a failed attempt, and a plan that settles two checkpoints and evaluates a third."""
    journal.evaluate("ckpt-1", 100)
    journal.plan("ckpt-2", step=200)
    journal.fail()
    journal.plan("ckpt-4", step=400, settles=[settlement("ckpt-2"), settlement("ckpt-3", "corrupt")])
    journal.succeed()


def test_the_past_is_not_delivered(deliver, sink, run):
    """A hook that is set in the middle of a run gets what comes from now on, and knows the evaluations before."""
    journal = Journal(run)
    mixed(journal)
    finish(deliver, journal)
    assert (sink.got, sink.past) == ([], [[1, 3]])
    journal.evaluate("ckpt-5", 500)
    finish(deliver, journal)
    assert sink.seen == [("Evaluation", 4)]
    assert sink.past == [[1, 3], [1, 3]]


def test_a_run_that_begins_is_delivered_from_its_first_event(deliver, sink, run):
    """Also if the daemon was killed after the first event came and before it was delivered."""
    journal = Journal(run)
    finish(deliver, journal)  # a daemon has begun, and nothing happened yet
    mixed(journal)
    finish(deliver, journal)
    assert sink.seen == [("Evaluation", 1), ("Failure", 2), ("Failure", 3), ("Failure", 3), ("Evaluation", 3)]
    ids = [event.id for event in sink.got]
    assert ids == [f"{run}-1", f"{run}-2", f"{run}-3-1", f"{run}-3-2", f"{run}-3"]
    times = [event.milliseconds for event in sink.got]
    assert times == sorted(set(times))


@pytest.mark.parametrize("stops_after", range(6))
def test_each_place_in_a_plan_is_remembered(deliver, sink, run, stops_after):
    """A daemon that ends between two settlements of a plan goes on behind the first one, and on any node."""
    journal = Journal(run)
    finish(deliver, journal)
    mixed(journal)
    sink.raises = []
    original = sink.write

    def write(event):
        if len(sink.got) >= stops_after and not sink.closed.is_set():
            raise SinkUnavailableError("away")
        original(event)

    sink.write = write
    first = deliver()
    first.update(publishing(), journal.history)
    until(lambda: len(sink.got) == min(stops_after, 5))
    first.close(0.5)
    sink.closed.set()
    finish(deliver, journal)
    assert [plan for _, plan in sink.seen] == [1, 2, 3, 3, 3]


def test_an_open_plan_has_no_end_yet(deliver, sink, run):
    """Its settlements are delivered when it is opened, its result later."""
    journal = Journal(run)
    finish(deliver, journal)
    journal.plan("ckpt-1", step=1, settles=[settlement("ckpt-0", "vanished")])
    finish(deliver, journal)
    assert sink.seen == [("Failure", 1)]
    journal.succeed()
    finish(deliver, journal)
    assert sink.seen == [("Failure", 1), ("Evaluation", 1)]


def test_the_end_of_the_run_comes_once(deliver, sink, run):
    """After all else, whoever delivers it and however often daemons start; a run that goes on ends again."""
    journal = Journal(run)
    finish(deliver, journal)
    mixed(journal)
    finish(deliver, journal, ENDED)
    for _ in range(2):
        finish(deliver, journal, ENDED)
    finish(deliver, journal, publishing(ended=Ended("for another reason", 3)))
    assert [plan for kind, plan in sink.seen if kind == "RunEnd"] == [3]
    assert sink.seen[-1][0] == "RunEnd"
    end = sink.got[-1]
    assert (end.reason, end.failed, end.id) == ("all is done", 0, f"{run}-3-end")
    assert end.checkpoints["evaluated"] == 2
    assert end.best["test/accuracy"].checkpoint == "ckpt-1"
    journal.evaluate("ckpt-9", 900)
    finish(deliver, journal, ENDED)
    assert sink.seen[-2:] == [("Evaluation", 4), ("RunEnd", 4)]


def test_the_end_is_later_than_all_else_though_the_clock_went_back(deliver, sink, run, monkeypatch):
    """Receivers sort the events of a hook by their times."""
    monkeypatch.setattr(module.time, "time", lambda: 0.0)
    journal = Journal(run)
    finish(deliver, journal)
    mixed(journal)
    finish(deliver, journal, ENDED)
    times = [event.milliseconds for event in sink.got]
    assert times == sorted(set(times))
    assert sink.seen[-1][0] == "RunEnd"


def test_a_run_without_any_checkpoint_ends_too(deliver, sink, run):
    """Nothing came for a while, for instance."""
    journal = Journal(run)
    finish(deliver, journal, ENDED)
    finish(deliver, journal, ENDED)
    assert sink.seen == [("RunEnd", 0)]


def test_the_end_does_not_wait_for_a_long_pause(deliver, sink, run):
    """A sink that was away is tried once more when the run ends."""
    journal = Journal(run)
    finish(deliver, journal)
    journal.evaluate("ckpt-1", 100)
    sink.raises = [SinkUnavailableError("away")]
    made = deliver(pauses=LONG_PAUSES)
    made.update(publishing(), journal.history)
    until(lambda: made.status.failing is not None)
    assert not made.has_delivered
    began = time.monotonic()
    made.update(ENDED, journal.history)
    until(lambda: made.has_delivered)
    assert time.monotonic() - began < PATIENCE_SECONDS / 2
    assert sink.seen == [("Evaluation", 1), ("RunEnd", 1)]


def test_the_fold_begins_anew_when_a_node_delivers_again(deliver, sink, run):
    """Another node delivered meanwhile, so its evaluations are part of the past."""
    journal = Journal(run)
    made = begin(deliver, journal)
    journal.evaluate("ckpt-1", 100)
    made.update(publishing(), journal.history)
    until(lambda: sink.seen == [("Evaluation", 1)])
    until(lambda: made.has_delivered)
    made.update(publishing(publisher=False), journal.history)
    journal.evaluate("ckpt-2", 200)
    finish(lambda: deliver(Recorder()), journal)  # the other node
    journal.evaluate("ckpt-3", 300)
    made.update(publishing(), journal.history)
    until(lambda: made.has_delivered)
    assert sink.seen == [("Evaluation", 1), ("Evaluation", 3)]
    assert sink.past == [[], [1, 2]]


def test_a_crash_between_delivery_and_progress(deliver, storage, sink, run):
    """The newest event comes a second time, with the same id, and no other one does."""
    journal = Journal(run)
    finish(deliver, journal)
    mixed(journal)
    finish(deliver, journal)
    progress = storage.read("sinks/recorder.json")
    journal.evaluate("ckpt-9", 900)
    finish(deliver, journal)
    storage.replace("sinks/recorder.json", progress)  # as if it had been killed
    finish(deliver, journal)
    assert sink.seen[-2:] == [("Evaluation", 4)] * 2
    assert sink.got[-1] == sink.got[-2]
    assert len(sink.got) == 7


def test_a_daemon_that_ends_gives_up_what_hangs(deliver, sink, run):
    """In time, and nothing counts as delivered."""
    journal = Journal(run)
    finish(deliver, journal)
    journal.evaluate("ckpt-1", 100)
    sink.hangs.set()
    made = deliver()
    made.update(publishing(), journal.history)
    until(lambda: made.status.pending == 1)
    began = time.monotonic()
    made.close(0.1)
    assert time.monotonic() - began < PATIENCE_SECONDS / 2
    assert sink.closed.is_set()
    assert not made.has_delivered
    sink.hangs.clear()
    finish(deliver, journal)
    assert sink.seen == [("Evaluation", 1)]


def test_a_long_past_is_read_from_the_journal(deliver, storage, sink, run):
    """The daemon remembers its newest entries only."""
    journal = Journal(run)
    finish(deliver, journal)
    *_, journal.history = short_memories(storage, run, 9)
    assert len(journal.history.entries) < 9
    finish(deliver, journal)
    assert sink.seen == [("Evaluation", plan) for plan in range(1, 10)]
    finish(deliver, journal)
    assert sink.past[-1] == list(range(1, 10))


def test_the_journal_is_not_read_again_while_nothing_is_an_event(deliver, storage, sink, run, journal_reads):
    """A hook of failures, while everything succeeds."""
    sink.takes = frozenset({Failure})
    delivery = deliver()
    delivery.update(publishing(), Journal(run).history)
    until(lambda: delivery.has_delivered)
    for history in short_memories(storage, run, 12):
        delivery.update(publishing(), history)
        until(lambda: delivery.has_delivered)
    assert (sink.got, journal_reads) == ([], [])


def test_one_that_hangs_delays_only_itself(deliver, run):
    """And a loop that passes on what is new never waits for it."""
    slow, quick, journal = Recorder(), Recorder(), Journal(run)
    quick.name = "quick"
    both = [deliver(slow), deliver(quick)]
    for each in both:
        each.update(publishing(), journal.history)
    until(lambda: all(each.has_delivered for each in both))
    slow.hangs.set()
    longest = 0.0
    for step in range(1, 50):
        journal.evaluate(f"ckpt-{step}", step)
        for each in both:
            began = time.monotonic()
            each.update(publishing(), journal.history)
            longest = max(longest, time.monotonic() - began)
    until(lambda: len(quick.got) == 49)
    assert slow.got == []
    assert longest < 0.5
    slow.closed.set()


def test_one_that_hangs_leaves_the_others_their_time_to_end(deliver, run):
    """All learn at once that the daemon ends, and all have until the same moment."""
    slow, away, journal = Recorder(), Recorder(), Journal(run)
    away.name = "away"
    both = [deliver(slow, LONG_PAUSES), deliver(away, LONG_PAUSES)]
    for each in both:
        each.update(publishing(), journal.history)
    until(lambda: all(each.has_delivered for each in both))
    slow.hangs.set()
    away.raises = [SinkUnavailableError("away")]
    journal.evaluate("ckpt-1", 100)
    for each in both:
        each.update(publishing(), journal.history)
    until(lambda: both[1].status.failing is not None)
    began = time.monotonic()
    close(both, 1.0)
    assert time.monotonic() - began < PATIENCE_SECONDS / 2
    assert away.seen == [("Evaluation", 1)]
    assert not away.closed.is_set()
    assert slow.closed.is_set()


class Unsteady(PosixStorage):
    """Storage that does not answer while `away` is set."""

    away = False

    def read(self, path, limit=None):
        """Read it, or fail."""
        if self.away:
            raise StorageError("away")
        return super().read(path, limit)


def test_the_first_start_is_when_the_daemon_began(sink, run, tmp_path, request):
    """And not when storage answered at last: what happened meanwhile is new."""
    storage, journal = Unsteady(tmp_path), Journal(run)
    journal.evaluate("ckpt-1", 100)
    storage.away = True
    made = Delivery(sink, storage, "mnist", ListLog(), pauses=SHORT_PAUSES)
    made.update(publishing(), journal.history)
    made.start()
    request.addfinalizer(lambda: made.close(PATIENCE_SECONDS))
    until(lambda: made.status.failing is not None)
    journal.evaluate("ckpt-2", 200)
    made.update(publishing(), journal.history)
    storage.away = False
    until(lambda: made.has_delivered)
    assert sink.seen == [("Evaluation", 2)]
    assert sink.past == [[1]]


def test_the_first_start_after_a_plan_that_settled_much(deliver, storage, sink, run):
    """Also if the daemon does not remember all that the plan settled."""
    journal, short = Journal(run), JournalState(log=EntryLog(keep=2))
    settles = [settlement(f"ckpt-{number}", "vanished") for number in range(9)]
    plan = replace(journal.plan(None), settles=tuple(settles))
    assert StoredJournal(storage, run).propose(plan)
    short.apply(plan)
    journal.history = short
    for _ in range(2):
        finish(deliver, journal)
    assert sink.got == []
    journal.evaluate("ckpt-10", 100)
    finish(deliver, journal)
    assert sink.seen == [("Evaluation", 2)]


def test_a_new_run_in_place_of_one_without_events(deliver, sink, storage, run):
    """Its first event is delivered."""
    made = begin(deliver, Journal(run))
    made.update(publishing(journal_read=False), JournalState())
    storage.remove("run.json")
    storage.remove("sinks/recorder.json")
    journal = Journal(open_run(storage, 0.0))
    made.update(publishing(), journal.history)
    until(lambda: made.has_delivered)
    journal.evaluate("ckpt-1", 100)
    made.update(publishing(), journal.history)
    until(lambda: made.has_delivered)
    assert sink.seen == [("Evaluation", 1)]


class Gate:
    """A sink's `write` that waits at its first event until `opened` is set."""

    def __init__(self, sink):
        self.write, self.reached, self.opened = sink.write, threading.Event(), threading.Event()

    def __call__(self, event):
        """Wait until the gate is opened, then deliver the event."""
        self.reached.set()
        assert self.opened.wait(PATIENCE_SECONDS)
        self.write(event)


@pytest.fixture
def three(deliver, run):
    """A journal with three results, after a first start."""
    journal = Journal(run)
    finish(lambda: deliver(Recorder()), journal)
    for step in range(1, 4):
        journal.evaluate(f"ckpt-{step}", step)
    return journal


def test_a_node_that_publishes_again_goes_on(deliver, sink, three):
    """It did not for a moment, in the middle of a delivery, and nothing new happened since."""
    sink.write = gate = Gate(sink)
    made = deliver()
    made.update(publishing(), three.history)
    assert gate.reached.wait(PATIENCE_SECONDS)
    made.update(publishing(publisher=False), three.history)
    gate.opened.set()
    until(lambda: sink.got)
    made.update(publishing(), three.history)
    until(lambda: made.has_delivered)
    assert list(dict.fromkeys(sink.seen)) == [("Evaluation", plan) for plan in (1, 2, 3)]
    assert sink.seen[-1] == ("Evaluation", 3)


@pytest.mark.parametrize("again", [False, True])
def test_progress_never_goes_back(deliver, storage, sink, three, again):
    """A slow node finds that another one delivered meanwhile: it repeats no event, even if it publishes again."""
    sink.write = gate = Gate(sink)
    made = deliver()
    made.update(publishing(), three.history)
    assert gate.reached.wait(PATIENCE_SECONDS)
    if again:
        made.update(publishing(publisher=False), three.history)
        made.update(publishing(), three.history)
    other = Recorder()
    finish(lambda: deliver(other), three)
    whole = storage.read("sinks/recorder.json")
    gate.opened.set()
    until(lambda: made.has_delivered)
    assert sink.seen == [("Evaluation", 1)]
    assert other.seen == [("Evaluation", plan) for plan in (1, 2, 3)]
    assert storage.read("sinks/recorder.json") == whole
    three.evaluate("ckpt-9", 900)
    made.update(publishing(), three.history)
    until(lambda: made.has_delivered)
    assert sink.seen == [("Evaluation", 1), ("Evaluation", 4)]
    assert sink.past[-1] == [1, 2, 3]


def test_a_damaged_record_does_not_lose_what_waits(deliver, storage, sink, three):
    """The copy names the event from which a hook goes on. Without a copy the log says that events are lost."""
    finish(deliver, three)
    seen = list(sink.seen)
    three.evaluate("ckpt-9", 900)
    storage.replace("sinks/recorder.json", b"\xff" * 99)
    finish(deliver, three)
    assert sink.seen == [*seen, ("Evaluation", 4)]
    three.evaluate("ckpt-10", 1000)
    for name in ("recorder.json", "recorder.copy.json"):
        storage.replace(f"sinks/{name}", b"")
    finish(deliver, three)
    assert sink.seen == [*seen, ("Evaluation", 4)]


def test_progress_of_a_newer_release_is_not_replaced(deliver, storage, sink, three):
    """It would look like a first start, and events would be lost. An upgrade may take a while."""
    newer = json.loads(storage.read("sinks/recorder.json")) | {"schema": 2}
    storage.replace("sinks/recorder.json", json.dumps(newer).encode())
    made = deliver()
    made.update(publishing(), three.history)
    until(lambda: made.status.failing is not None)
    assert "update" in made.status.failing
    assert json.loads(storage.read("sinks/recorder.json")) == newer
    assert sink.got == []


def test_progress_is_durable(deliver, run, system_calls):
    """After a power failure a torn file would look like a first start."""
    journal = Journal(run)
    finish(deliver, journal)
    order = []
    for name in ("fsync", "rename"):
        system_calls.observe(name, lambda *_, called=name, **__: order.append(called))
    journal.evaluate("ckpt-1", 100)
    finish(deliver, journal)
    assert order == ["fsync", "rename", "fsync", "rename"]  # the record, then its copy, which may be torn


def test_times_increase_over_an_event_that_was_refused(deliver, sink, run):
    """Hooks keep it in a file."""
    journal = Journal(run)
    finish(deliver, journal)
    refused = []
    write = sink.write

    def refuse_first(event):
        if not refused:
            refused.append(event)
            raise SinkRefusedError("no")
        write(event)

    sink.write = refuse_first
    for step in (1, 2):
        journal.evaluate(f"ckpt-{step}", step)
    finish(deliver, journal)
    assert refused[0].milliseconds < sink.got[0].milliseconds


def test_an_event_is_not_repeated_while_its_progress_cannot_be_recorded(sink, three, tmp_path, request):
    """The disk is full for an hour: that is not a message a minute."""
    tries = []

    class Full(PosixStorage):
        def replace(self, *given, **named):
            tries.append(given)
            if len(tries) < 4:
                raise StorageError("full")
            super().replace(*given, **named)

    made = Delivery(sink, Full(tmp_path), "mnist", ListLog(), pauses=SHORT_PAUSES)
    made.start()
    request.addfinalizer(lambda: made.close(PATIENCE_SECONDS))
    made.update(publishing(), three.history)
    until(lambda: made.has_delivered)
    assert sink.seen == [("Evaluation", plan) for plan in (1, 2, 3)]
    assert len(tries) > 4
