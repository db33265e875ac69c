"""Starting and ending worker processes, without a framework where none is needed."""

import errno
import os
import queue
import signal
import subprocess
import sys
import time
import venv

import psutil
import pytest

import sidecar.daemon.workers.process as process_module
from sidecar.daemon.workers.process import Exited, Halted, start
from sidecar.errors import SettingsError, ShortageError, StorageError
from sidecar.protocol.messages import Failed, Ready

PARENT = """
import os, queue, sys
from pathlib import Path
from sidecar.daemon.workers.process import start

inbox = queue.SimpleQueue()
folder = Path(sys.argv[1])
worker = start(
    "w", interpreter=sys.executable, framework="python", environment=dict(os.environ), directory=str(folder),
    log=folder / "w.log", keep_logs=(), post=lambda _, report: inbox.put(report),
)
print(worker.pid, flush=True)
print(type(inbox.get(timeout=600)).__name__, flush=True)
inbox.get()
"""


@pytest.fixture
def launched(tmp_path):
    """Starts a worker under some interpreter; returns it with the reports to come."""
    started = []

    def launch(interpreter=sys.executable, **changes):
        inbox = queue.SimpleQueue()
        usual = {
            "framework": "tensorflow",
            "environment": {"PATH": "/usr/bin:/bin"},
            "directory": str(tmp_path),
            "log": tmp_path / "logs" / "w.log",
            "keep_logs": (),
            "post": lambda _, report: inbox.put(report),
        }
        process = start("w", interpreter=str(interpreter), **usual | changes)
        started.append(process)
        return process, inbox

    yield launch
    for process in started:
        process.kill()
        assert process.join(240)


def test_old_logs_go_when_a_worker_is_started(launched, tmp_path):
    """Keep logs of the newest workers that ended, of living ones, and of all other nodes."""
    logs = tmp_path / "logs"
    logs.mkdir()
    for number in range(30):
        for node in ("n[1]", "n2", "n[1].example"):
            (logs / f"{node}.a.{number}.log").touch()
            os.utime(logs / f"{node}.a.{number}.log", (number, number))
    launched("/bin/true", log=logs / "n[1].b.1.log", keep_logs={"n[1].a.3"})
    left = {path.name for path in logs.iterdir()}
    of_others = {f"{node}.a.{number}.log" for node in ("n2", "n[1].example") for number in range(30)}
    own = {f"n[1].a.{number}.log" for number in (3, *range(10, 30))}
    assert left == of_others | own | {"n[1].b.1.log"}


def test_no_worker_outlives_its_parent(tmp_path, quiet_environment):
    """A daemon killed with SIGKILL leaves no worker behind."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=quiet_environment
    ) as parent:
        worker = psutil.Process(int(parent.stdout.readline()))
        assert parent.stdout.readline() == "Ready\n"
        parent.kill()
        parent.wait(240)
    for _ in range(200):
        if not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE:
            return
        time.sleep(0.05)
    pytest.fail("the worker is still there")


ESCAPING_TASK = """
import os, subprocess, sys
from pathlib import Path
from sidecar import Task
from sidecar.metrics import Accuracy

Path("children").mkdir(exist_ok=True)
note = "import os, time; open(f'children/{os.getpid()}', 'w').close(); time.sleep(600)"
usual = subprocess.Popen([sys.executable, "-c", note])
session = subprocess.Popen([sys.executable, "-c", note], start_new_session=True)
if os.fork() == 0:  # as a daemon does it: two forks, and a session of its own
    os.setsid()
    if os.fork() == 0:
        open(f"children/{os.getpid()}", "w").close()
        below = subprocess.Popen([sys.executable, "-c", note], env={}, start_new_session=True)
        below.wait()
    os._exit(0)
