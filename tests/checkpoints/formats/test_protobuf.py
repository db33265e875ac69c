"""Read messages of Protocol Buffers out of any bytes."""

import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.checkpoints.formats.protobuf import fields
from sidecar.errors import CorruptError


@settings(deadline=5000)
@given(st.binary(max_size=100))
def test_arbitrary_messages_have_an_answer(data):
    """The wire format reader, likewise."""
    with contextlib.suppress(CorruptError):
        assert all(number < 1 << 61 for number, _, _ in fields(data))
