"""Shared by all tests: the order of files, and checkpoints of a real training, made once by a process of its own."""

import fcntl
import gc
import json
import locale
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from logging import captureWarnings, getLogger
from pathlib import Path

import pytest
from bucket_server import PROGRAMS, BucketServer
from faults import SystemCalls
from hypothesis import HealthCheck, settings
from required import give_up

# Read by libgomp when a test imports torch. Its threads would spin at barriers and take the cores from other tests.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

TASKS = Path(__file__).parent / "tasks"
DAEMONS = ("tests/commands/demo/", "tests/integration/")
"""Folders whose tests start daemons: one of these tests at a time, the tests of other folders next to it."""

LONGEST_FIRST = (
    *DAEMONS,
    "tests/deploy/test_grafana_queries.py",
    "tests/daemon/workers/",
    "tests/test_readme.py",
    "tests/examples/",
    "tests/simulation/",
    "tests/evaluation/",
    "tests/checkpoints/",
    "tests/deploy/",
)
"""Beginnings of paths, in the order in which `make test` begins them; all others follow."""

OF_A_FRAMEWORK = re.compile(r"^pytestmark = \[?pytest\.mark\.(tensorflow|torch)\b", re.MULTILINE)
"""Files whose tests import a framework in the process that runs them."""

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background by a script: `nohup make test &`
    # Programs under test would inherit that, and no Ctrl-C would end them. A handler is not inherited.
    signal.signal(signal.SIGINT, lambda *_: None)

