"""In which order a node wants what it found."""

from pathlib import Path

from sidecar.checkpoints import discovery_order
from sidecar.checkpoints.discovery_order import DiscoveryOrder, numbered
from sidecar.checkpoints.scan import DiscoveredCheckpoint
from sidecar.protocol.records import Checkpoint


def found(step, written_at):
    return DiscoveredCheckpoint(
        checkpoint=Checkpoint(name=f"ckpt-{step}", digest=f"{step:064d}", step=step, format="tf_object"),
        folder=Path("/pins"),
        written_at=written_at,
        seen_at=0.0,
    )


def steps(order):
    return [int(digest) for _, digest in sorted(order, key=order.__getitem__)]


def test_what_was_met_as_a_pin_only_finds_its_place():
    """However many, in whatever order they come, by the time at which they were written, which keeps a rollback."""
    here, known = DiscoveryOrder(), {}
    lying = [found(200, 20.0), found(400, 40.0), found(300, 50.0)]
    for now, each in enumerate(lying):
        here.add([each], known, {each.checkpoint.key}, float(now))
        known[each.checkpoint.key] = each
    for step, written_at in ((250, 30.0), (100, 10.0), (500, 45.0), (150, 15.0)):
        each = found(step, written_at)
        here.add([each], known, set(), 9.0)
        known[each.checkpoint.key] = each
    assert steps(here.places) == [100, 150, 200, 250, 400, 500, 300]


def test_what_comes_back_as_a_pin_is_later_than_an_older_pin_that_was_never_met():
    """Training keeps one checkpoint: this node saw the second of three, and meets the first two again as pins."""
    here, first, second, third = DiscoveryOrder(), found(100, 10.0), found(200, 20.0), found(300, 30.0)
    here.add([second], {}, {second.checkpoint.key}, 0.0)
    here.add([third], {second.checkpoint.key: second}, {third.checkpoint.key}, 1.0)
    here.add([first, second], {third.checkpoint.key: third}, {third.checkpoint.key}, 2.0)
    assert steps(here.places) == [100, 200, 300]


def test_what_could_not_be_read_at_first_is_no_rollback():
    """Its step is lower and it was written before; a rollback is written later, and what a step says may be unknown."""
    here = DiscoveryOrder()
    known = {each.checkpoint.key: each for each in (found(200, 20.0), found(300, 30.0))}
    here.add(known.values(), {}, known, 0.0)
    for each in (found(100, 10.0), found(250, 40.0), found(400, 5.0)):
        here.add([each], known, {each.checkpoint.key}, 9.0)
        known[each.checkpoint.key] = each
    assert steps(here.places) == [100, 200, 300, 250, 400]


def test_there_is_room_for_any_number_before_one():
    """A node that was cut off while a slow queue grew meets all of it at once, behind what it found itself."""
    here, lying = DiscoveryOrder(), [found(step, float(step)) for step in (*range(1, 5), 1000)]
    known = {each.checkpoint.key: each for each in lying}
    here.add(lying, {}, known, 0.0)
    here.add([found(step, float(step)) for step in range(5, 200)], known, set(), 9.0)
    assert steps(here.places) == [*range(1, 200), 1000]
    assert sorted(here.places.values()) == [*range(200)]


def test_what_is_newer_than_all_comes_last_though_it_is_pinned_already():
    """Another node saw it sooner."""
    here, first, second = DiscoveryOrder(), found(1, 10.0), found(2, 20.0)
    here.add([first], {}, {first.checkpoint.key}, 0.0)
    here.add([second], {first.checkpoint.key: first}, set(), 5.0)
    assert steps(here.places) == [1, 2]
    assert here.seen_at[second.checkpoint.key] == 5.0


def test_natural_order():
    """Numbers in names compare as numbers."""
    assert sorted(["b-1", "a-10", "a-9", "a", "10", "9"], key=lambda name: list(discovery_order.natural(name))) == [
        "9",
        "10",
        "a",
        "a-9",
        "a-10",
        "b-1",
    ]


def test_what_has_no_step_is_numbered_in_order():
    """From 1, whatever lies between."""
    nameless = [Checkpoint(name=name, digest="d", step=None, format="x") for name in ("a", "b")]
    assert numbered([nameless[0], found(7, 1.0).checkpoint, nameless[1]]) == {("a", "d"): 1, ("b", "d"): 2}


def test_of_checkpoints_that_are_gone_the_newest_keep_their_places():
    """A year of them takes no more memory than a day; what is there is never forgotten, and what is new comes last."""
    here, first = DiscoveryOrder(gone_remembered=3), found(1, 1.0)
    for step in range(1, 411):
        here.add([found(step, float(step))], {}, (), float(step))
        here.forget_gone({first.checkpoint.key})
        assert len(here.places) == len(here.seen_at) <= 1 + 3 + 100
    assert steps(here.places)[0] == 1
    assert steps(here.places)[-3:] == [408, 409, 410]
    assert len(set(here.places.values())) == len(here.places)
