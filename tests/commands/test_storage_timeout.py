"""End a command whose storage does not answer."""

import threading

import pytest

from sidecar.commands.storage_timeout import StorageTimeout
from sidecar.coordination.storage import PosixStorage
from sidecar.errors import SettingsError, StorageError


def test_an_answer_is_passed_on():
    """None is an answer, too."""
    storage_timeout = StorageTimeout(5.0, "/x")
    assert storage_timeout.call(lambda: 7) == 7
    assert storage_timeout.call(lambda: None) is None


def test_an_error_is_raised_where_it_was_asked():
    """With its own exit code."""

    def fail():
        raise SettingsError("no")

    with pytest.raises(SettingsError, match="no"):
        StorageTimeout(5.0, "/x").call(fail)


def test_storage_that_hangs_is_told_in_a_sentence():
    """And nothing more is asked of it before it answers."""
    hanging = threading.Event()
    storage_timeout, asked = StorageTimeout(0.1, "/mnt/ckpts"), []
    with pytest.raises(StorageError, match=r"/mnt/ckpts\b.*\b0\.1 s\b.*storage_timeout_seconds"):
        storage_timeout.call(hanging.wait)
    with pytest.raises(StorageError):
        storage_timeout.call(lambda: asked.append(1))
    assert not asked
    hanging.set()
    assert storage_timeout.call(lambda: 3) == 3


def test_slow_is_not_silent(tmp_path):
    """Many answers may take much longer than the bound on one."""
    storage_timeout = StorageTimeout(0.2, "/x")
    heard = PosixStorage(tmp_path, storage_timeout.answered)

    def read_for_long():
        for _ in range(8):
            threading.Event().wait(0.05)
            heard.read("run.json")
        return True

    assert storage_timeout.call(read_for_long)
