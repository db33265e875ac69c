"""Host several runs in one loop."""

import queue
from dataclasses import dataclass, field

import pytest
from fakes import FakeClock
from prometheus_client import CollectorRegistry, generate_latest
from structlog.testing import capture_logs

from sidecar.commands.many_runs import MOST_RUNS, RunHost
from sidecar.commands.run_finder import Delayed, Found, Prepared
from sidecar.daemon.events import FilesChanged, SaveNoticed, Terminate
from sidecar.errors import RunReplacedError, SettingsError, TaskError
from sidecar.publishing.http.run_pages import RunPages
from sidecar.publishing.plain_structlog import structlog
from sidecar.publishing.prometheus import RunsCollector
from sidecar.publishing.publisher import Published
from sidecar.publishing.run_list import RunState
from sidecar.publishing.systemd import Notifier
from sidecar.settings import Settings
from sidecar.settings.runs import Place


@dataclass
class Loop:
    """The loop of a daemon, without worker processes; it ends as the test says."""

    exit: object = None
    error: Exception | None = None
    turns: int = 0
    observed: list = field(default_factory=list)
    supervisor: None = None

    def observe(self, message):
        """Remember the message; a signal ends the loop."""
        self.observed.append(message)
        if isinstance(message, Terminate):
            self.exit = 0

    def tick(self):
        """Turn once, and again in a second."""
        self.turns += 1
        if self.error is not None:
            raise self.error
        return self.turns


class Run:
    """A run that is served, and the calls that close it."""

    exporter = archive = None

    def __init__(self, settings):
        self.settings, self.daemon, self.closed = settings, Loop(), queue.SimpleQueue()
        self.published, self.log = Published({"pending": 0}), structlog.get_logger()

    def start_storage(self):
        """Start nothing."""

    def close_storage(self):
        """Close nothing."""

    def close_sinks(self):
        """Tell the test that the run is closed."""
        self.closed.put(True)


class World:
    """A host, and what it asked for."""

    def __init__(self, folder, **changes):
        self.folder, self.clock, self.asked = folder, FakeClock(), []
        self.host = RunHost(
            settings=Settings(checkpoint_dir="/nowhere", runs=f"{folder}/*", vanished_after_seconds=60, **changes),
            clock=self.clock,
            log=structlog.get_logger(),
            notify=Notifier({}),
            prepare=lambda place: self.asked.append(place.name),
        )

    def find(self, *names):
        """The finder lists these directories."""
        self.tell(None, Found(tuple(Place(f"{self.folder}/{name}", name, found=True) for name in names)))

    def prepared(self, name, *, called=None, error=None):
        """The finder has prepared a run, or says why it cannot."""
        run = Run(Settings(checkpoint_dir=f"{self.folder}/{name}", run=called or name))
        self.tell(None, Prepared(Place(f"{self.folder}/{name}", name, found=True), error or run))
        return run

    def begin(self, *names):
        """These runs are served."""
        self.find(*names)
        return [self.prepared(name) for name in names]

    def tell(self, run, message):
        """Send a message, and let the host turn."""
        self.host.inbox.put((run, message))
        self.host.turn()

    def closed(self, run):
        """A run is closed in a thread, and the host learns of it."""
        self.host.turn()
        assert run.closed.get(timeout=60)
        while not self.host.inbox.empty() or run in [each.served for each in self.host.runs.values()]:
            self.host.turn()

    def states(self):
        """The states of the runs, and the reasons."""
        return {run.run: (run.state, run.reason) for run in self.host.summaries()}


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_a_run_that_breaks_does_not_hurt_the_others(world):
    """Any exception ends it alone; it begins again after a pause."""
    broken, good = world.begin("a", "b")
    broken.daemon.error = RuntimeError("a bug")
    with capture_logs() as logs:
        world.clock.seconds += 2
        world.host.turn()
        world.closed(broken)
    assert world.states()["a"][0] == RunState.FAILED
    assert "a bug" in world.states()["a"][1]
    assert [line["event"] for line in logs] == ["run_broke", "run_failed"]
    turns = good.daemon.turns
    world.clock.seconds += 31
    world.host.turn()
    assert world.asked == ["a", "b", "a"]
    assert good.daemon.turns > turns
    world.prepared("a")
    assert world.states()["a"] == (RunState.SERVING, None)


def test_pauses_grow_and_a_reason_is_told_once(world):
    """The log must not fill with one wrong setting."""
    world.find("a")
    with capture_logs() as logs:
        for pause in (30, 60, 120):
            world.prepared("a", error=SettingsError("replicas: 0"))
            asked = len(world.asked)
            world.clock.seconds += pause - 1
            world.host.turn()
            assert len(world.asked) == asked
            world.clock.seconds += 1
            world.host.turn()
            assert len(world.asked) == asked + 1
    assert [line["reason"] for line in logs if line["event"] == "run_failed"] == ["replicas: 0"]


def test_a_run_whose_storage_does_not_answer_says_so(world):
    """And the others begin."""
    world.find("a", "b")
    with capture_logs() as logs:
        for _ in range(2):
            world.tell(None, Delayed(Place(f"{world.folder}/a", "a"), "storage has not answered for 3 s"))
    assert [line["event"] for line in logs] == ["run_delayed"]
    world.prepared("b")
    assert world.states()["a"] == (RunState.STARTING, "storage has not answered for 3 s")
    assert world.states()["b"][0] == RunState.SERVING
    world.prepared("a")
    assert world.states()["a"] == (RunState.SERVING, None)


