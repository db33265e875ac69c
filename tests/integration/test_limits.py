"""The daemon has few descriptors, and a log that nobody reads, that is closed, or that lies on a full disk."""

import contextlib
import fcntl
import os

import pytest
from numpy_trainer import NUMPY

pytestmark = pytest.mark.timeout(900)

PIPE_BYTES = 4096
F_SETPIPE_SZ = 1031


def shell(code):
    """Words before a command by which a shell starts it."""
    return ["bash", "-c", f'{code} exec "$@"', "bash"]


@pytest.mark.nightly
def test_a_daemon_with_few_descriptors(trial):
    """64 are enough, with a sink, a hook and a page that is read."""
    daemon = trial.start(before=shell("ulimit -n 64;"), SIDECAR_TENSORBOARD_DIR=str(trial.folder.parent / "board"))
    trial.save(3)
    trial.evaluated()
    for path in ("/", "/metrics", "/api/status"):
        assert daemon.get(path)[0] == 200
    trial.judge()


@pytest.mark.nightly
def test_a_daemon_with_too_few_descriptors(sidecar, trial):
    """It says so with the remedy, instead of a traceback."""
    trial.save()
    daemon = sidecar.run(trial.folder, "--once", task="numpy_plain.py", before=shell("ulimit -n 32;"), **NUMPY)
    done = daemon.wait()
    assert done.code == 2
    assert "may open 32 files" in done.sentence
    assert "ulimit -n" in done.sentence


@pytest.mark.nightly
def test_the_log_is_a_closed_pipe(trial):
    """`sidecar run 2>&1 | head`: it goes on without a log."""
    trial.start(before=shell("exec 2> >(head -n 1 >/dev/null);"))
    trial.save(2)
    trial.judge()


@pytest.mark.nightly
def test_the_log_is_on_a_full_disk(trial):
    """It ends with 0 all the same."""
    trial.start(before=shell("exec 2>/dev/full;"))
    trial.save(2)
    trial.judge()


@pytest.mark.nightly
def test_nobody_reads_the_log(trial):
    """A terminal that is stopped, or a collector that hangs: the daemon evaluates, and the log goes on afterwards."""
    read, write = os.pipe()
    fcntl.fcntl(write, F_SETPIPE_SZ, PIPE_BYTES)
    daemon = trial.start(before=shell(f"exec 2>/proc/{os.getpid()}/fd/{write};"))
    try:
        trial.save(3)
        trial.evaluated()
        trial.save(2)
        trial.evaluated()
        assert daemon.process.poll() is None
        found = b""
        while found.count(b"evaluation_succeeded") < 5:
            found += os.read(read, 1 << 16)
        trial.judge()
    finally:
        for descriptor in (read, write):
            with contextlib.suppress(OSError):
                os.close(descriptor)


@pytest.mark.nightly
def test_standard_output_is_on_a_full_disk(sidecar, trial):
    """A table that is not whole is an error, in one sentence."""
    trial.start()
    trial.save(2)
    trial.judge()
    for command in (("history",), ("export",), ("status", "--no-observe")):
        name, *options = command
        done = sidecar.command(name, trial.folder, *options, before=shell("exec >/dev/full;"), **NUMPY)
        assert done.code == 4
        assert "standard output cannot be written: No space left on device" in done.sentence
