"""Children lead groups of their own, end with the process that started them, and are waited for with a deadline."""

import os
import signal
import subprocess
from types import SimpleNamespace

import pytest
from processes import children

from sidecar.system.child import ChildProcess, output_of

SLEEP = ("sleep", "600")


def test_a_wait_has_a_deadline():
    """None is returned when the time is over, and the status as soon as there is one."""
    times = []
    popen = subprocess.Popen(SLEEP, start_new_session=True)
    child = ChildProcess(popen, None, now=lambda: sum(times), pause=times.append)
    assert child.wait_at_most(0.1) is None
    assert sum(times) == pytest.approx(0.1)
    assert child.wait_at_most(-1.0) is None
    child.kill()
    assert child.wait() == child.wait_at_most(0.0) == -signal.SIGKILL


def test_no_signal_is_sent_to_the_id_of_a_child_that_was_reaped(started):
    """The id may belong to another process group by then."""
    other = started(SLEEP)
    reaped = ChildProcess(SimpleNamespace(pid=other.pid, returncode=0), None)
    reaped.kill()
    reaped.send_signal(signal.SIGTERM)
    assert (reaped.wait_at_most(0.0), other.wait_at_most(0.1)) == (0, None)


def test_streams_directory_variables_and_open_files(started, tmp_path):
    """All of them reach the child, also past the shell that tells the guard its id."""
    (tmp_path / "file").write_text("content")
    with (tmp_path / "file").open("rb", buffering=0) as file:
        code = f'cat; echo "$WORD" "$1"; pwd; cat /proc/self/fd/{file.fileno()}'
        child = started(
            ("sh", "-c", code, "sh", "$HOME `id`"),
            guarded="group",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            environment={"WORD": "a  b", "PATH": os.environ["PATH"]},
            directory=str(tmp_path),
            descriptors=(file.fileno(),),
        )
    child.stdin.write(b"input\n")
    child.stdin.close()
    assert child.stdout.read().decode() == f"input\na  b $HOME `id`\n{tmp_path}\ncontent"
    assert child.wait() == 0


def test_output_of_a_program():
    """The output is returned, and None for every way in which a program can fail."""
    assert output_of(["echo", "words"], seconds=10) == "words\n"
    assert output_of(["false"], seconds=10) is None
    assert output_of(["/no/program"], seconds=10) is None
    before = children()
    assert output_of(["sh", "-c", "sleep 600 & wait"], seconds=0.05) is None
    assert children() == before


def test_ctrl_c_reaches_neither_a_child_nor_its_guard(started):
    """They lead sessions of their own, and a terminal signals the group of this process."""
    before = children()
    started(SLEEP, guarded="group")
    made = children() - before
    assert len(made) == 2
    assert os.getpgrp() not in {os.getpgid(pid) for pid in made}
