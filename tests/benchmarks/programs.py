"""Real processes, each on cores of its own: `sidecar run`, and programs of `children/` that answer line by line."""

import contextlib
import http.client
import json
import logging
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from watchdog.events import FileCreatedEvent, FileSystemEventHandler
from watchdog.observers import Observer

from sidecar.coordination.journal import read_history
from sidecar.coordination.storage import PosixStorage
from sidecar.publishing.report import rows

HERE = Path(__file__).parent
TASKS = HERE / "tasks"
PATIENCE_SECONDS = 120.0
POLL_SECONDS = 0.005
_RARELY_SECONDS = 0.5
logging.getLogger("watchdog").setLevel(logging.ERROR)  # it complains of being stopped
_OF_A_LAUNCHER = ("SIDECAR_", "KUBERNETES_", "SLURM", "MASTER_", "NODE_RANK", "GROUP_RANK", "RANK", "WORLD_SIZE")
_OF_THIS_ONE = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "KERAS_BACKEND": "tensorflow"}
_STEP = re.compile(r"^sidecar_eval_checkpoint_step\{[^}]*\} (\S+)$", re.MULTILINE)


def environ(**more):
    """An environment of which no launcher of a training job knows, and in which a package is compiled once."""
    unwanted = (*_OF_A_LAUNCHER, "TF_CONFIG", "NOTIFY_SOCKET", "PYTHONDONTWRITEBYTECODE")
    return {name: value for name, value in os.environ.items() if not name.startswith(unwanted)} | _OF_THIS_ONE | more


@contextlib.contextmanager
def scratch():
    """A folder for one benchmark's files."""
    with tempfile.TemporaryDirectory(prefix="sidecar-bench-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def wait_until(condition, what, seconds=PATIENCE_SECONDS, pause=0.05, sleep=time.sleep):
    """Return what the condition returns once that is true."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds:.0f} s for {what() if callable(what) else what}")
        sleep(pause)
    return found


class Program:
    """A running process on some cores, or all; killed at the end of the `with` block."""

    def __init__(self, words, folder, *, name, cores=None, env=None, **pipes):
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / f"{name}.log"
        own = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cores or own)  # inherited by what is started now, and by all its threads
        try:
            with self.log.open("wb") as log:
                self.process = subprocess.Popen(
                    [str(word) for word in words], stderr=log, cwd=folder, env=env or environ(), **pipes
                )
        finally:
            os.sched_setaffinity(0, own)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()  # a daemon's workers go with it
        self.process.wait()

    def said(self):
        """The end of its log."""
        return self.log.read_text(errors="replace")[-3000:]


class Child(Program):
    """A program of `children/`: one JSON line in, one JSON line out.

    Times it tells are of `time.monotonic`, which all processes of a machine share.
    """

    def __init__(self, script, *arguments, folder, cores=None, before=(), interpreter=sys.executable, **env):
        words = [*before, interpreter, "-W", "ignore", HERE / "children" / script, *arguments]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        environment = environ(PYTHONPATH=f"{TASKS}:{os.environ.get('PYTHONPATH', '')}", **env)
        super().__init__(words, folder, name=f"{Path(script).stem}-{id(self)}", cores=cores, env=environment, **pipes)

    def begin(self, **command):
        """Give it a command; `answer` waits for what it says."""
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def answer(self):
        """Return the program's next answer, which is one line of JSON."""
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args} ended:\n{self.said()}")
        return json.loads(line)

    def ask(self, **command):
        """A command and its answer."""
        self.begin(**command)
        return self.answer()


