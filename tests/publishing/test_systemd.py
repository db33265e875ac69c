"""Notify a service manager."""

import os
import socket

import pytest

from sidecar.protocol.records import Value
from sidecar.publishing.systemd import Notifier, describe


class Clock:
    """Time that passes when a test says so."""

    seconds = 0.0

    def now(self):
        """Return the seconds to which the test moved the clock."""
        return self.seconds


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def manager(tmp_path):
    """A service manager's socket: `said()` is what was heard since it was asked last, as lists of lines."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.bind(str(tmp_path / "notify"))
    listener.setblocking(False)

    def said():
        heard = []
        while True:
            try:
                heard.append(listener.recv(4096).decode().split("\n"))
            except BlockingIOError:
                return heard

    yield said
    listener.close()


@pytest.fixture
def environ(tmp_path):
    return {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "40000000", "WATCHDOG_PID": str(os.getpid())}


def test_ready_is_said_once_and_not_before_the_task_was_checked(environ, manager, clock, status, journal):
    """`systemctl start` returns when the daemon knows that it can do its work, and not before."""
    notify = Notifier(environ, clock=clock)
    notify(status(state="starting", unready="the task is being checked"), journal.history)
    notify(status(), journal.history)
    notify(status(), journal.history)
    (first, second) = manager()
    assert first == ["STATUS=the task is being checked; 3 pending", "WATCHDOG=1"]
    assert second == ["READY=1", "STATUS=waiting for a checkpoint; 3 pending"]


def test_the_watchdog_hears_the_loop_four_times_a_period(environ, manager, clock, status, journal):
    """Every turn may say that it turned, and does so when a quarter of the period is over."""
    notify = Notifier(environ, clock=clock)
    heard_at = []
    for second in range(41):
        clock.seconds = second
        notify(status(), journal.history)
        heard_at += [second for lines in manager() if "WATCHDOG=1" in lines]
    assert heard_at == [0, 10, 20, 30, 40]


@pytest.mark.parametrize(
    "changes", [{"WATCHDOG_USEC": "soon"}, {"WATCHDOG_USEC": ""}, {"WATCHDOG_PID": "1"}, {"WATCHDOG_PID": "x"}]
)
def test_a_watchdog_that_waits_for_nobody_or_another_hears_nothing(environ, manager, clock, status, journal, changes):
    """WATCHDOG_PID names another process, or no period is given."""
    Notifier(environ | changes, clock=clock)(status(), journal.history)
    assert manager() == [["READY=1", "STATUS=waiting for a checkpoint; 3 pending"]]


def test_stopping_is_said(environ, manager, clock, status, journal):
    """While it drains, systemd knows that the daemon is on its way out."""
    notify = Notifier(environ, clock=clock)
    notify(status(), journal.history)
    notify(status(state="draining", unready="the daemon is draining"), journal.history)
    assert manager()[-1] == ["STATUS=the daemon is draining; 3 pending", "STOPPING=1"]


@pytest.mark.parametrize("name", ["a\nWATCHDOG=trigger", "no\udcfftext", "\x1b[31m"], ids=ascii)
def test_odd_names_stay_in_their_line(environ, manager, clock, status, journal, name):
    """The name of a checkpoint is no message to systemd, and one that is no text ends nothing."""
    Notifier(environ, clock=clock)(status(unready=f"cannot read {name}"), journal.history)
    assert manager() == [
        ["READY=1", f"STATUS=cannot read {ascii(' '.join(name.split()))[1:-1]}; 3 pending", "WATCHDOG=1"]
    ]


def test_what_was_not_heard_is_said_again(environ, clock, status, journal, tmp_path):
    """A manager that was restarted (a socket that is gone for a while) hears everything at the next turn."""
    notify = Notifier(environ | {"NOTIFY_SOCKET": str(tmp_path / "later")}, clock=clock)
    notify(status(), journal.history)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as late:
        late.bind(str(tmp_path / "later"))
        notify(status(), journal.history)
        assert late.recv(4096).decode().split("\n")[0] == "READY=1"


def test_a_manager_that_does_not_read_never_stops_the_loop(environ, clock, status, journal):
    """Its queue runs full; the loop goes on at once."""
    notify = Notifier(environ, clock=clock)
    for number in range(5000):
        notify(status(pending=number + 1), journal.history)


def test_abstract_sockets(clock, status, journal):
    """`@name` is Linux' abstract namespace, as containers and user managers use it."""
    name = f"sidecar-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0{name}")
        Notifier({"NOTIFY_SOCKET": f"@{name}"}, clock=clock)(status(), journal.history)
        assert listener.recv(4096).startswith(b"READY=1\n")


def test_without_a_manager_nothing_is_said(status, journal, clock):
    """Outside systemd there is no socket."""
    Notifier({}, clock=clock)(status(), journal.history)


def test_the_line_tells_work_queue_and_newest_numbers(journal, status):
    """Answer in `systemctl status` what a daemon does, whether it keeps up, and how good the model is."""
    journal.evaluate("ckpt-4", 400, {"accuracy": Value(value=0.97123, hex="h"), "loss": Value(value=None, hex="nan")})
    journal.plan("ckpt-5")
    line = describe(status(), journal.history)
    assert line == "evaluating ckpt-5 (plan 2, 2 workers); 3 pending; newest ckpt-4: accuracy 0.97123, loss nan"


def test_a_chief_says_why_it_idles(journal, status):
    """So nobody looks for evaluations there."""
    assert describe(status(role="chief", pending=0), journal.history) == "idle: this is the chief (TF_CONFIG)"


def test_a_checkpoint_cannot_speak_to_the_manager(journal, status):
    """A name with line breaks stays one line: it must not add fields such as MAINPID."""
    journal.plan("ckpt\nMAINPID=1")
    assert "\n" not in describe(status(), journal.history)
