"""Sinks that note what they get, and deliveries to them with short pauses."""

import math
import os
import threading
import time

import pytest
from fakes import ListLog
from journals import Journal
from statuses import make_status
from tensorboard_reader import read_events

from sidecar.coordination.storage import PosixStorage
from sidecar.protocol.records import Value
from sidecar.publishing.sinks import delivery
from sidecar.publishing.sinks.delivery import Delivery
from sidecar.publishing.sinks.journal_events import stored_entries
from sidecar.publishing.sinks.sink import Evaluation

PATIENCE_SECONDS = 240.0


def without_variables(patch, prefix):
    """Take the variables away whose names begin so: those of the caller must not change a test."""
    for name in [name for name in os.environ if name.startswith(prefix)]:
        patch.delenv(name)


SHORT_PAUSES = (0.01, 0.5)


class Notes:
    """A sink that notes what it gets, after the exceptions that `raises` lists."""

    name = "notes"

    def __init__(self):
        self.got, self.raises, self.hold = [], [], threading.Event()
        self.hold.set()

    def write(self, evaluation):
        """Note an evaluation, or raise the next exception."""
        assert self.hold.wait(PATIENCE_SECONDS)
        if self.raises:
            raise self.raises.pop(0)
        self.got.append(evaluation)

    @property
    def plans(self):
        """Numbers of the plans, in the order in which they came."""
        return [evaluation.plan for evaluation in self.got]


class VirtualHours(threading.Condition):
    """Wait for nothing: what would have been waited is added up."""

    def __init__(self):
        super().__init__()
        self.seconds, self.tries = 0.0, 0

    def wait_for(self, predicate, timeout=None):
        """Return at once if there is a bound on the wait."""
        if timeout is None:
            return super().wait_for(predicate)
        self.seconds += timeout
        return predicate()


@pytest.fixture
def storage(tmp_path):
    return PosixStorage(tmp_path)


@pytest.fixture
def log():
    return ListLog()


@pytest.fixture
def sink():
    return Notes()


@pytest.fixture
def deliver(storage, log, sink, request):
    """Start a delivery as the daemon of a node does; `deliver(storage=…)` takes another storage."""

    def start(storage=storage, sink=sink, pauses=SHORT_PAUSES, **options):
        made = Delivery(sink, storage, "mnist", log, pauses=pauses, **options)
        made.start()
        request.addfinalizer(lambda: made.close(PATIENCE_SECONDS))
        return made

    return start


def until(condition):
    """Wait until something holds."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def publishing(**changes):
    return make_status(run="mnist", node="worker-0", state="ready", publisher=True, journal_read=True, **changes)


def finish(delivery, history):
    """Tell a delivery of a history, wait until it has ended."""
    delivery.update(publishing(), history)
    delivery.close(PATIENCE_SECONDS)


@pytest.fixture
def journal_reads(monkeypatch):
    """A list that grows with each time that a delivery reads the whole journal in storage."""
    reads = []
    monkeypatch.setattr(delivery, "stored_entries", lambda storage: reads.append(1) or stored_entries(storage))
    return reads


@pytest.fixture
def scalars():
    """Read a folder with TensorBoard's reader: by tag, the steps and the numbers."""

    def read(folder):
        events = read_events(folder)
        return {tag: [(each.step, each.value) for each in events.Scalars(tag)] for tag in events.Tags()["scalars"]}

    return read


BEGIN = 1_769_860_800_000  # milliseconds
RUN = "0123abcd"


def value(number, **more):
    return Value(value=number if math.isfinite(number) else None, hex=number.hex(), **more)


@pytest.fixture
def evaluation():
    """Make the evaluation of a step, with these numbers of each eval set."""

    def make(step, metrics, eval_sets=("test",)):
        journal = Journal()
        journal.plan(f"ckpt-{step}", step=step)
        closed = journal.succeed(metrics, eval_sets=eval_sets)
        at = BEGIN + (step or 0) * 10
        checkpoint, result = closed.plan.checkpoint, closed.outcome.result
        return Evaluation(run="mnist", plan=1, checkpoint=checkpoint, result=result, milliseconds=at, id=f"{RUN}-1")

    return make
