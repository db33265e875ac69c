"""Decide from heartbeats alone which nodes are alive, silent, or gone."""

import random

import pytest

from sidecar.coordination.liveness import HeartbeatReadings, Liveness, natural_order

LEASE = 10.0


def look(*heartbeats):
    return HeartbeatReadings(heartbeats=heartbeats)


def test_names_are_ordered_as_people_count():
    """Numbers count, text compares, and names that look alike still differ."""
    names = ["", "10", "9", "a", "a-2-b", "a-10-a", "a-10-b", "worker-02", "worker-2", "worker-10", "worker-10a", "é-1"]
    shuffled = random.Random(0).sample(names, len(names))
    assert sorted(shuffled, key=natural_order) == ["", "9", "10", *names[3:]]
    assert len({natural_order(name) for name in names}) == len(names)


def test_a_file_that_storage_does_not_give_says_nothing_of_its_node(freshness, new_heartbeat):
    """An error is not silence: the node is not given up by it, nor is it counted on for longer than its lease."""
    view = freshness()
    view.observe(look(new_heartbeat("a", beat=1)), 0.0)
    view.observe(look(new_heartbeat("a", beat=2)), 2.0)
    for at in (4.0, 8.0, 12.0, 40.0):
        view.wrote(new_heartbeat("me", beat=int(at)), at)
        view.observe(
            HeartbeatReadings(heartbeats=(), unread={"a": "Input/output error"}, unanswered=frozenset({"a"})), at
        )
        assert view.lost("a") is None
    assert not view.fresh("a", 12.0)
    assert view.ready_to_propose(40.0)
    assert [[each.node for each in view.unheard(at)] for at in (4.0, 12.0, 600.0, 700.0)] == [[], ["a"], ["a"], []]


def test_who_is_there_or_gone_is_not_unheard(freshness, new_heartbeat):
    """A silence that this node watched for a lease is an answer, and so is a farewell."""
    view = freshness()
    view.observe(look(new_heartbeat("a"), new_heartbeat("b", state="left")), 0.0)
    view.observe(look(new_heartbeat("a", beat=2)), 2.0)
    assert not view.unheard(3.0)
    for at in (8.0, 13.0):
        view.observe(look(new_heartbeat("a", beat=2)), at)
    assert (view.lost("a") is None, view.unheard(13.0)) == (False, [])


def test_only_a_change_is_a_sign_of_life(freshness, new_heartbeat):
    """A file that stands there may be years old; when it changes its node is there, for a lease."""
    view = freshness()
    assert view.observe(look(new_heartbeat("a", beat=5)), 0.0) == []
    assert not view.fresh("a", 0.0)
    assert view.observe(look(new_heartbeat("a", beat=5)), 2.0) == []
    assert view.observe(look(new_heartbeat("a", beat=6)), 4.0) == ["a"]
    assert view.fresh("a", 13.9)
    assert not view.fresh("a", 14.0)


def test_a_change_of_anything_counts_and_a_stale_read_does_not(freshness, new_heartbeat):
    """The same beat with another state is news, a smaller beat is the past, a new incarnation begins anew."""
    view = freshness()
    view.observe(look(new_heartbeat("a", beat=5)), 0.0)
    assert view.observe(look(new_heartbeat("a", beat=5, state="draining")), 1.0) == ["a"]
    assert view.observe(look(new_heartbeat("a", beat=4)), 2.0) == []
    assert view.heartbeat("a").beat == 5
    assert view.observe(look(new_heartbeat("a", beat=1, incarnation="i2")), 3.0) == ["a"]
    assert view.heartbeat("a").incarnation == "i2"


def test_a_newcomer_is_fresh_at_once(freshness, new_heartbeat):
    """A file that was not there a moment ago was written since."""
    view = freshness()
    view.observe(look(), 0.0)
    assert view.observe(look(new_heartbeat("a")), 2.0) == ["a"]
    assert view.fresh("a", 2.0)
    assert view.ready_to_propose(2.0)


