"""Tell pins, unfinished pins and their owners by the names of folders."""

from sidecar.protocol.records import Checkpoint
from sidecar.retention.pins.names import (
    digest_in_name,
    is_owned_by,
    is_pin,
    is_temporary,
    removed_name,
    unfinished_name,
)

CHECKPOINT = Checkpoint(name="ckpt-5", digest="0123456789abcdef" * 4, step=5, format="tf")


def test_an_unfinished_pin_names_its_checkpoint_and_its_owner():
    """Say which checkpoint is being copied, so that other nodes wait for the copy."""
    name = unfinished_name(CHECKPOINT, "node-1")
    assert (is_pin(name), is_temporary(name), digest_in_name(name)) == (False, True, "0123456789ab")
    assert is_owned_by(name, "node-1")
    assert not is_owned_by(name, "node-2")
    assert name != unfinished_name(CHECKPOINT, "node-1")


def test_an_owner_may_have_any_name():
    """Put nothing of the owner's name into the name of the folder."""
    name = unfinished_name(CHECKPOINT, "../\udcff\n")
    assert "/" not in name
    assert name.isprintable()
    assert is_owned_by(name, "../\udcff\n")


def test_a_pin_that_is_being_removed_is_temporary_and_of_nobody():
    """Never take it for a copy in the making."""
    name = removed_name()
    assert (is_pin(name), is_temporary(name), digest_in_name(name)) == (False, True, None)
    assert not is_owned_by(name, "node-1")


def test_a_pin_has_the_name_of_its_checkpoint():
    """Take no other folder for a pin that is not finished."""
    assert is_pin(CHECKPOINT.folder)
    assert not is_temporary(CHECKPOINT.folder)
    assert digest_in_name(CHECKPOINT.folder) is None
