"""End the children of a program that is killed."""

import contextlib
import os
import re
import signal
import subprocess
import sys

import psutil
import pytest
from processes import children, gone, written

from sidecar.system.child import start

SLEEP = ("sleep", "600")


def family(place):
    """Return a command with a child in its process group and one in a session of its own, which writes their ids."""
    code = "import os, subprocess, sys, time\nkinds = (False, True)\n"
    code += "made = [subprocess.Popen(['sleep', '600'], start_new_session=kind) for kind in kinds]\n"
    code += "print(os.getpid(), *(each.pid for each in made), file=open(sys.argv[1], 'w'))\ntime.sleep(600)"
    return (sys.executable, "-I", "-c", code, str(place))


@pytest.mark.parametrize("guarded", ["group", "descendants"])
def test_children_end_with_a_program_that_gets_sigkill(tmp_path, guarded):
    """Only the guard can do it: nothing else is left of the program. A session of its own is spared on demand."""
    command = family(tmp_path / "pids")
    code = f"from sidecar.system.child import start; start({command!r}, guarded={guarded!r}).wait()"
    with subprocess.Popen([sys.executable, "-c", code]) as program:
        leader, member, apart = written(tmp_path / "pids", 3)
        program.kill()
    try:
        assert gone(leader)
        assert gone(member)
        assert guarded == "group" or gone(apart)
        assert guarded == "descendants" or psutil.pid_exists(apart)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(apart, signal.SIGKILL)


@pytest.mark.parametrize("guarded", ["group", "descendants"])
def test_children_end_with_their_leader(started, tmp_path, guarded):
    """The child was killed by somebody: nothing of its group is left, and on demand no descendant at all."""
    before = children()
    child = started(family(tmp_path / "pids"), guarded=guarded)
    leader, member, apart = written(tmp_path / "pids", 3)
    assert leader == child.pid
    os.kill(leader, signal.SIGKILL)
    try:
        assert child.wait() == -signal.SIGKILL
        assert gone(member)
        assert guarded == "group" or gone(apart)
        assert children() == before
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(apart, signal.SIGKILL)


def test_a_worker_that_forks_without_end_is_ended(tmp_path):
    """Its log says why; no descendant is left, whatever sessions they begin. A few processes are no reason.

    It goes on forking: others that end at the same time hide its first processes in the number of the machine's.
    """
    code = (
        "import os, sys, time\nfrom sidecar.system import process_guard\n"
        "process_guard.MOST_PROCESSES = 20\nprocess_guard.leave_guard('TEST_MARK=forks')\n"
        "def fork(count):\n"
        "    for _ in range(count):\n"
        "        if os.fork() == 0:\n            os.setsid()\n            time.sleep(600)\n"
        "fork(15)\ntime.sleep(2)\nprint('few', file=sys.stderr)\n"
        "for _ in range(100):\n    fork(5)\n    time.sleep(0.1)\n"
    )
    environ = os.environ | {"TEST_MARK": "forks"}
    command = [sys.executable, "-c", code]
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(command, stdin=subprocess.PIPE, stderr=log, env=environ, process_group=0) as program,
    ):
        assert program.wait(240) == -signal.SIGKILL
        said = (tmp_path / "log").read_text()
    assert re.fullmatch(r"few\nsidecar: the task has started [0-9]+ processes, more than 20: .*\n", said)
    left = [each for each in psutil.process_iter() if _has_mark(each)]
    assert psutil.wait_procs(left, 30)[1] == []


def _has_mark(process):
    """Return whether a process is one of the test's."""
    with contextlib.suppress(psutil.Error):
        return process.environ().get("TEST_MARK") == "forks"
    return False


def test_a_program_that_cannot_be_started_leaves_no_guard():
    """The error is raised as it came."""

    def refuse(*_, **__):
        raise OSError(11, "no process")

    before = children()
    with pytest.raises(OSError, match="no process"):
        start(SLEEP, guarded="descendants", starter=refuse)
    with pytest.raises(FileNotFoundError, match="/no/program"):
        start(("/no/program",), guarded=None)
    assert children() == before


def test_a_guard_that_cannot_be_replaced_yet_costs_nothing(started, monkeypatch, tmp_path):
    """Its id and its pipe belong to others by then, and it is replaced as soon as there is room for a process."""
    before = children()
    child = started(SLEEP, guarded="group")
    (guard,) = children() - before - {child.pid}
    os.kill(guard, signal.SIGKILL)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/no/python")
        assert gone(guard)
        child.renew_guard()
        with (tmp_path / "file").open("w") as takes_the_number_of_the_pipe:
            child.renew_guard()
            os.fstat(takes_the_number_of_the_pipe.fileno())
    child.renew_guard()
    assert len(children() - before - {child.pid}) == 1
    child.close()
    assert children() == before
