"""Real processes: `sidecar` as a user starts it, checkpoints as TensorFlow writes them."""

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from faulty import Faulty, require_fuse
from integration.cluster import Cluster
from integration.torch_trainer import TORCH, TorchTrainer
from integration.trial import Trial
from numpy_trainer import NUMPY, NumpyTrainer
from prometheus_client.parser import text_string_to_metric_families

from sidecar.coordination.journal import read_history
from sidecar.coordination.storage import PosixStorage
from sidecar.publishing.report import rows

TASKS = Path(__file__).parent / "tasks"
SIDECAR = Path(sys.executable).with_name("sidecar")
PATIENCE_SECONDS = 240.0  # for what takes 10 s on an idle machine, and took 120 s on a busy one

OF_A_LAUNCHER = ("SIDECAR_", "KUBERNETES_", "SLURM", "MASTER_", "NODE_RANK", "GROUP_RANK", "RANK", "WORLD_SIZE")
QUICK = {
    "SIDECAR_HTTP": "127.0.0.1:0",
    "SIDECAR_LOG_FORMAT": "json",
    "SIDECAR_STANDBY": "false",
    "SIDECAR_YIELD_SECONDS": "0",  # tests run next to each other, and to whatever else this machine does
    "SIDECAR_QUIET_SECONDS": "0.1",
    "SIDECAR_GROUP_SETTLE_SECONDS": "0.1",
    "SIDECAR_BEAT_SECONDS": "0.5",
    "SIDECAR_LEASE_SECONDS": "5",
    "SIDECAR_BACKOFF_FIRST_SECONDS": "0.1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


def wait_until(condition, what, seconds=PATIENCE_SECONDS):
    """Return what the condition returns once that is true."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            pytest.fail(f"waited {seconds:.0f} s for {what() if callable(what) else what}")
        time.sleep(0.05)
    return found


def is_alive(pid):
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def said(self):
        """Return standard error without the log's lines, and those of a slow machine's progress."""
        return "\n".join(line for line in self.err.splitlines() if not line.startswith(("{", "progress: ")))

    @property
    def sentence(self):
        """The one line that was said, which is no traceback."""
        assert self.said.startswith("sidecar: "), self.err
        assert self.said.count("\n") == 0, self.said
        return self.said


@dataclass
class Program:
    """A running command whose output goes to files in `folder`."""

    folder: Path
    process: subprocess.Popen

    @property
    def pid(self):
        """Return the process id of the command."""
        return self.process.pid

    @property
    def out(self):
        """Return what it wrote so far on standard output."""
        return (self.folder / "out").read_text()

    @property
    def err(self):
        """Return what it wrote so far on standard error."""
        return (self.folder / "err").read_text()

    def children(self):
        """Process ids of everything it started and that lives."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return [each.pid for each in psutil.Process(self.pid).children(recursive=True) if is_alive(each.pid)]
        return []

    def wait(self, seconds=PATIENCE_SECONDS):
        """Wait for the end, and return the exit code and the output."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running after {seconds:.0f} s; it said:\n{self.err[-4000:]}")
        return Ended(self.process.returncode, self.out, self.err)

    def end(self, number, seconds=PATIENCE_SECONDS):
        """How it ended after a signal."""
        self.process.send_signal(number)
        return self.wait(seconds)


@dataclass
class Daemon(Program):
    """A running `sidecar run`: its log, its answers, its journal."""

    run_dir: Path = field(kw_only=True)
    reach: Callable = field(kw_only=True, default=socket.create_connection)

    def log(self, event=None):
        """Lines of the log, of one event or all."""
        lines = [json.loads(line) for line in self.err.splitlines() if line.startswith("{") and line.endswith("}")]
        return [line for line in lines if event in (None, line["event"])]

    def until(self, condition, what, seconds=PATIENCE_SECONDS):
        """Wait for something while the daemon lives."""

        def look():
            found = condition()
            if not found and self.process.poll() is not None:
                pytest.fail(f"the daemon ended with {self.process.returncode} before {what}:\n{self.err[-4000:]}")
            return found

        return wait_until(look, lambda: f"{what}; the daemon said:\n{self.err[-4000:]}", seconds)

    def logged(self, event, count=1):
        """The first lines of an event, once there are so many."""
        return self.until(lambda: (found := self.log(event))[count - 1 :] and found, f"{count} x {event}")

    def get(self, path):
        """Status and body of an answer."""
        host, port = self.logged("daemon_started")[0]["http"].removeprefix("http://").split(":")
        with contextlib.closing(http.client.HTTPConnection(host, int(port), timeout=60)) as connection:
            connection.sock = self.reach((host, int(port)))
            connection.sock.settimeout(10)
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def status(self):
        """Return what /api/status says."""
        return json.loads(self.get("/api/status")[1])

    def samples(self, name):
        """Return what /metrics says of one name, by labels without the run's."""
        families = text_string_to_metric_families(self.get("/metrics")[1])
        return {
            tuple(sorted((key, value) for key, value in each.labels.items() if key != "run")): each.value
            for family in families
            for each in family.samples
            if each.name == name
        }

    def worker_pids(self):
        """Worker processes by what they are doing."""
        return {each["pid"]: each["state"] for each in self.status()["workers"]}

    def worker_logs(self):
        """All that the worker processes printed."""
        return "".join(path.read_text(errors="replace") for path in sorted((self.folder / "logs").glob("*.log")))

    def history(self):
        """The rows of `sidecar history`."""
        return rows(read_history(PosixStorage(self.run_dir)))

    def successes(self):
        """Those that tell of an evaluation."""
        return [row for row in self.history() if row["status"] == "succeeded"]

    def evaluated(self, *saved):
        """The rows of these checkpoints, once all are evaluated."""
        names = {each["name"] for each in saved}
        self.until(lambda: names <= {row["checkpoint"] for row in self.successes()}, f"evaluations of {names}")
        return {row["checkpoint"]: row for row in self.successes() if row["checkpoint"] in names}

    def evaluating(self):
        """The row of /api/status about the open plan, once a worker is in the middle of its batches."""

        def look():
            status = self.status()
            busy = any(each["state"] == "evaluate" and each["batches"] for each in status["workers"])
            return status["plan"] if busy else None

        return self.until(look, "an evaluation under way")


class Sidecar:
    """Starts commands in an environment of which no launcher of a training job knows."""

    def __init__(self, make_folder):
        self._make_folder = make_folder
        self._programs = []

    def environ(self, folder, **more):
        """The environment that a command gets."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(OF_A_LAUNCHER)}
        for name in ("TF_CONFIG", "NOTIFY_SOCKET"):
            kept.pop(name, None)
        return kept | QUICK | {"SIDECAR_WORKER_LOGS": str(folder / "logs")} | more

    def start(self, *command, before=(), **environ):
        """Start any command of `sidecar`; `before` are words before it, `environ` is added."""
        folder = self._make_folder("sidecar")
        program = Program(folder, self._spawn(folder, [*before, SIDECAR, *command], environ))
        self._programs.append(program)
        return program

    def run(self, checkpoint_dir, *options, task=None, before=(), reach=socket.create_connection, **environ):
        """Start a daemon; `reach` connects to addresses of its machine."""
        folder = self._make_folder("daemon")
        words = [*before, SIDECAR, "run", "--checkpoint-dir", checkpoint_dir, *options]
        words += ["--task", f"{TASKS / task}:task"] if task else []
        process = self._spawn(folder, words, environ)
        run_dir = Path(checkpoint_dir, ".sidecar", Path(checkpoint_dir).name)
        daemon = Daemon(folder, process, run_dir=run_dir, reach=reach)
        self._programs.append(daemon)
        return daemon

    def command(self, *command, **environ):
        """How a command ends."""
        return self.start(*command, **environ).wait()

    def _spawn(self, folder, words, environ):
        with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
            return subprocess.Popen(
                [str(word) for word in words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=folder,
                env=self.environ(folder, **environ),
            )

    def close(self):
        """Kill what still runs."""
        for program in self._programs:
            program.process.kill()  # its workers go with it: tests prove that
            program.process.wait()


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory):
    """Starts `sidecar` commands; whatever still runs after a module is killed: it would take CPU and memory."""
    made = Sidecar(tmp_path_factory.mktemp)
    yield made
    made.close()


class Writer:
    """The training process: see writer.py."""

    def __init__(self, process, log):
        self._process, self._log = process, log

    def begin(self, folder, *steps, max_to_keep=100, every=0.0, form=""):
        """Tell it to save once per step; `saved` returns what came of each. `form`: one of those in writer.py."""
        command = {"folder": str(folder), "steps": steps, "max_to_keep": max_to_keep, "every": every, "form": form}
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def saved(self, count):
        """Return what Keras finds for each of the next checkpoints, once they are saved."""
        lines = [self._process.stdout.readline() for _ in range(count)]
        assert all(lines), f"the writer ended:\n{self._log.read_text()[-4000:]}"
        return [json.loads(line) for line in lines]

    def save(self, folder, *steps, max_to_keep=100, form=""):
        """Save once per step and wait for it."""
        self.begin(folder, *steps, max_to_keep=max_to_keep, form=form)
        return self.saved(len(steps))


@pytest.fixture(scope="session")
def writer(tmp_path_factory):
    log = tmp_path_factory.mktemp("writer") / "err"
    environ = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "KERAS_BACKEND": "tensorflow"}
    with (
        log.open("wb") as err,
        subprocess.Popen(
            [sys.executable, Path(__file__).with_name("writer.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=err,
            env=environ,
            text=True,
        ) as process,
    ):
        yield Writer(process, log)
        process.kill()


@pytest.fixture(scope="session")
def numpy_trainer():
    """Saves models that workers with `framework = "python"` evaluate."""
    made = NumpyTrainer()
    yield made
    made.close()


@pytest.fixture(scope="session")
def torch_trainer():
    """Saves the same models for workers of PyTorch."""
    made = TorchTrainer()
    yield made
    made.close()


@pytest.fixture(scope="module")
def new_cluster(sidecar, numpy_trainer, tmp_path_factory):
    """Makes a run whose nodes a test starts as it likes; it evaluates numpy models."""

    def make(folder=None):
        gate = tmp_path_factory.mktemp("gate")  # not on the storage, which a test may break
        folder = folder or tmp_path_factory.mktemp("cluster")
        return Cluster(sidecar, numpy_trainer, wait_until, folder, gate, task="numpy_gated.py", settings=NUMPY)

    return make


@pytest.fixture(scope="module")
def new_tensorflow_cluster(sidecar, writer, tmp_path_factory):
    """Makes the same run with checkpoints of TensorFlow, whose ranks talk to each other over the network."""

    def make():
        folder, gate = tmp_path_factory.mktemp("cluster"), tmp_path_factory.mktemp("gate")
        return Cluster(sidecar, writer, wait_until, folder, gate, task="gated.py", settings={})

    return make


@pytest.fixture(scope="module")
def new_torch_cluster(sidecar, torch_trainer, tmp_path_factory):
    """Makes the same run with PyTorch, whose ranks are connected by gloo."""

    def make(folder=None):
        gate = tmp_path_factory.mktemp("gate")
        folder = folder or tmp_path_factory.mktemp("cluster")
        return Cluster(sidecar, torch_trainer, wait_until, folder, gate, task="torch_gated.py", settings=TORCH)

    return make


@pytest.fixture
def new_trial(sidecar, numpy_trainer, tmp_path):
    """Makes a training on which faults are inflicted; `state` is its state directory if that is elsewhere."""
    made = []

    def make(folder=tmp_path, state=None):
        made.append(Trial(sidecar, numpy_trainer, wait_until, folder, state))
        return made[-1]

    yield make
    for each in made:
        each.end()


@pytest.fixture
def trial(new_trial):
    """Make one training on which faults are inflicted."""
    return new_trial()


@pytest.fixture(scope="session")
def alive():
    """Which of these processes live."""
    return lambda pids: [pid for pid in pids if is_alive(pid)]


@pytest.fixture(scope="session")
def until():
    return wait_until


@pytest.fixture(scope="session")
def tasks():
    """The folder of task files."""
    return TASKS


@pytest.fixture
def faulty(tmp_path):
    """A filesystem that fails, or hangs, where a test says so."""
    require_fuse()
    (tmp_path / "disk").mkdir()
    with Faulty(tmp_path / "disk", tmp_path / "seen") as made:
        yield made


@pytest.fixture
def place(tmp_path):
    """A checkpoint directory that exists."""
    folder = tmp_path / "ckpts"
    folder.mkdir()
    return folder