def test_two_runs_cannot_have_one_name(world):
    """Only the label tells them apart."""
    world.begin("a", "b")
    world.find("a", "b", "c")
    world.prepared("c", called="a")
    assert world.states()["c"][0] == RunState.FAILED
    assert "sidecar.toml" in world.states()["c"][1]


def test_a_run_ends_when_its_directory_is_gone_for_a_minute(world):
    """Storage that is away for a moment ends nothing."""
    (run, _) = world.begin("a", "b")
    world.find("b")
    world.clock.seconds += 59
    world.find("a", "b")
    world.find("b")
    world.clock.seconds += 59
    world.find("b")
    assert world.states()["a"][0] == RunState.SERVING
    world.clock.seconds += 1
    world.find("b")
    world.closed(run)
    assert list(world.states()) == ["b"]
    world.find("a", "b")
    assert world.asked == ["a", "b", "a"]


def test_a_run_that_was_replaced_begins_anew_at_once(world):
    """As with one run."""
    (run,) = world.begin("a")
    run.daemon.exit = RunReplacedError("another run.json")
    world.clock.seconds += 2
    world.host.turn()
    world.closed(run)
    world.host.turn()
    assert world.asked == ["a", "a"]


def test_messages_of_a_daemon_that_ended_reach_no_other_one(world):
    """A thread of the former daemon may be late."""
    (run,) = world.begin("a")
    run.daemon.exit = TaskError("no such task")
    world.clock.seconds += 2
    world.host.turn()
    world.closed(run)
    successor = world.prepared("a")
    world.tell(run, FilesChanged())
    assert successor.daemon.observed == []
    world.tell(successor, FilesChanged())
    assert len(successor.daemon.observed) == 1


def test_a_signal_drains_every_run_and_then_the_host_ends(world):
    """With 0, whatever failed before."""
    runs = world.begin("a", "b")
    world.find("a", "b", "c")
    world.prepared("c", error=SettingsError("wrong"))
    world.host.inbox.put((None, Terminate("SIGTERM")))
    assert world.host.serve() == 0
    assert [len(run.daemon.observed) for run in runs] == [1, 1]
    assert world.host.unready() == "the daemon is draining"


def test_once_ends_with_the_largest_code(tmp_path):
    """A run that failed is not tried again."""
    world = World(tmp_path, wait=False)
    world.find("a", "b")
    first = world.prepared("a")
    world.prepared("b", error=SettingsError("wrong"))
    first.daemon.exit = 1
    world.clock.seconds += 2
    assert world.host.serve() == 2


def test_more_runs_than_the_limit_wait_until_others_end(world):
    """Others may make any number of directories; those that the settings name come first."""
    names = [f"r{number:04}" for number in range(MOST_RUNS + 2)]
    places = Found((*(Place(f"{world.folder}/{name}", name, found=True) for name in names), Place("/named", "named")))
    with capture_logs() as logs:
        for _ in range(2):
            world.tell(None, places)
    assert world.asked == ["named", *names[: MOST_RUNS - 1]]
    assert [(line["event"], line["count"]) for line in logs] == [("runs_left_out", 3)]
    ended = world.prepared(names[0])
    world.tell(ended, FilesChanged())
    ended.daemon.exit = 0
    world.tell(ended, FilesChanged())
    world.closed(ended)
    world.tell(None, places)
    assert world.asked[-1] == names[MOST_RUNS - 1]


def test_a_directory_of_any_name_is_shown(world):
    """Others may choose the name: it is no markup, cannot control a terminal, and every character can be sent."""
    names = ["<img src=x onerror=y>", "a\nb", "\x1b[31m", "b\udcff"]
    world.find(*names)
    for name in names:
        place = Place(f"{world.folder}/{name}", name, found=True)
        world.tell(None, Prepared(place, SettingsError(f"{name} cannot be a name")))
    RunsCollector(registry := CollectorRegistry(), list, world.host.summaries)
    metrics = generate_latest(registry).decode()
    page = RunPages(world.host.summaries).view("/")(None).body.decode()
    for shown in ("<img src=x onerror=y>", r"a\\nb", r"\\x1b[31m", r"b\\udcff"):
        assert f'run="{shown}",state="failed"}} 1.0' in metrics
    assert ("<img" in page, "\x1b" in page + metrics, r"b\udcff" in page) == (False, False, True)


def test_health_is_that_of_the_one_loop(world):
    """A run that fails makes nobody restart the others."""
    assert world.host.unready() is not None
    world.find()
    assert world.host.unready() is None
    assert world.host.healthy() is None
    world.clock.seconds += 11
    assert "11 s" in world.host.healthy()


def test_a_notice_wakes_the_run_that_has_the_checkpoint(world):
    """A path that only begins alike is not one of the run, and one of none is refused with its name."""
    one, other = world.begin("exp", "exp-2")
    assert world.host.notice(f"{world.folder}/exp-2/step-5") is None
    assert world.host.notice(f"{world.folder}/exp-2") is None
    for path in (f"{world.folder}/exp-3", str(world.folder), "", "/"):
        assert repr(path) in world.host.notice(path)
    world.host.turn()
    assert [type(message) for message in other.daemon.observed] == [SaveNoticed] * 2
    assert not one.daemon.observed
