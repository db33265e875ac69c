"""Two daemons have one name, or the name of the host changes: no evaluation is made twice, and the message says why."""

import os
import signal
import subprocess

import pytest

pytestmark = pytest.mark.timeout(900)

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="a host name of its own needs root")


@pytest.mark.nightly
def test_a_second_daemon_has_the_name_of_the_first(trial):
    """On another port, so that it learns of the first one by its heartbeats; it ends, and the first goes on."""
    trial.start()
    trial.save()
    trial.evaluated()
    first = trial.daemons["worker-0"]
    second = trial.start()
    done = second.wait()
    assert done.code == 6
    assert "worker-0" in done.sentence
    assert "--node" in done.sentence
    trial.daemons["worker-0"] = first
    trial.save()
    trial.judge()


@pytest.mark.nightly
def test_two_daemons_of_one_name_start_at_once(trial):
    """At least one of them is left, whichever it is, and each checkpoint is evaluated once."""
    both = [trial.start(), trial.start()]
    trial.save(3)
    trial.evaluated()
    living = [daemon for daemon in both if daemon.process.poll() is None]
    assert len(living) >= 1
    ended = [daemon for daemon in both if daemon not in living]
    assert all(daemon.process.returncode == 6 for daemon in ended)
    for daemon in living[:-1]:
        daemon.end(signal.SIGTERM)
    trial.daemons["worker-0"] = living[-1]
    trial.judge()


def named(host):
    """Words before a command by which it runs on a host of that name."""
    return ["unshare", "--uts", "sh", "-c", f'hostname {host} && exec "$@"', "sh"]


@pytest.mark.nightly
@only_root
def test_the_name_of_the_host_changes_between_two_starts(trial):
    """The plan that the daemon left open under its former name is closed, and the run goes on."""
    first = trial.start(None, before=named("alpha"), task="numpy_slow.py", SIDECAR_CACHE_BYTES="0")
    trial.save(3)
    first.evaluating()
    first.end(signal.SIGKILL)
    second = trial.start(None, before=named("beta"))
    trial.evaluated()
    assert second.status()["node"] == "beta"
    trial.judge(failures=1)


@only_root
@pytest.mark.nightly
def test_the_name_of_the_host_changes_under_a_daemon(trial):
    """Its name is that of its start, as long as it runs."""
    daemon = trial.start(None, before=named("alpha"))
    trial.save()
    trial.evaluated()
    subprocess.run(["nsenter", "--uts", "--target", str(daemon.pid), "hostname", "beta"], check=True)
    trial.save(2)
    trial.evaluated()
    assert daemon.status()["node"] == "alpha"
    trial.judge()