task = Task(load=print, predict=print, eval_sets={"test": print}, metrics=lambda: [Accuracy()], batch_size=1)
"""


@pytest.mark.parametrize("killed", ["daemon", "worker"])
def test_nothing_that_the_users_code_started_outlives_daemon_or_worker(tmp_path, quiet_environment, killed):
    """Children of the task go, also those in sessions of their own, which neither signals of the kernel reach."""
    (tmp_path / "a_task.py").write_text(ESCAPING_TASK)
    check = (
        "\nfrom sidecar.protocol.messages import Check\n"
        "check = Check(task='a_task.py:task', framework='python', search_path='.', threads=1)\nworker.send(check)\n"
        "while type(inbox.get(timeout=600)).__name__ != 'Checked': pass\nprint('Checked', flush=True)\n"
        "while inbox.get(): pass\n"
    )
    code = PARENT.rsplit("inbox.get()\n", 1)[0] + check
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=quiet_environment
    ) as parent:
        try:
            worker = psutil.Process(int(parent.stdout.readline()))
            assert [parent.stdout.readline() for _ in range(2)] == ["Ready\n", "Checked\n"]
            deadline = time.monotonic() + 60
            while len(children := [int(path.name) for path in (tmp_path / "children").iterdir()]) < 4:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            left = [worker, *worker.children(recursive=True)]
            left += [psutil.Process(each) for each in children]
            (parent if killed == "daemon" else worker).kill()
            _, alive = psutil.wait_procs(left, timeout=240)
            assert [each for each in alive if each.status() != psutil.STATUS_ZOMBIE] == []
        finally:
            parent.kill()
            parent.wait(240)


def test_interpreter_without_the_framework(launched, tmp_path):
    """The user named a Python that lacks the framework: a sentence, no traceback."""
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    _, inbox = launched(tmp_path / "bare" / "bin" / "python")
    failed = inbox.get(timeout=240)
    assert isinstance(failed, Failed)
    assert failed.kind == "join"
    assert "has no module 'numpy': " in failed.message
    assert 'worker_python = "/' in failed.message
    assert inbox.get(timeout=240) == Exited(0, "")


def test_interpreter_that_does_not_exist(launched):
    """A wrong `worker_python` is a setting to mend."""
    with pytest.raises(SettingsError, match=r"worker_python '/no/python'.*No such file") as caught:
        launched("/no/python")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(("code", "remedy"), [(errno.EMFILE, "ulimit -n"), (errno.EAGAIN, "ulimit -u")])
def test_what_the_machine_lacks_is_no_fault_of_the_interpreter(launched, code, remedy):
    """The daemon tries again, because the machine may have it later."""

    def refuse(*_, **__):
        raise OSError(code, os.strerror(code), sys.executable)

    with pytest.raises(ShortageError, match=f"{os.strerror(code)}.*{remedy}") as caught:
        launched(start_child=refuse)
    assert caught.value.retryable


def test_directory_that_does_not_exist(launched):
    """The folder that tasks are searched in, not the interpreter, is blamed."""
    with pytest.raises(SettingsError, match=r"/no/folder.*No such file"):
        launched(directory="/no/folder")


def test_log_that_cannot_be_written(launched, tmp_path):
    """A log below a file: the storage is blamed, not the interpreter."""
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"log.*/file/logs/w\.log\b"):
        launched(log=tmp_path / "file" / "logs" / "w.log")


def speaking(tmp_path, code):
    """An interpreter of ours that runs this code in place of the worker."""
    script = tmp_path / "interpreter"
    script.write_text(
        f"#!{sys.executable}\nimport os, signal, subprocess, sys, time\n"
        f"pipe = int(sys.argv[sys.argv.index('--reports') + 1])\n{code}\n"
    )
    script.chmod(0o755)
    return script


def test_end_is_told_with_the_logs_end(launched, tmp_path):
    """Reports first, then Exited with the status and the last words."""
    code = """
