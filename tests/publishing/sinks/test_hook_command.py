"""A command gets the event, and no command can hold the daemon's thread, its processes, or its memory."""

import contextlib
import json
import os
import shlex
import subprocess
import sys
import threading
import time

import psutil
import pytest
from processes import MOST_SECONDS, children, gone, written

from sidecar.publishing.sinks.hook_command import HookCommand
from sidecar.publishing.sinks.sink import SinkUnavailableError

BODY = json.dumps({"event": "best", "filling": "x" * 500_000}).encode()  # more than a pipe holds
LIMIT_SECONDS = 0.5


def python(code):
    """A command that runs a program in Python."""
    return (sys.executable, "-I", "-S", "-c", code)


def shell(code):
    return ("sh", "-c", code)


def send(command, seconds=MOST_SECONDS):
    HookCommand(command, seconds).send(BODY, "id")


def command_of(pid):
    """The command of a process; nothing if it has ended meanwhile."""
    try:
        return psutil.Process(pid).cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


def test_the_event_is_on_standard_input(tmp_path):
    """Whole, though it is larger than a pipe."""
    send(shell(f"cat > {shlex.quote(str(tmp_path / 'got'))}"))
    assert (tmp_path / "got").read_bytes() == BODY


def test_arguments_are_not_for_a_shell(tmp_path):
    """Each word is one argument, whatever it holds."""
    word = f"$(touch {tmp_path}/planted); `id` * \n"
    send((*python(f"import sys; open({str(tmp_path / 'got')!r}, 'w').write(sys.argv[1])"), word))
    assert [path.name for path in tmp_path.iterdir()] == ["got"]
    assert (tmp_path / "got").read_text() == word


@pytest.mark.parametrize("code", ["exec 0<&-", "exit 0", "exec >&-; exec 2>&-; sleep 0.1"])
def test_a_command_that_does_not_read(code):
    """It has taken the event if it says so."""
    send(shell(code))


def test_a_failure_is_tried_again_and_says_what_was_printed():
    """Take it from either stream, in one line without control characters."""
    with pytest.raises(SinkUnavailableError, match="exited with 3") as caught:
        send(shell("echo out; printf '\\033[31mred' >&2; exit 3"))
    assert "out" in str(caught.value)
    assert str(caught.value).isprintable()


def test_a_command_that_is_killed_by_another():
    """The signal is named."""
    with pytest.raises(SinkUnavailableError, match="signal 9"):
        send(shell("kill -9 $$"))


@pytest.mark.parametrize("command", [("/nonexistent/program",), ("/",), (os.devnull,)])
def test_a_program_that_cannot_run(command):
    """As if it was removed after the start of the daemon."""
    with pytest.raises(SinkUnavailableError, match=command[0]):
        send(command)


HANGING = {
    "sleeps": shell("exec sleep 600"),
    "ignores SIGTERM": shell("trap '' TERM INT HUP; while :; do sleep 600; done"),
    "prints forever": shell("exec yes"),
    "prints binary forever": shell("exec cat /dev/zero"),
    "stops itself": shell("kill -STOP $$; sleep 600"),
    "closed its output": shell("exec >&-; exec 2>&-; exec sleep 600"),
    "spawns children": shell("sleep 600 & sleep 600 & wait"),
}


@pytest.mark.parametrize("command", HANGING.values(), ids=HANGING)
def test_a_command_that_hangs(command):
    """It is killed at its limit, and what it printed is cut."""
    before = children()
    began = time.monotonic()
    with pytest.raises(SinkUnavailableError) as caught:
        send(command, LIMIT_SECONDS)
    assert time.monotonic() - began < MOST_SECONDS / 2
    assert len(str(caught.value)) < 10_000
    assert children() == before


@pytest.mark.parametrize("code", ["while True: print('y' * 99)", "while True: print('y', flush=True)"])
def test_a_command_that_prints_without_end(code):
    """It is read, but it takes little of the daemon's CPU."""
    began = time.thread_time()
    with pytest.raises(SinkUnavailableError):
        send(python(code), 1.0)
    assert time.thread_time() - began < 0.15


def test_children_end_with_the_command(tmp_path):
    """Also those that hold its output open, after it has succeeded."""
    pid = tmp_path / "pid"
    began = time.monotonic()
    send(shell(f"sleep 600 & echo $! > {shlex.quote(str(pid))}"))
    assert time.monotonic() - began < MOST_SECONDS / 2
    assert gone(int(pid.read_text()))


def test_a_child_in_another_session_holds_nothing_up(tmp_path):
    """It lives on, as it asked for, and the next event is delivered."""
    pid = tmp_path / "pid"
    code = f"import os, time\nif os.fork(): os._exit(0)\nos.setsid()\nopen({str(pid)!r}, 'w').write(str(os.getpid()))\n"
    code += "time.sleep(600)"
    began = time.monotonic()
    try:
        send(python(code + "\n"))
        assert time.monotonic() - began < MOST_SECONDS / 2
    finally:
        end = time.monotonic() + MOST_SECONDS
        while time.monotonic() < end and not (pid.exists() and pid.read_text()):
            time.sleep(0.02)
            if time.monotonic() - began > 1 and not pid.exists():
                break  # it was killed with the group before it left it
        if pid.exists() and pid.read_text():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid.read_text()), 9)


def test_a_command_can_be_given_up():
    """By another thread, at the end of the daemon; none is started afterwards for longer than a moment."""
    hook = HookCommand(shell("exec sleep 600"), MOST_SECONDS)
    timer = threading.Timer(0.2, hook.close)
    timer.start()
    began = time.monotonic()
    with pytest.raises(SinkUnavailableError, match="daemon ends"):
        hook.send(BODY, "id")
    assert time.monotonic() - began < MOST_SECONDS / 2
    timer.join()


def test_a_command_ends_with_a_daemon_that_is_killed(tmp_path):
    """Nothing tells it so but its guard, which reaches its children, too."""
    pids = tmp_path / "pids"
    command = shell(f"sleep 600 & echo $$ $! > {shlex.quote(str(pids))}; wait")
    code = (
        f"from sidecar.publishing.sinks.hook_command import HookCommand; HookCommand({command!r}, 600).send(b'', 'id')"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as daemon:
        command_and_child = written(pids, 2)
        daemon.kill()
    assert all(gone(pid) for pid in command_and_child)


def test_a_guard_that_was_killed_is_replaced(tmp_path):
    """As the kernel may do when memory is short; nobody would end the command with its daemon otherwise."""
    before, go = children(), tmp_path / "go"
    thread = threading.Thread(target=send, args=(shell(f"until test -e {shlex.quote(str(go))}; do sleep 0.1; done"),))
    thread.start()

    def guards():
        return {pid for pid in children() - before if "process_guard" in " ".join(command_of(pid))}

    end, found = time.monotonic() + MOST_SECONDS, set()
    while not (found := guards()):
        assert time.monotonic() < end
    (guard,) = found
    os.kill(guard, 9)
    while not guards() - {guard}:
        assert time.monotonic() < end
        time.sleep(0.02)
    go.touch()
    thread.join()
    assert children() == before


def test_no_guard_is_left_over():
    """Neither after a command that succeeds, nor after one that cannot be started."""
    before = children()
    send(shell("exit 0"))
    with pytest.raises(SinkUnavailableError, match="/nonexistent/program"):
        send(("/nonexistent/program",))
    assert children() == before


def test_arguments_are_not_shown():
    """They may hold a password."""
    with pytest.raises(SinkUnavailableError) as caught:
        send(("sh", "-c", "exit 1", "secret"))
    assert "secret" not in str(caught.value)
