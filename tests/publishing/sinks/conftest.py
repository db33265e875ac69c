"""What all tests of sinks share."""

import pytest

from sidecar.publishing.sinks import delivery, waiting_events
from sidecar.publishing.sinks.journal_events import stored_entries


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    """A sink that failed is asked again soon."""
    monkeypatch.setattr(delivery, "_FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(delivery, "_LAST_PAUSE_SECONDS", 0.5)


@pytest.fixture
def journal_reads(monkeypatch):
    """A list that grows with each time that a delivery reads the whole journal in storage."""
    reads = []
    monkeypatch.setattr(waiting_events, "stored_entries", lambda storage: reads.append(1) or stored_entries(storage))
    return reads
