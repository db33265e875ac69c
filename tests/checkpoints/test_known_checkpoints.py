"""Show what is known of checkpoints that lie in the directory, in a pin, or in both."""

from dataclasses import replace
from pathlib import Path

from sidecar.checkpoints.catalog import KnownCheckpoints
from sidecar.checkpoints.scan import DiscoveredCheckpoint
from sidecar.protocol.records import Checkpoint


def found(name, *, step=None, source="name", written_at=1.0):
    checkpoint = Checkpoint(name=name, digest=name, step=step, step_source=source, format="keras")
    return DiscoveredCheckpoint(checkpoint=checkpoint, folder=Path("/checkpoints"), written_at=written_at, seen_at=0.0)


def pinned(item):
    return replace(item, checkpoint=replace(item.checkpoint, pin="pins/x"), folder=Path("/pins/x"))


def by_key(*items):
    return {item.checkpoint.key: item for item in items}


def names(known):
    return [key[0] for key in known.by_key]


def test_a_checkpoint_is_known_by_its_pin():
    """Training may delete the one in the directory at any moment; the pin keeps its place and its discovery."""
    known, first, second = KnownCheckpoints(compares_names=False), found("a"), found("b", written_at=2.0)
    known.merge([first, second], {}, 10.0)
    known.merge([first, second], by_key(pinned(first)), 20.0)
    assert names(known) == ["a", "b"]
    assert [item.checkpoint.pin for item in known.by_key.values()] == ["pins/x", None]
    assert [item.seen_at for item in known.by_key.values()] == [10.0, 10.0]


def test_nothing_is_made_anew_while_nothing_changes():
    """Readers tell by the object whether anything changed."""
    known, item = KnownCheckpoints(compares_names=False), found("a")
    known.merge([item], {}, 10.0)
    before = known.by_key
    known.merge([item], {}, 20.0)
    assert known.by_key is before


def test_one_that_went_and_came_back_has_its_old_place():
    """A checkpoint that vanishes for a while must not look new again."""
    known, first, second = KnownCheckpoints(compares_names=False), found("a"), found("b", written_at=2.0)
    known.merge([first, second], {}, 10.0)
    known.merge([second], {}, 20.0)
    assert names(known) == ["b"]
    known.merge([first, second], {}, 30.0)
    assert names(known) == ["a", "b"]
    assert known.places == {first.checkpoint.key: 0, second.checkpoint.key: 1}


def test_steps_in_names_are_compared_unless_the_user_named_a_pattern():
    """Where two numbers stand in names of one shape, the one that differs is the step."""
    items = [found("m-12-75.keras", step=3), found("m-12-76.keras", step=4)]
    compared, patterned = KnownCheckpoints(compares_names=True), KnownCheckpoints(compares_names=False)
    for known in (compared, patterned):
        known.merge(items, {}, 10.0)
    assert [item.checkpoint.step for item in compared.by_key.values()] == [75, 76]
    assert [item.checkpoint.step for item in patterned.by_key.values()] == [3, 4]
