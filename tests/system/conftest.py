"""Children that a test starts."""

import contextlib

import pytest

from sidecar.system.child import start


@pytest.fixture
def started():
    """Start children; all are killed after the test."""
    with contextlib.ExitStack() as stack:

        def begin(command, **changes):
            child = start(command, **{"guarded": None} | changes)
            stack.callback(child.close)
            return child

        yield begin