# An example takes as long as the load of the machine wants. Tests that bound the time of one say so.
settings.register_profile("any load", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any load")
# `make test` asks for this one. `make test-all` and `make test-rest` try the usual hundred examples of each property.
settings.register_profile("fewer examples", max_examples=30)

COSTLY = (
    "tests/integration/",
    "tests/daemon/workers/",
    "tests/daemon/test_daemon_",
    "tests/deploy/",
    "tests/evaluation/backends/",
    "tests/evaluation/test_finished_",
    "tests/evaluation/test_repeatability.py",
    "tests/retention/exports/test_exports.py",
)
"""The files whose tests cost most. With those that are marked `tensorflow`, `torch` or `seconds` they take turns."""

EACH_COMMIT = (
    "tests/commands/demo/",
    "tests/docs/test_code_blocks.py",
    "tests/integration/test_daemon.py",
    "tests/integration/test_two_nodes.py",
    "tests/simulation/",
)
"""What a user sees first, a daemon, two nodes, and agreement: `make test` tries these for each commit."""

TURNS = 3
"""`make test` tries each function that takes turns for one commit of so many."""

LAST_BEGIN = time.monotonic() + float(os.environ.get("TEST_SECONDS", "inf"))
"""When a process of the tests begins its last one, for runs that have a bound."""


def pytest_configure(config):
    """Let daemons and workers under test have the processors first: a busy machine starved them while tests waited.

    Each of them has a session of its own, and the kernel groups processes by sessions (sched(7), "The autogroup
    feature"). Workers have niceness 10 in theirs, so the tests of this process get no more than one of them.
    """
    if hasattr(config, "workerinput"):  # one of several processes that run tests
        os.setsid()  # a session of its own: the niceness of the caller's would stay
        with suppress(OSError):  # no autogroups here
            Path("/proc/self/autogroup").write_text("10")


gc.disable()  # until all tests are collected: each full collection would go through all of them


def pytest_collection_finish():
    """Leave the tests and their modules alone when garbage is collected: they stay to the end."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling

    @cache
    def framework_of(scope: str) -> str:
        found = None if scope == "daemons" else OF_A_FRAMEWORK.search((config.rootpath / scope).read_text())
        return found[1] if found else ""

    class Scheduler(LoadScopeScheduling):
        """Hands out whole files, so that what a file prepares is prepared once, and a framework to few processes."""

        def _split_scope(self, nodeid: str) -> str:
            return "daemons" if nodeid.startswith(DAEMONS) else nodeid.partition("::")[0]

        def _assign_work_unit(self, node) -> None:
            """Take the first file for which this process does not import a framework that another has imported."""
            imported = {each: {*map(framework_of, files)} for each, files in self.assigned_work.items()}
            elsewhere = set().union(*imported.values()) - imported.get(node, set()) - {""}
            scope = next((each for each in self.workqueue if framework_of(each) not in elsewhere), None)
            if scope is not None:
                self.workqueue.move_to_end(scope, last=False)
            super()._assign_work_unit(node)

    config.option.loadscopereorder = False  # xdist's order is that of the number of tests: see LONGEST_FIRST
    return Scheduler(config, log)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Draw tests before others are selected; begin with what takes long, so that all processes end at about one time.

    With TEST_ORDER, a text, the order of files follows from it: where TEST_SECONDS ends the run before all were tried,
    another text tries others.
    """
    _draw(items)
    yield
    if order := os.environ.get("TEST_ORDER"):
        items.sort(key=lambda item: sha256(f"{order} {item.nodeid.partition('::')[0]}".encode()).digest())
    elif hasattr(config, "workerinput"):
        items.sort(key=lambda item: _place_in_order(item.nodeid))


def _draw(items):
    """Mark as nightly all but n variants of each test that is marked `drawn(n)`, and tests whose turn it is not.

    A test that is marked `takes_turns(n)` runs for one commit of n, with those of its file: they share what they start.
    Costly tests take turns by function, without that mark. TEST_DRAW decides. The Makefile sets it to the commit: each
    commit tries others, and each time the same. With "all" everything runs, and is measured by `make coverage`.
    """
    draw = os.environ.get("TEST_DRAW", "")
    if draw == "all":
        return

    def number(text):
        return int.from_bytes(sha256(f"{draw} {text}".encode()).digest())

    variants = {}
    for item in items:
        file, test = item.nodeid.partition("::")[0], item.nodeid.partition("[")[0]
        if mark := item.get_closest_marker("drawn"):
            variants.setdefault(test, (mark.args[0], []))[1].append(item)
        if mark := item.get_closest_marker("takes_turns"):
            has_turn = number(file) % mark.args[0] == 0
        else:
            has_turn = not _is_costly(item, file) or number(test) % TURNS == 0
        if not has_turn:
            item.add_marker("nightly")
    for count, found in variants.values():
        for item in sorted(found, key=lambda item: number(item.nodeid))[count:]:
            item.add_marker("nightly")


def _is_costly(item, file: str) -> bool:
    marks = (item.get_closest_marker(name) for name in ("tensorflow", "torch", "seconds"))
    return not file.startswith(EACH_COMMIT) and (file.startswith(COSTLY) or any(marks))


def _place_in_order(nodeid: str) -> int:
    return next((place for place, start in enumerate(LONGEST_FIRST) if nodeid.startswith(start)), len(LONGEST_FIRST))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    """Begin no test later than TEST_SECONDS after the start: the others are skipped, and counted in the summary."""
    if time.monotonic() > LAST_BEGIN:
        pytest.skip("the seconds of TEST_SECONDS have passed")


@pytest.fixture(scope="session")
def needs() -> Callable[..., str]:
    """`needs("promtool")` is its path; without it the test is skipped, or fails if TEST_REQUIRES names it.

    `folder`: the only place where it is looked for.
    """

    def find(program: str, folder: Path | None = None) -> str:
        found = shutil.which(program, path=folder)
        if found is None:
            give_up(program, f"{program} is not installed{'' if folder is None else f' in {folder}'}")
        return found

    return find


@pytest.fixture
def start_bucket(needs, tmp_path) -> Iterator[Callable[[str], BucketServer]]:
    """`start_bucket("localbucket")` is that server with a bucket; each is killed at the end of the test."""
    with ExitStack() as servers:

        def start(name: str) -> BucketServer:
            return servers.enter_context(BucketServer(needs(name, PROGRAMS), tmp_path / f"server-{name}"))

        yield start


@pytest.fixture
def use_bucket(start_bucket, monkeypatch) -> Callable[[str], BucketServer]:
    """`use_bucket("localbucket")` is that server; this process, and what it starts, find it by their environment."""

    def use(name: str) -> BucketServer:
        server = start_bucket(name)
        for variable in [each for each in os.environ if each.startswith(("AWS_", "AZURE_", "GOOGLE_"))]:
            monkeypatch.delenv(variable)
        for variable, value in server.environment.items():
            monkeypatch.setenv(variable, value)
        return server

    return use


@pytest.fixture
def new_place(tmp_path):
    """`new_place("a", url)` is the state directory of a machine, which is sent to a backup at that URL."""
    from state_places import Place

    made: list[Place] = []

    def make(name: str, url: str) -> Place:
        made.append(Place(tmp_path / name, url))
        return made[-1]

    yield make
    for place in made:
        place.end()


@pytest.fixture(autouse=True)
def _own_handlers():
    """Take back what a daemon, a command or a task that a test runs in this process changes for all of it."""
    kept, root = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}, getLogger()
    handlers, level, path, arguments = root.handlers[:], root.level, sys.path[:], sys.argv[:]
    yield
    sys.path[:], sys.argv[:] = path, arguments
    for each, handler in kept.items():
        signal.signal(each, handler)
    root.handlers[:], root.level = handlers, level
    captureWarnings(capture=False)
    if (structlog := sys.modules.get("structlog")) is not None:
        structlog.reset_defaults()