def test_a_file_that_appeared_while_nobody_looked_is_no_newcomer(freshness, new_heartbeat):
    """Its node may be dead again by the time that somebody looks."""
    view = freshness()
    view.observe(look(), 0.0)
    assert view.observe(look(new_heartbeat("a")), 10.0) == []
    assert not view.fresh("a", 10.0)


def test_a_file_that_could_not_be_read_for_a_while_is_not_changed_by_that(freshness, new_heartbeat):
    """Only other content than the last one known is a sign of life, also across an absence."""
    view = freshness()
    view.observe(look(new_heartbeat("a")), 0.0)
    for now in (1.0, 50.0):
        view.observe(HeartbeatReadings(heartbeats=(), unread={"a": "torn"}), now)
        assert view.observe(look(new_heartbeat("a")), now + 1) == []
    assert view.observe(look(new_heartbeat("a", beat=2)), 52.0) == ["a"]


def test_nobody_waits_for_who_left(freshness, new_heartbeat):
    """Its file stays, and does not delay the first proposal."""
    view = freshness()
    view.observe(look(new_heartbeat("a", state="left")), 0.0)
    assert view.ready_to_propose(0.0)


def test_who_left_is_not_there(freshness, new_heartbeat):
    """The last heartbeat of a node that left is a change, yet no presence."""
    view = freshness()
    view.observe(look(new_heartbeat("a", beat=1)), 0.0)
    view.observe(look(new_heartbeat("a", beat=2, state="left")), 1.0)
    assert not view.fresh("a", 1.0)
    assert view.lost("a") == "a left"


def test_fresh_nodes_come_in_natural_order_with_this_one_among_them(freshness, new_heartbeat):
    """The order by which daemons find their proposer."""
    view = freshness()
    view.observe(look(), 0.0)
    view.observe(look(*(new_heartbeat(node) for node in ("worker-10", "worker-2", "a"))), 1.0)
    assert [heartbeat.node for heartbeat in view.fresh_heartbeats(1.0)] == ["a", "me", "worker-2", "worker-10"]


def test_who_cannot_write_does_not_count_itself(freshness, new_heartbeat):
    """A lease after the last own heartbeat this node is neither fresh nor ready, until it writes again."""
    view = freshness()
    view.observe(look(), 9.0)
    assert view.ready_to_propose(9.9)
    view.observe(look(new_heartbeat("me", beat=77)), 10.0)  # what is read of oneself proves nothing
    assert not view.fresh("me", 10.0)
    assert not view.ready_to_propose(10.0)
    view.wrote(new_heartbeat("me", beat=78), 11.0)
    assert view.ready_to_propose(11.0)


@pytest.mark.parametrize(
    ("looks", "now", "ready"),
    [
        ([], 0.0, False),
        ([(0.0, {})], 0.0, True),
        ([(0.0, {"a": 1})], 0.0, False),
        ([(0.0, {"a": 1}), (2.0, {"a": 1})], 2.0, False),
        ([(0.0, {"a": 1}), (2.0, {"a": 2})], 2.0, True),
        ([(0.0, {"a": 1, "b": 1}), (2.0, {"a": 2, "b": 1})], 2.0, False),
        ([(0.0, {"a": 1, "b": 1}), (2.0, {"a": 2, "b": 1}), (9.9, {"a": 3, "b": 1})], 9.9, False),
        ([(0.0, {"a": 1, "b": 1}), (2.0, {"a": 2, "b": 1}), (9.9, {"a": 3, "b": 1})], 10.0, True),
        ([(0.0, {"a": 1}), (2.0, {})], 9.9, False),
        ([(0.0, {"a": 1}), (2.0, {})], 10.0, True),
    ],
    ids=[
        "not before looking",
        "alone: at once",
        "one stands there",
        "one is silent so far",
        "one has changed",
        "two, of which one has changed",
        "one silent almost for a lease",
        "one silent for a lease",
        "a file vanished a moment ago",
        "a file vanished a lease ago",
    ],
)
def test_at_the_start_a_node_gets_to_know_the_others_before_it_proposes(freshness, new_heartbeat, looks, now, ready):
    """Every file it saw has changed once or been silent for a lease."""
    view = freshness()
    for at, beats in looks:
        view.observe(look(*(new_heartbeat(node, beat=beat) for node, beat in beats.items())), at)
        view.wrote(new_heartbeat("me"), at)
    assert view.ready_to_propose(now) is ready


