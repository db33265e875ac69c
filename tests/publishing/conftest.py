"""A journal in miniature, and the status of a daemon, shared by the tests of their views."""

import pytest
from journals import Journal, settlement
from statuses import make_status

from sidecar.publishing.status import Newest, WorkerStatus


@pytest.fixture
def journal():
    """Return an empty journal in memory."""
    return Journal()


@pytest.fixture
def settle():
    """Return a function that makes settlements."""
    return settlement


@pytest.fixture
def status():
    """Make the status of a ready publisher, with changes."""
    ready = {
        "run": "mnist",
        "node": "worker-0",
        "incarnation": "i",
        "version": "0.1.0",
        "role": "worker",
        "role_source": "TF_CONFIG",
        "state": "ready",
        "publisher": True,
        "unready": None,
        "journal_read": True,
        "pending": 3,
        "oldest_pending": 1769860700.5,
        "newest": Newest(step=700, written_at=1769860800.25, checkpoint="ckpt-7", digest="digest", step_source="name"),
        "group_size": 2,
        "groups_formed": 4,
        "members": {"ready": 2},
        "workers": (
            WorkerStatus(worker="w1-0", pid=4242, state="evaluate", batches=3, total_batches=8),
            WorkerStatus(worker="w1-9", pid=4243, state="standby"),
        ),
        "pins_bytes": 1024,
        "saves_bytes": 2048,
        "left_out": {"worker-7": "it runs version 2, most nodes 1"},
        "left_out_reasons": {"version": 1},
        "sentences": ("ckpt-9@d: Input/output error",),
        "count": 1,
    }
    return lambda **changes: make_status(**{**ready, **changes})