class Daemon(Program):
    """`sidecar run` with default settings but the log's format, the port and what `settings` says."""

    def __init__(self, checkpoint_dir, task, *options, node="worker-0", before=(), cores=None, env=None, **settings):
        checkpoint_dir.mkdir(parents=True, exist_ok=True)
        folder = checkpoint_dir.parent / f"{checkpoint_dir.name}-{node}"
        self.run_dir = checkpoint_dir / ".sidecar" / checkpoint_dir.name
        self._address = settings.get("http")
        told = {"http": "127.0.0.1:0", "log_format": "json", "worker_logs": folder / "logs", **settings}
        words = [*before, Path(sys.executable).with_name("sidecar"), "run", "--checkpoint-dir", checkpoint_dir]
        words += ["--task", f"{TASKS / task}:task", "--node", node, "--role", "worker", "--host", "127.0.0.1", *options]
        variables = {f"SIDECAR_{name.upper()}": str(value) for name, value in told.items()}
        super().__init__(words, folder, name="daemon", cores=cores, env=environ(**variables, **(env or {})))

    def logged(self, event):
        """Lines of the log about an event."""
        lines = (line for line in self.log.read_text(errors="replace").splitlines() if line.endswith("}"))
        return [found for line in lines if line.startswith("{") and (found := json.loads(line))["event"] == event]

    def get(self, path):
        """The body of an answer."""
        if self._address is None:
            started = wait_until(lambda: self.logged("daemon_started"), f"the daemon: {self.said()}")
            self._address = started[0]["http"].removeprefix("http://")
        with contextlib.closing(http.client.HTTPConnection(self._address, timeout=10)) as connection:
            connection.request("GET", path)
            return connection.getresponse().read().decode()

    def is_standing_by(self, nodes=1):
        """Wait until the workers of so many nodes are there."""

        def look():
            status = json.loads(self.get("/api/status"))
            states = [each["state"] for each in status.get("workers", [])]
            return status.get("members", {}).get("ready") == nodes and states and set(states) <= {"standby", "idle"}

        wait_until(look, f"{nodes} nodes that stand by; {self.said()}", pause=0.5)

    def served(self, step):
        """When /metrics first showed this step. Nobody asks before the outcome is there: answering costs CPU time."""
        self._wait_for_outcome(step)

        def look():
            found = _STEP.search(self.get("/metrics"))
            return found is not None and float(found.group(1)) == step and time.monotonic()

        return wait_until(look, f"step {step}; {self.said()}", pause=POLL_SECONDS)

    def _wait_for_outcome(self, step):
        """Wait until there is one outcome for each step so far, asleep: looking every 5 ms costs workers 5 %."""
        outcomes = self.run_dir / "outcomes"
        wait_until(lambda: self._ended() or outcomes.is_dir(), "the first outcome", pause=_RARELY_SECONDS)
        arrived, handler = threading.Event(), FileSystemEventHandler()
        handler.on_created = lambda _: arrived.set()
        observer = Observer()
        observer.schedule(handler, str(outcomes), event_filter=[FileCreatedEvent])
        observer.start()
        try:
            wait_until(
                lambda: self._ended() or arrived.clear() or len(list(outcomes.glob("0*"))) >= step,
                f"step {step}",
                sleep=arrived.wait,
                pause=_RARELY_SECONDS,
            )
        finally:
            observer.stop()
            observer.join()

    def _ended(self):
        if self.process.poll() is not None:
            raise RuntimeError(f"the daemon ended:\n{self.said()}")

    def successes(self):
        """The rows of `sidecar history` that tell of an evaluation, oldest first."""
        return [row for row in rows(read_history(PosixStorage(self.run_dir))) if row["status"] == "succeeded"]


def start_nodes(stack, checkpoint_dir, task, nodes):
    """A daemon for each dict of arguments, all of one run, with warm standbys; `stack` ends them."""
    daemons = [
        stack.enter_context(Daemon(checkpoint_dir, task, node=f"worker-{number}", **node))
        for number, node in enumerate(nodes)
    ]
    for daemon in daemons:
        daemon.is_standing_by(len(nodes))
    return daemons


PHASES = ("detect", "agree", "restore", "evaluate", "save", "reduce", "publish")


def phases(rows, latency):
    """Medians of the phases, and what they do not explain of the latency."""
    medians = {phase: statistics.median(row["phases"][phase] for row in rows) for phase in PHASES}
    return medians | {"rest": latency - sum(medians.values())}


def check_workers(rows, count):
    """Raise unless every evaluation was made by so many workers: else something else was measured."""
    if {row["workers"] for row in rows} != {count}:
        raise RuntimeError(f"expected groups of {count}, found {[row['workers'] for row in rows]}")
