"""What all tests of sinks share."""

import pytest

from sidecar.sinks import delivery


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    """A sink that failed is asked again soon."""
    monkeypatch.setattr(delivery, "_FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(delivery, "_LAST_PAUSE_SECONDS", 0.5)
