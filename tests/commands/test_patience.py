import threading

import pytest

from sidecar.commands.patience import HeardStorage, Patience
from sidecar.errors import SettingsError, StorageError


def test_an_answer_is_passed_on():
    """None is an answer, too."""
    patience = Patience(5.0, "/x")
    assert patience.ask(lambda: 7) == 7
    assert patience.ask(lambda: None) is None


def test_an_error_is_raised_where_it_was_asked():
    """With its own exit code."""

    def fail():
        raise SettingsError("no")

    with pytest.raises(SettingsError, match="no"):
        Patience(5.0, "/x").ask(fail)


def test_storage_that_hangs_is_told_in_a_sentence():
    """And nothing more is asked of it before it answers."""
    hanging = threading.Event()
    patience, asked = Patience(0.1, "/mnt/ckpts"), []
    with pytest.raises(StorageError, match=r"/mnt/ckpts\b.*\b0\.1 s\b.*storage_timeout_seconds"):
        patience.ask(hanging.wait)
    with pytest.raises(StorageError):
        patience.ask(lambda: asked.append(1))
    assert not asked
    hanging.set()
    assert patience.ask(lambda: 3) == 3


def test_slow_is_not_silent(storage):
    """Many answers may take much longer than the bound on one."""
    patience = Patience(0.2, "/x")
    heard = HeardStorage(storage, patience.heard)

    def read_for_long():
        for _ in range(8):
            threading.Event().wait(0.05)
            heard.read("run.json")
        return True

    assert patience.ask(read_for_long)