def test_a_look_at_some_is_no_look_at_all(freshness, new_heartbeat):
    """A node that read only some does not know yet who else is there."""
    view = freshness()
    view.observe(HeartbeatReadings(heartbeats=(new_heartbeat("a", beat=1),), complete=False), 0.0)
    view.observe(HeartbeatReadings(heartbeats=(new_heartbeat("a", beat=2),), complete=False), 1.0)
    assert view.fresh("a", 1.0)
    assert not view.ready_to_propose(1.0)


def test_a_listed_member_is_lost_after_a_lease_of_silence_while_it_is_watched(freshness, new_heartbeat):
    """Whether it stood there unchanged, went silent later, or has no file at all."""
    view = freshness()
    for at in (0.0, 3.0, 6.0, 9.9):
        changing = new_heartbeat("b", beat=1 if at == 0 else 2)
        view.observe(
            HeartbeatReadings(heartbeats=(new_heartbeat("a"), changing), unread={"c": "absent"}, complete=False), at
        )
        assert [view.lost(node) for node in "abc"] == [None] * 3
    view.observe(
        HeartbeatReadings(
            heartbeats=(new_heartbeat("a"), new_heartbeat("b", beat=2)), unread={"c": "torn"}, complete=False
        ),
        10.0,
    )
    assert view.lost("a") == "a was silent for its lease of 10.0 seconds"
    assert [view.gone_since(node) for node in "abc"] == [0.0, None, 0.0]
    assert view.lost("never looked at") is None


def test_a_restarted_member_is_lost_to_its_plan(freshness, new_heartbeat):
    """Another incarnation does not know the plan, however alive it is."""
    view = freshness()
    view.observe(look(new_heartbeat("a")), 0.0)
    assert view.lost("a", "i1") is None
    view.observe(look(new_heartbeat("a", incarnation="i2")), 1.0)
    assert view.lost("a", "i1") == "a was restarted"
    assert view.lost("a", "i2") is None
    assert view.lost("a") is None


def test_a_members_silence_counts_only_while_this_node_looks(freshness, new_heartbeat):
    """After an absence of its own it gives nobody up, and trusts nobody, until it has watched again."""
    view = freshness()
    view.observe(look(new_heartbeat("a", beat=1), new_heartbeat("b", beat=1)), 0.0)
    view.observe(look(new_heartbeat("a", beat=2), new_heartbeat("b", beat=2)), 1.0)
    view.wrote(new_heartbeat("me", beat=2), 100.0)
    assert view.observe(look(new_heartbeat("a", beat=2), new_heartbeat("b", beat=40)), 100.0) == []
    assert [view.lost(node) for node in "ab"] == [None, None]
    assert not view.fresh("b", 100.0)
    assert not view.ready_to_propose(100.0)
    view.observe(look(new_heartbeat("a", beat=2), new_heartbeat("b", beat=41)), 102.0)
    assert view.fresh("b", 102.0)
    view.observe(look(new_heartbeat("a", beat=2), new_heartbeat("b", beat=42)), 110.0)
    assert view.gone_since("a") == 100.0
    view.wrote(new_heartbeat("me", beat=3), 110.0)
    assert view.ready_to_propose(110.0)


