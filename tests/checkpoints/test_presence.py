"""Ask storage for one checkpoint by name: it is there, gone, or cannot be asked."""

import errno
import os

import pytest
from faults import failing

from sidecar.checkpoints.presence import Presence

CODES = [errno.EIO, errno.EACCES, errno.ESTALE]


def test_who_is_asked_by_name_says_what_is_there(lying):
    """All files as they were, or a pin; one that is gone or replaced is enough."""
    catalog = lying.catalog()
    found = catalog.scan().found[0]
    index = lying.root / "ckpt-1.index"
    assert catalog.ask(found).presence is Presence.THERE
    content = index.read_bytes()
    index.unlink()
    assert catalog.ask(found).presence is Presence.GONE
    index.write_bytes(content + b" ")
    assert catalog.ask(found).presence is Presence.GONE
    (lying.pins / found.checkpoint.folder).mkdir()
    assert catalog.ask(found).presence is Presence.THERE


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("place", ["", "ckpt-1.index", ".sidecar/pins"])
def test_who_cannot_be_asked_is_not_gone(lying, place, code):
    """Nothing is concluded from an error."""
    catalog = lying.catalog()
    found = catalog.scan().found[0]
    (lying.root / "ckpt-1.index").unlink()
    call = "stat" if place == "ckpt-1.index" else "open"
    with failing(call, lying.root / place if place else lying.root, code):
        presence, why = catalog.ask(found)
    assert presence is Presence.UNKNOWN
    assert os.strerror(code) in why
    assert catalog.ask(found).presence is Presence.GONE
