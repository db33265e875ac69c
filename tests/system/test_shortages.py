"""A shortage of the machine is told apart from an error in a file, in a setting or in this program."""

import errno
import os
import resource
import subprocess
import sys

import pytest

from sidecar.errors import SettingsError
from sidecar.system.shortages import LEAST_DESCRIPTORS, machine_shortage, require_descriptors, shortage


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_shortage_has_a_remedy(code):
    """Whichever file the call was about."""
    assert shortage(OSError(code, os.strerror(code), "/some/file"))


@pytest.mark.parametrize("code", [errno.EIO, errno.EAGAIN, errno.ENOSPC])
def test_other_errors_are_none(code):
    """They are about the file, or mean several things."""
    assert shortage(OSError(code, os.strerror(code))) is None


def test_a_thread_that_cannot_be_started_is_known_by_its_words():
    """Python raises no class of its own for it; these are those of this Python."""
    code = (
        "import resource, threading; resource.setrlimit(resource.RLIMIT_NPROC, (1, 1)); "
        "threading.Thread(target=print).start()"
    )
    words = [*(["setpriv", "--reuid", "54321", "--clear-groups"] if os.geteuid() == 0 else []), sys.executable]
    done = subprocess.run([*words, "-I", "-S", "-c", code], capture_output=True, text=True)
    if "Permission denied" in done.stderr or "loading shared libraries" in done.stderr:
        pytest.skip("no other user can run this Python")
    said = done.stderr.strip().splitlines()[-1].removeprefix("RuntimeError: ")
    found = machine_shortage(RuntimeError(said))
    assert found is not None, done.stderr
    assert found.retryable
    assert "ulimit -u" in str(found)


def test_other_errors_of_a_program_are_no_shortage():
    """They are bugs, and are reported as such."""
    assert machine_shortage(RuntimeError("dictionary changed size during iteration")) is None
    assert machine_shortage(OSError(errno.EIO, "Input/output error")) is None


def test_few_descriptors_are_refused():
    """In one sentence at the start, instead of an error here and there later."""
    with pytest.raises(SettingsError, match="may open 32 files"):
        require_descriptors((32, 32), pytest.fail)


@pytest.mark.parametrize("hard", [LEAST_DESCRIPTORS, resource.RLIM_INFINITY])
def test_a_limit_that_may_be_raised_is_raised(hard):
    """Nobody needs to be asked for that."""
    found = []
    require_descriptors((32, hard), lambda _, both: found.append(both))
    assert found == [(LEAST_DESCRIPTORS, hard)]


@pytest.mark.parametrize("limit", [1024, resource.RLIM_INFINITY])
def test_usual_limits_are_left_alone(limit):
    """Worker processes inherit them."""
    require_descriptors((limit, limit), pytest.fail)
