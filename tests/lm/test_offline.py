"""Libraries of Hugging Face fetch nothing, unless the user says so."""

import os

from sidecar.lm.offline import offline, would_fetch


def test_libraries_are_offline_within_a_block_alone(monkeypatch):
    """Unless the user says that they may fetch; what was set before is restored."""
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with offline():
        assert os.environ["HF_HUB_OFFLINE"] == os.environ["HF_HUB_DISABLE_TELEMETRY"] == "1"
    assert "HF_HUB_OFFLINE" not in os.environ
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    with offline():
        assert os.environ["HF_HUB_OFFLINE"] == "0"


def test_a_refused_connection_is_found_below_other_errors():
    """Libraries wrap it several times."""
    error = ValueError("no data")
    assert not would_fetch(error)
    error.__cause__ = ConnectionError("Couldn't reach 'x' on the Hub")
    assert would_fetch(error)