def test_a_pause_of_one_lease_is_one_also_where_another_node_has_a_longer_one(freshness, new_heartbeat):
    """Storage failed for all for 15 s: who has not beaten again yet when this node reads on is not lost by that."""
    view = freshness()
    for at in range(0, 30, 2):
        view.observe(look(new_heartbeat("slow", beat=at // 8), new_heartbeat("quick", beat=at)), float(at))
    assert (view.lease_of("quick"), view.lease_of("slow")) == (LEASE, 18.0)
    view.observe(look(new_heartbeat("slow", beat=3), new_heartbeat("quick", beat=28)), 43.0)
    assert view.lost("quick") is None
    view.observe(look(new_heartbeat("slow", beat=3), new_heartbeat("quick", beat=28)), 50.0)
    assert view.lost("quick") is None
    view.observe(look(new_heartbeat("slow", beat=3), new_heartbeat("quick", beat=28)), 53.5)
    assert "silent" in view.lost("quick")


@pytest.mark.parametrize(
    ("changes", "lease"),
    [
        ([0, 2, 4, 6], 10.0),
        ([0, 2, 7, 9], 12.0),
        ([0, 2, 7, 16], 24.0),
        ([0, 2, 14, 16], 30.0),
        ([0, 2, 500, 502], 30.0),
    ],
    ids=["regular", "a gap of 5", "gaps of 5 and 9", "a gap over the lease", "a node that was away"],
)
def test_the_lease_is_three_times_the_longest_silence_within_reason(freshness, new_heartbeat, changes, lease):
    """Storage that shows changes late does not make its nodes flap, nor does one long absence make them immortal.

    Silence lasts to the last reading without a change: the second after it was this reader's.
    """
    view = freshness()
    for now in range(changes[-1] + 1):
        beat = sum(change <= now for change in changes)
        view.observe(look(new_heartbeat("a", beat=beat)), float(now))
    assert view.lease_of("a") == lease
    last = changes[-1]
    assert view.fresh("a", last + lease - 0.1)
    assert not view.fresh("a", last + lease)


def test_a_gap_is_forgotten_after_a_while(freshness, new_heartbeat):
    """A bad minute of the storage does not make its nodes hard to miss for ever."""
    view, now, leases = freshness(), 0.0, []
    view.observe(look(new_heartbeat("a", beat=0)), now)
    for beat in range(1, 700):
        for _ in range(3 if beat == 10 else 0):
            now += 3.0
            view.observe(look(new_heartbeat("a", beat=beat - 1)), now)
        now += 2.0
        view.observe(look(new_heartbeat("a", beat=beat)), now)
        leases.append(view.lease_of("a"))
    assert leases[9:300] == [27.0] * 291
    assert leases[-1] == LEASE


def test_a_restart_is_no_gap(freshness, new_heartbeat):
    """The time that a node takes to start again says nothing of how late its storage shows changes."""
    view = freshness()
    for now in range(20):
        life, beat = ("i1", min(now, 3)) if now < 12 else ("i2", now)
        view.observe(look(new_heartbeat("a", beat=beat, incarnation=life)), float(now))
    assert view.lease_of("a") == LEASE
    assert view.lease_of("never seen") == LEASE


LONG_TURN = 100.0


def turn(*heartbeats):
    """A reading of some of many nodes, each of which has its turn every `LONG_TURN`."""
    return HeartbeatReadings(heartbeats=heartbeats, round_seconds=LONG_TURN)


@pytest.fixture
def many(freshness, new_heartbeat):
    """A view of many nodes, of which `a` changed at each of its turns, the last one at 200; another one is watched."""
    view = freshness()
    for now in range(0, 201, 2):
        read = [new_heartbeat("a", beat=now)] if now % LONG_TURN == 0 else []
        view.observe(turn(new_heartbeat("watched", beat=now), *read), float(now))
    return view


def test_a_node_that_is_read_in_long_turns_stays_alive_between_them(many, new_heartbeat):
    """Its lease does not grow with the turns; whoever misses its turns is not alive for ever."""
    assert (many.lease_of("a"), many.lease_of("watched")) == (3 * LEASE, LEASE)
    for now in range(202, 300, 2):
        many.observe(turn(new_heartbeat("watched", beat=now)), float(now))
        assert many.fresh("a", now)
    assert many.lost("a") is None
    assert not many.fresh("a", 200 + 3 * LONG_TURN)


def test_one_reading_without_a_change_after_a_long_turn_is_enough(many, new_heartbeat):
    """It had the time of forty beats; a watched node is noticed as soon as among few nodes."""
    for now in range(202, 210, 2):
        many.observe(turn(new_heartbeat("watched", beat=200)), float(now))
        assert many.lost("watched") is None
    many.observe(turn(new_heartbeat("watched", beat=200)), 210.0)
    assert "silent" in many.lost("watched")
    for now in range(212, 300, 2):
        many.observe(turn(new_heartbeat("watched", beat=200)), float(now))
    many.observe(turn(new_heartbeat("a", beat=200)), 300.0)
    assert "silent" in many.lost("a")


def test_a_pause_of_the_reader_is_no_silence_of_nodes_that_are_read_in_turn(many, new_heartbeat):
    """Storage was away for a minute, for all: the first reading after it says nothing; a missed turn begins anew."""
    many.observe(turn(), 204.0)
    many.observe(turn(new_heartbeat("a", beat=200)), 264.0)
    assert many.lost("a") is None
    many.observe(turn(new_heartbeat("a", beat=200)), 270.0)
    many.observe(turn(new_heartbeat("a", beat=200)), 278.0)
    many.observe(turn(new_heartbeat("a", beat=200)), 286.0)
    assert many.lost("a") is None
    many.observe(turn(new_heartbeat("a", beat=200)), 290.0)
    assert "silent" in many.lost("a")
    many.observe(turn(new_heartbeat("watched", beat=900)), 290.0 + LONG_TURN)
    assert not many.fresh("watched", 290.0 + LONG_TURN)


def test_who_is_gone_stays_gone_however_rarely_it_is_looked_at(new_heartbeat):
    """Else a node that left months ago would hold up the proposer for a lease after each look."""
    freshness = Liveness("me", 10.0)
    freshness.wrote(new_heartbeat("me"), 0.0)
    for at in (0.0, 5.0, 11.0):
        freshness.observe(HeartbeatReadings(heartbeats=(new_heartbeat("gone"),)), at)
    for at in (41.0, 71.0):
        freshness.wrote(new_heartbeat("me", beat=int(at)), at)
        freshness.observe(HeartbeatReadings(heartbeats=(new_heartbeat("gone"),)), at)
        assert freshness.gone_since("gone") == 0.0
        assert freshness.ready_to_propose(at)
    freshness.observe(HeartbeatReadings(heartbeats=(new_heartbeat("gone", beat=7),)), 101.0)
    assert freshness.gone_since("gone") is None


@pytest.mark.parametrize("seed", range(20))
def test_readings_as_rare_as_beats_do_not_make_the_lease_longer(freshness, new_heartbeat, seed):
    """With the state in a bucket both take 4 s: a node is lost 8 to 16 s after its end, however long it beat before."""
    chance, view, lease, beat = random.Random(seed), freshness(lease=12.0), 12.0, 4.0
    writes, at = [], chance.uniform(0, beat)
    while len(writes) < 50 + seed:
        writes.append(at)
        at += beat + chance.uniform(0, 0.1)
    end, now = chance.uniform(writes[-1], at), 0.0
    while now < end or view.lost("a") is None:
        assert view.lost("a") is None
        now += beat + chance.uniform(0, 0.1)
        beats = sum(written <= now for written in writes)
        view.observe(look(new_heartbeat("a", beat=beats)), now)
    assert view.lease_of("a") == lease
    assert 8.0 <= now - end <= 16.5


def test_storage_that_takes_nearly_a_lease_for_a_reading_does_not_begin_the_watch_anew(freshness, new_heartbeat):
    """A reading that takes somewhat longer than the lease is then usual, and no pause of this node."""
    view = freshness()
    for beat, now in enumerate((0.0, 9.0, 18.0, 27.0, 38.0), start=1):
        view.observe(look(new_heartbeat("a", beat=beat)), now)
    assert view.fresh("a", 38.0)
