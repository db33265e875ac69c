"""Show what a service manager and an administrator see of a daemon."""

import contextlib
import os
import signal
import socket
import subprocess
import time

import psutil
import pytest
from numpy_trainer import NUMPY


class Manager:
    """A service manager's socket, and everything heard there."""

    def __init__(self, listener):
        self._listener = listener
        self._heard = []

    def heard(self):
        """All messages so far."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self._heard.append(self._listener.recv(4096))
        return self._heard

    def count(self, line):
        """How often a line was heard."""
        return sum(line in each.split(b"\n") for each in self.heard())


@pytest.fixture
def manager(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.setblocking(False)
        yield Manager(listener)


def test_systemd_hears_start_life_and_stop(sidecar, place, manager, tmp_path):
    """READY once, WATCHDOG as long as the loop turns and not while it is frozen, STOPPING on the way out."""
    watched = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000"}
    daemon = sidecar.run(place, "--role", "chief", **watched)
    daemon.until(lambda: manager.count(b"READY=1"), "READY")
    signs = manager.count(b"WATCHDOG=1")
    daemon.until(lambda: manager.count(b"WATCHDOG=1") >= signs + 3, "three signs of life")
    os.kill(daemon.pid, signal.SIGSTOP)
    daemon.until(lambda: psutil.Process(daemon.pid).status() == psutil.STATUS_STOPPED, "the stop")
    frozen = len(manager.heard())
    time.sleep(1.5)  # nothing can be waited for: silence is what is proven, over more than the longest turn
    assert len(manager.heard()) == frozen
    os.kill(daemon.pid, signal.SIGCONT)
    ended = daemon.end(signal.SIGTERM)
    assert ended.code == 0
    assert manager.count(b"STOPPING=1") == manager.count(b"READY=1") == 1


def test_an_address_of_the_internet_is_a_loud_warning(sidecar, place):
    """Worker ports ask for no password: who advertises them to the world is told, with what to do."""
    daemon = sidecar.run(place, "--host", "8.8.8.8", task="plain.py")
    (warning,) = daemon.logged("eval_ports_public")
    assert (warning["level"], warning["host"], warning["ports"]) == ("warning", "8.8.8.8", "21000-21999")
    assert warning["addresses"].startswith("8.8.8.8")
    assert "firewall" in warning["remedy"]
    daemon.process.kill()
    checked = sidecar.command("check", "--checkpoint-dir", place, "--host", "8.8.8.8", "--role", "worker")
    assert checked.code != 0
    assert "8.8.8.8 is a public address" in " ".join(checked.out.split())


@pytest.fixture
def own_network():
    """Words before a command that give it interfaces of its own: 10.0.0.9, and 9.9.9.9 if `public`."""

    def words(*, public):
        commands = "ip link set lo up; ip address add 10.0.0.9/32 dev lo; "
        commands += "ip address add 9.9.9.9/32 dev lo; " if public else ""
        return ("unshare", "--net", "sh", "-c", f'{commands}exec "$@"', "sh")

    if subprocess.run([*words(public=True), "true"], capture_output=True).returncode != 0:
        pytest.skip("no network namespace can be made here")
    return words


def test_another_address_of_the_machine_that_is_public(sidecar, place, own_network):
    """TensorFlow listens on every address, whatever is advertised. It may be behind a firewall: no failed check."""
    before = own_network(public=True)
    daemon = sidecar.run(place, "--host", "10.0.0.9", task="plain.py", before=before)
    (warning,) = daemon.logged("eval_ports_public")
    assert (warning["host"], warning["addresses"]) == ("10.0.0.9", "9.9.9.9")
    daemon.process.kill()
    words = ("check", "--checkpoint-dir", place, "--host", "10.0.0.9", "--role", "worker")
    told = " ".join(sidecar.start(*words, before=before).wait().out.split())
    assert "ok network this machine also has a public address (9.9.9.9)" in told


def test_workers_that_open_no_port_need_no_firewall(sidecar, place):
    """With `framework = "python"` they meet in the state directory, so a public address is no reason to warn."""
    daemon = sidecar.run(place, "--host", "8.8.8.8", task="numpy_plain.py", **NUMPY)
    daemon.logged("daemon_started")
    assert daemon.end(signal.SIGTERM).code == 0
    assert not daemon.log("eval_ports_public")
    checked = sidecar.command("check", "--checkpoint-dir", place, "--host", "8.8.8.8", "--role", "worker", **NUMPY)
    assert "public address" not in " ".join(checked.out.split())


def test_a_private_address_is_none(sidecar, place, own_network):
    """Nobody is warned for nothing."""
    daemon = sidecar.run(place, "--host", "10.0.0.9", task="plain.py", before=own_network(public=False))
    daemon.logged("daemon_started")
    assert daemon.end(signal.SIGTERM).code == 0
    assert not daemon.log("eval_ports_public")


def test_check_beside_a_daemon_of_the_run(sidecar, place, tmp_path):
    """The address that this run's own daemon serves on is no trouble; another program's is."""
    daemon = sidecar.run(place, "--role", "chief")
    address = daemon.logged("daemon_started")[0]["http"].removeprefix("http://")
    words = ("check", "--role", "chief", "--http", address, "--checkpoint-dir")
    same = sidecar.command(*words, place)
    assert "is served by this run's daemon" in " ".join(same.out.split()), same.out
    assert same.code == 0
    other = sidecar.command(*words, tmp_path / "another")
    assert other.code == 1
    assert "Address already in use" in " ".join(other.out.split())
    daemon.process.kill()


@pytest.mark.parametrize(
    "answer", [pytest.param(b"", marks=pytest.mark.nightly), b"HTTP/1.0 200 OK\r\n\r\n[]", b"220 mail\r\n"]
)
def test_check_where_somebody_else_serves(sidecar, place, answer):
    """Take no other program that answers there for a daemon."""
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        address = f"127.0.0.1:{stranger.getsockname()[1]}"
        program = sidecar.start("check", "--role", "chief", "--http", address, "--checkpoint-dir", place)
        stranger.settimeout(60)
        client, _ = stranger.accept()
        with client:
            client.sendall(answer)
        done = program.wait()
    assert done.code == 1
    assert "Address already in use" in " ".join(done.out.split())
