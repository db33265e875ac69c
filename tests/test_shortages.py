"""What the machine lacks is told apart from what is wrong with a file, a setting or this program."""

import errno
import os
import resource

import pytest

from sidecar.errors import SettingsError
from sidecar.shortages import LEAST_DESCRIPTORS, require_descriptors, shortage


@pytest.fixture
def limits(monkeypatch):
    """Give this process limits of open files; returns those that were set."""
    found = []

    def give(soft, hard):
        monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
        monkeypatch.setattr(resource, "setrlimit", lambda _, both: found.append(both))
        return found

    return give


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_shortage_has_a_remedy(code):
    """Whichever file the call was about."""
    assert shortage(OSError(code, os.strerror(code), "/some/file"))


@pytest.mark.parametrize("code", [errno.EIO, errno.EAGAIN, errno.ENOSPC])
def test_other_errors_are_none(code):
    """They are about the file, or mean several things."""
    assert shortage(OSError(code, os.strerror(code))) is None


def test_few_descriptors_are_refused(limits):
    """In one sentence at the start, instead of an error here and there later."""
    found = limits(32, 32)
    with pytest.raises(SettingsError, match="may open 32 files"):
        require_descriptors()
    assert found == []


@pytest.mark.parametrize("hard", [LEAST_DESCRIPTORS, resource.RLIM_INFINITY])
def test_a_limit_that_may_be_raised_is_raised(limits, hard):
    """Nobody needs to be asked for that."""
    found = limits(32, hard)
    require_descriptors()
    assert found == [(LEAST_DESCRIPTORS, hard)]


def test_usual_limits_are_left_alone(limits):
    """Worker processes inherit them."""
    found = limits(1024, 1024)
    require_descriptors()
    found = limits(resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    require_descriptors()
    assert found == []
