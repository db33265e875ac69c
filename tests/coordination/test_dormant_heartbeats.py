"""Skip heartbeat files that were not written for long, and remove those of nodes that are gone."""

import os

import pytest
from coordination.conftest import Counted

from sidecar.coordination.heartbeats import Heartbeats, heartbeat_path
from sidecar.protocol.codec import dumps


@pytest.fixture
def members(storage):
    return Heartbeats(storage, "run-a")


HOUR, WEEK = 3600.0, 7 * 86400.0


@pytest.fixture
def aged(put, new_heartbeat):
    """Write a heartbeat as if so many seconds ago; the daemon's clock is another than the storage's."""

    def write(node, seconds=0.0, **changes):
        at = 1_000_000_000.0 - seconds
        os.utime(put(heartbeat_path(node), new_heartbeat(node, **changes)), (at, at))

    return write


def beat(members, view, aged, now, *, step=0.0):
    """One visit of node `me`, which starts at 0; `step`: how much later it is on the storage's clock."""
    members.write(view.heartbeat("me"))
    aged("me", -now - step)
    view.wrote(view.heartbeat("me"), now)
    reading = members.read_due(now)
    view.observe(reading, now)
    return reading


@pytest.mark.parametrize("state", ["ready", "left"])
def test_beside_three_thousand_dead_nodes_the_living_are_known_at_once(
    storage, freshness, aged, put, new_heartbeat, state
):
    """Names that were made up for pods come to that: a start reads none whose file is an hour old."""
    content = dumps(new_heartbeat("dead-0", state=state))
    for number in range(3000):
        at = 1_000_000_000.0 - 2 * HOUR - number
        os.utime(put(heartbeat_path(f"dead-{number}"), content.replace(b"dead-0", b"dead-%d" % number)), (at, at))
    counted = Counted(storage)
    members, view = Heartbeats(counted, "run-a"), freshness()
    for number, now in enumerate((0.0, 0.5, 1.0, 1.5)):
        for node in ("a", "b", "c"):
            aged(node, -now, beat=number)
        beat(members, view, aged, now)
        if view.ready_to_propose(now):
            break
    assert now < 2.0
    assert [each.node for each in view.fresh_heartbeats(now)] == ["a", "b", "c", "me"]
    assert sum("dead" in path for method, path in counted.asked if method == "read") <= 2 * (number + 1)


def test_of_those_that_died_lately_the_newest_are_read_first(storage, freshness, aged):
    """Files of this hour say nothing yet; but who lives wrote last."""
    for number in range(200):
        aged(f"dead-{number}", HOUR / 2 + number)
    aged("z", 1.0)
    members, view = Heartbeats(storage, "run-a"), freshness()
    assert "z" in [each.node for each in beat(members, view, aged, 0.0).heartbeats]


def test_a_node_whose_file_seemed_old_is_read_first_as_soon_as_it_beats(storage, freshness, aged):
    """Its clock may be wrong, where clients set the times; that it changed while nobody read it says little."""
    aged("away", 3 * HOUR)
    members, view = Heartbeats(storage, "run-a"), freshness()
    assert beat(members, view, aged, 0.0).nodes == set()
    assert view.ready_to_propose(0.0)
    aged("away", 3 * HOUR - 30, beat=2)  # two hours behind, and alive
    assert beat(members, view, aged, 31.0).nodes == {"away"}
    assert not view.fresh("away", 31.0)
    for number in range(3, 60):
        aged("away", 3 * HOUR - 2 * number - 30, beat=number)
        beat(members, view, aged, 31.0 + 2 * number)
        assert view.fresh("away", 31.0 + 2 * number)
    assert (storage.root / heartbeat_path("away")).exists()


def test_storage_that_cannot_tell_when_files_were_written_has_no_dormant_ones(storage, freshness, aged):
    """All of one time, or none: every file is read, as it was ever."""
    for node in ("a", "b"):
        aged(node, 0.0)
    members, view = Heartbeats(storage, "run-a"), freshness()
    assert beat(members, view, aged, 0.0).nodes == {"a", "b"}


def visits(members, view, aged, begin, end, step=300.0):
    now = begin
    while now < end:
        beat(members, view, aged, now)
        now += step


def test_what_nodes_left_that_are_gone_is_removed(storage, freshness, aged, put):
    """A week after the last beat, or as it said that it left; not before an hour of looking has found no change."""
    aged("week", WEEK + HOUR)
    aged("left", 2 * HOUR, state="left")
    aged("days", WEEK / 2)
    aged("new", 0.0)
    torn = put("members/torn.json", b"{")
    os.utime(torn, (1_000_000_000 - 2 * WEEK,) * 2)
    (storage.root / "members" / "folder.json").mkdir()
    members, view = Heartbeats(storage, "run-a"), freshness()
    everybody = {"week", "left", "days", "new", "torn", "folder", "me"}
    names = lambda: {name.removesuffix(".json") for name in storage.names("members")}  # noqa: E731
    visits(members, view, aged, 0.0, HOUR)
    assert names() == everybody
    visits(members, view, aged, HOUR, 2 * HOUR)
    assert names() == everybody - {"week", "left", "torn"}
    visits(members, view, aged, WEEK / 2 + HOUR, WEEK / 2 + 4 * HOUR)
    assert names() == {"new", "folder", "me"}
    visits(members, view, aged, 8 / 7 * WEEK, 8 / 7 * WEEK + 4 * HOUR)
    assert names() == {"folder", "me"}
    assert beat(members, view, aged, 2 * WEEK).nodes == {"folder"}


def test_a_node_that_comes_back_keeps_its_file(storage, freshness, aged):
    """It beats again, if only once, before its old file would have gone."""
    aged("back", WEEK + HOUR)
    members, view = Heartbeats(storage, "run-a"), freshness()
    visits(members, view, aged, 0.0, HOUR)
    aged("back", -HOUR, beat=2)
    visits(members, view, aged, HOUR, 20 * HOUR)
    assert view.heartbeat("back").beat == 2
    assert "back.json" in storage.names("members")
