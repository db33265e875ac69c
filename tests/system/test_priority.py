"""Priorities of real processes, as the kernel reports them."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.system.priority import Priority, set_priority, threads_of

WITH_A_THREAD_AND_A_CHILD = """
import subprocess, sys, threading
child = subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], stdin=subprocess.PIPE)
threading.Thread(target=child.wait).start()
sys.stdin.read()
child.communicate()
"""


@pytest.fixture
def process():
    """A process with a second thread and a child, all of which run."""
    words = [sys.executable, "-c", WITH_A_THREAD_AND_A_CHILD]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as started:
        started.stdout.readline()
        yield started
        started.stdin.close()


def test_all_threads_of_a_process_tree_have_the_priority(process):
    """It is lowered and raised again, with the niceness of the session, by which the kernel may group processes."""
    threads = [int(thread.name) for thread in threads_of(process.pid)]
    assert len(threads) >= 3
    group = Path(f"/proc/{process.pid}/autogroup")
    for priority, policy, niceness in ((Priority.IDLE, os.SCHED_IDLE, "19"), (Priority.LOW, os.SCHED_OTHER, "10")):
        if not set_priority(process.pid, priority):
            pytest.skip("this user may not raise priorities")
        assert {os.sched_getscheduler(thread) for thread in threads} == {policy}
        assert not group.exists() or group.read_text().split()[1:] == ["nice", niceness]


def test_without_the_right_a_raise_is_refused(process, system_calls):
    """A daemon without RLIMIT_NICE must know of it."""
    system_calls.refuse("sched_setscheduler", errno.EPERM)
    assert not set_priority(process.pid, Priority.LOW)


def test_a_process_that_has_ended_has_no_priority():
    """Its number may be used at any time."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    assert set_priority(process.pid, Priority.IDLE)
    assert list(threads_of(process.pid)) == []
