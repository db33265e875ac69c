"""Streams take nothing for a while, or never again: nobody waits for them, and lost lines are counted."""

import contextlib
import errno
import fcntl
import os
import time

import pytest

from sidecar.publishing.line_writer import LineWriter

PIPE_BYTES = 4096
F_SETPIPE_SZ = 1031
LONG = 2 << 20
SOON_SECONDS = 240


@pytest.fixture
def pipe():
    """The reading end of a small pipe, and a writer of lines on its other end."""
    read, write = os.pipe()
    fcntl.fcntl(write, F_SETPIPE_SZ, PIPE_BYTES)
    with os.fdopen(write, "w") as stream:
        yield read, LineWriter(stream, "{} lost".format)
        with contextlib.suppress(OSError):
            os.close(read)  # ends a thread that still writes


def read_until(descriptor, text, seconds=SOON_SECONDS):
    """Return what comes until a text has come."""
    found, end = "", time.monotonic() + seconds
    while text not in found:
        assert time.monotonic() < end, found[-200:]
        found += os.read(descriptor, 1 << 16).decode()
    return found


def test_a_line_is_written_when_the_call_returns(pipe):
    """So lines and what else the program prints keep their order."""
    read, writer = pipe
    writer.msg("one")
    writer.msg("two")
    os.set_blocking(read, False)
    assert os.read(read, 100) == b"one\ntwo\n"


def test_a_reader_that_stopped_holds_up_one_line_for_a_moment(pipe):
    """Those that follow wait in memory, up to a bound, and come in order as soon as the reader goes on."""
    read, writer = pipe
    lines = [f"{number:04}" + "x" * 1000 for number in range(2000)]
    for line in lines:
        writer.msg(line)
    writer.msg("short enough")
    *come, lost, last = read_until(read, "short enough\n").splitlines()
    assert come == lines[: len(come)]
    assert len(come) > 1000
    assert (lost, last) == (f"{len(lines) - len(come)} lost", "short enough")


def test_a_line_that_is_longer_than_all_that_may_wait_is_written(pipe):
    """A traceback of a user's code may be long."""
    read, writer = pipe
    writer.msg("y" * LONG)
    assert len(read_until(read, "\n")) == LONG + 1


def test_a_closed_pipe_is_no_error(pipe):
    """`sidecar run 2>&1 | head` goes on without a log, and ends without waiting for it."""
    read, writer = pipe
    os.close(read)
    for _ in range(3):
        writer.msg("nobody reads")
    writer.close()


def test_the_end_does_not_wait_for_a_reader_that_stopped(pipe):
    """The supervisor's own deadline would end the process otherwise."""
    _, writer = pipe
    writer.msg("x" * 2 * PIPE_BYTES)
    writer.close()


def test_lines_that_a_full_disk_refused_are_counted(tmp_path, system_calls):
    """The next line that is written says how many are missing before it."""
    path = tmp_path / "log"
    with path.open("w") as stream:
        writer = LineWriter(stream, "{} lost".format)
        system_calls.refuse("write", errno.ENOSPC, lambda descriptor, _: descriptor == stream.fileno())
        writer.msg("one")
        writer.msg("two")
        system_calls.allow()
        writer.msg("three")
    assert path.read_text() == "2 lost\nthree\n"