def _process_state() -> dict[str, object]:
    """Return the state of this process on which tests of other files depend, without being told."""
    names = {
        f"environment variable {name}": value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"
    }
    modules = {f"module {name}": module for name, module in sys.modules.items() if not name.startswith("test")}
    return (
        modules
        | names
        | {
            "current directory": os.getcwd(),  # noqa: PTH109 - as it is
            "sys.argv": [*sys.argv],
            "sys.path": [*sys.path],
            "locale": locale.setlocale(locale.LC_ALL),
            "time zone": time.tzname,
            "folder of temporary files": tempfile.gettempdir(),
            "timeout of sockets": socket.getdefaulttimeout(),
        }
    )


OF_FRAMEWORKS = re.compile(
    r"environment variable (TORCH|PYTORCH|TF_|KMP_)|module (transformers|torch|tensorflow|keras)\b"
)


@pytest.fixture(scope="module", autouse=True)
def _process_as_found():
    """Fail the last test of a file after which the process is another: a test of another file would notice by chance.

    New modules are no difference. A framework changes the process when it is imported, and some of its own when it is
    used for the first time.
    """
    before, frameworks = _process_state(), {"tensorflow", "torch"} & sys.modules.keys()
    yield
    after = _process_state()
    changed = [name for name, value in before.items() if name not in after or after[name] != value]
    changed += [name for name in after if name.startswith("environment") and name not in before]
    changed = [name for name in changed if not OF_FRAMEWORKS.match(name)]
    if frameworks == {"tensorflow", "torch"} & sys.modules.keys():
        assert not changed, f"this file leaves other {', '.join(changed)}"


@pytest.fixture
def system_calls(monkeypatch):
    """Functions of `os` that fail, or are observed, until the test ends."""
    return SystemCalls(monkeypatch)


@pytest.fixture
def before_inspection(monkeypatch):
    """`before_inspection(act)` calls `act(folder, name)` before each inspection of a checkpoint of a format.

    The format is that of TensorFlow's objects unless another class is given.
    """

    def register(act, kind: type | None = None) -> None:
        from sidecar.checkpoints.formats.tf_object import TfObject

        inspect = (kind := kind or TfObject).inspect

        def inspected(self, folder, name, **settings):
            act(folder, name)
            return inspect(self, folder, name, **settings)

        monkeypatch.setattr(kind, "inspect", inspected)

    return register


@pytest.fixture(scope="session", autouse=True)
def _unsynced(tmp_path_factory):
    """Let `os.fsync` return at once on the disk of the temporary folders: in this process no test cuts the power.

    Mounts whose `fsync` fails or waits, and processes that tests start, keep theirs.
    """
    device, sync = tmp_path_factory.getbasetemp().stat().st_dev, os.fsync

    def fsync(file) -> None:
        if os.fstat(file if isinstance(file, int) else file.fileno()).st_dev != device:
            sync(file)

    os.fsync = fsync
    yield
    os.fsync = sync


@dataclass(frozen=True)
class Trained:
    """Hold what the trainer left behind: one folder per kind of checkpoint, and what plain Keras says about each."""

    folder: Path
    expected: dict

    def path(self, kind: str) -> str:
        """The prefix that TensorFlow restores from."""
        return str(self.folder / kind / "ckpt-1")


@pytest.fixture(scope="session")
def quiet_environment() -> dict[str, str]:
    """The environment of a TensorFlow process on a machine without GPU."""
    return os.environ | {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"}


@pytest.fixture(scope="session")
def made_once(tmp_path_factory, request):
    """Make folders once for all processes of pytest-xdist: `made_once(name, make)` calls `make(folder)` in one.

    The others wait, and get the same folder. Nobody may change it.
    """
    parallel = hasattr(request.config, "workerinput")
    common = tmp_path_factory.getbasetemp().parent if parallel else tmp_path_factory.getbasetemp()

    def once(name: str, make) -> Path:
        folder = common / name
        with (common / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # released when its holder ends, however it ends
            if not folder.exists():
                unfinished = tmp_path_factory.mktemp(name)
                make(unfinished)
                unfinished.rename(folder)
        return folder

    return once


@pytest.fixture(scope="session")
def trained(made_once, quiet_environment) -> Trained:
    def train(folder: Path) -> None:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", str(TASKS / "trainer.py"), str(folder)],
            env=quiet_environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]

    folder = made_once("trained", train)
    return Trained(folder, json.loads((folder / "expected.json").read_text()))


@pytest.fixture(scope="session")
def digits(quiet_environment):
    """Import the module tests/tasks/digits.py in a quiet environment."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TensorFlow's own deprecations, at import
        for name in ("CUDA_VISIBLE_DEVICES", "TF_CPP_MIN_LOG_LEVEL", "KERAS_BACKEND"):
            patch.setenv(name, quiet_environment[name])
        sys.path.insert(0, str(TASKS))
        import digits as module

        module.arrays()
        gc.freeze()  # each full collection would go through TensorFlow's million objects
    return module