os.write(pipe, b'{"type":"Ready","framework":"x","version":"1"}\\n')
print("x" * 5000 + "last words", flush=True)
sys.exit(3)"""
    _, inbox = launched(speaking(tmp_path, code))
    assert inbox.get(timeout=240) == Ready("x", "1")
    exited = inbox.get(timeout=240)
    assert exited.status == 3
    assert exited.tail.endswith("xlast words")
    assert len(exited.tail) < 4001
    assert str(exited).startswith("the worker process exited with 3; its log ends: xxx")


def test_a_worker_that_another_run_takes_over_reports_to_it_under_its_new_name(launched, tmp_path):
    """Its log moves with it. Nobody takes over a process whose end was told."""
    process, before = launched(speaking(tmp_path, 'input()\nprint("last words", flush=True)\nsys.exit(3)'))
    inbox, log = queue.SimpleQueue(), tmp_path / "other" / "v.log"
    assert process.rename("v", lambda *event: inbox.put(event), log)
    os.kill(process.pid, signal.SIGSTOP)
    assert inbox.get(timeout=240) == ("v", Halted(True))
    process.kill()
    name, exited = inbox.get(timeout=240)
    assert (name, type(exited)) == ("v", Exited)
    assert before.empty()
    assert (log.exists(), (tmp_path / "logs" / "w.log").exists()) == (True, False)
    assert not process.rename("u", lambda *event: inbox.put(event), log)
    assert inbox.empty()


@pytest.mark.parametrize(("signal_", "more", "told"), [(9, 1, True), (9, 0, False), (6, 1, False)])
def test_a_kill_for_lack_of_memory_is_told(launched, tmp_path, monkeypatch, signal_, more, told):
    """The kernel counts its kills; another signal, or a kill without a count, has another cause."""
    counts = tmp_path / "vmstat"
    monkeypatch.setattr(process_module, "_VMSTAT", counts)
    counts.write_text("nr_free_pages 7\noom_kill 4\n")
    code = f"""
open({str(counts)!r}, "w").write("nr_free_pages 7\\noom_kill {4 + more}\\n")
os.kill(os.getpid(), {signal_})"""
    _, inbox = launched(speaking(tmp_path, code))
    exited = inbox.get(timeout=240)
    assert exited.memory_short is told
    assert ("batch_size" in str(exited)) is told


@pytest.mark.parametrize("line", ["no json", '{"type":"Join"}', '{"type":"Nothing"}', "[]"])
def test_nonsense_is_not_listened_to(launched, tmp_path, line):
    """A process that speaks another language is reported and killed; commands do not come up either."""
    _, inbox = launched(speaking(tmp_path, f"os.write(pipe, {line.encode()!r} + b'\\n')\ntime.sleep(600)"))
    failed = inbox.get(timeout=240)
    assert failed.kind == "worker_died"
    assert "the worker process sent an invalid report" in failed.message
    assert inbox.get(timeout=240).status == -9


def test_child_that_left_the_group_does_not_hide_the_end(launched, tmp_path, monkeypatch):
    """A child in a session of its own may hold the pipe open: the end is told all the same."""
    monkeypatch.setattr("sidecar.daemon.workers.process._DRAIN_SECONDS", 0.2)
    code = """
child = subprocess.Popen(["sleep", "600"], start_new_session=True, pass_fds=[pipe])
print(child.pid, flush=True)"""
    _, inbox = launched(speaking(tmp_path, code))
    exited = inbox.get(timeout=240)
    try:
        assert exited.status == 0
    finally:
        psutil.Process(int(exited.tail)).kill()


def test_commands_to_the_dead_are_dropped(launched, tmp_path):
    """The sender learns of the end by Exited, not by an exception."""
    process, inbox = launched(speaking(tmp_path, ""))
    assert inbox.get(timeout=240).status == 0
    process.send(Ready("x", "1"))
    process.kill()


def test_a_halt_is_told_and_its_end(launched, tmp_path):
    """SIGSTOP makes a process silent, not dead: the kernel tells of it, as often as it happens, and of what follows."""
    process, inbox = launched(speaking(tmp_path, "time.sleep(600)"))
    for _ in range(2):
        os.kill(process.pid, signal.SIGSTOP)
        assert inbox.get(timeout=240) == Halted(halted=True)
        os.kill(process.pid, signal.SIGCONT)
        assert inbox.get(timeout=240) == Halted(halted=False)
    os.kill(process.pid, signal.SIGSTOP)
    assert inbox.get(timeout=240) == Halted(halted=True)
    process.kill()
    assert inbox.get(timeout=240).status == -signal.SIGKILL
