import os
import random
from itertools import pairwise

import pytest
from users import MALLORY, VICTIM, acting_as, only_root, shared_folder

from sidecar.coordination.heartbeats import Heartbeats, heartbeat_path, watched_nodes
from sidecar.coordination.liveness import HeartbeatReadings, Liveness, natural_order
from sidecar.coordination.storage import PosixStorage
from sidecar.errors import NodeNameTakenError, StorageError
from sidecar.protocol.codec import dumps

LEASE = 10.0


@pytest.fixture
def members(storage):
    return Heartbeats(storage, "run-a")


@pytest.fixture
def freshness(new_heartbeat):
    """Build the view of node `me`, which wrote its own heartbeat at 0."""

    def build(lease=LEASE):
        view = Liveness("me", lease)
        view.wrote(new_heartbeat("me"), 0.0)
        return view

    return build


def look(*heartbeats):
    return HeartbeatReadings(heartbeats=heartbeats)


def test_names_are_ordered_as_people_count():
    """Numbers count, text compares, and names that look alike still differ."""
    names = ["", "10", "9", "a", "a-2-b", "a-10-a", "a-10-b", "worker-02", "worker-2", "worker-10", "worker-10a", "é-1"]
    shuffled = random.Random(0).sample(names, len(names))
    assert sorted(shuffled, key=natural_order) == ["", "9", "10", *names[3:]]
    assert len({natural_order(name) for name in names}) == len(names)


def test_heartbeats_are_read_back_in_natural_order(storage, members, new_heartbeat):
    """Any node name makes a file, and the record comes back whole."""
    nodes = ["worker-2", "worker-10", "a/b", "..", "ü%2F:1"]
    for node in reversed(nodes):
        Heartbeats(storage, "run-a").write(new_heartbeat(node))
    reading = members.read_all()
    assert [heartbeat.node for heartbeat in reading.heartbeats] == sorted(nodes, key=natural_order)
    assert reading.heartbeats[-1] == new_heartbeat(reading.heartbeats[-1].node)
    assert (reading.unread, reading.complete) == ({}, True)
    assert all(path.parent == storage.root / "members" for path in storage.root.rglob("*.json"))


def test_nobody_is_there_before_the_first_heartbeat(members):
    """An absent folder is a complete reading of nobody."""
    assert members.read_all() == HeartbeatReadings()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not a Heartbeat record"),
        (b'{"run":"run-a","no', "not a Heartbeat record"),
        (bytes(200), "not a Heartbeat record"),
        (b'{"schema":2}', "update this daemon"),
        (b"{}", "Heartbeat.run: missing"),
    ],
)
def test_a_broken_file_is_reported_and_stops_nobody(members, put, new_heartbeat, content, reason):
    """The machine of one node may have crashed while it wrote; the others are read all the same."""
    put("members/b.json", content)
    members.write(new_heartbeat("c"))
    reading = members.read_all()
    assert [heartbeat.node for heartbeat in reading.heartbeats] == ["c"]
    assert list(reading.unread) == ["b"]
    assert reading.unread["b"].startswith("members/b.json: ")
    assert reason in reading.unread["b"]


def test_leftovers_of_others_are_not_members(members, put, new_heartbeat):
    """Of another run, copied by hand, no heartbeat at all, or not renamed yet."""
    put("members/old.json", new_heartbeat("old", run="run-before"))
    put("members/copy.json", new_heartbeat("original"))
    put("members/notes.txt", b"hello")
    put("members/%FF.json", b"{}")
    put(os.fsdecode(b"members/\xfe.json"), b"{}")
    put("members/.tmp-1", dumps(new_heartbeat("unfinished")))
    reading = members.read_all()
    assert reading.heartbeats == ()
    assert sorted(reading.unread) == ["copy", "old", "\udcfe", "\N{REPLACEMENT CHARACTER}"]
    assert "run-before" in reading.unread["old"]
    assert "original" in reading.unread["copy"]


def test_some_members_can_be_read_without_the_others(members, put, new_heartbeat):
    """Who is asked for and absent is reported as absent."""
    put("members/a.json", new_heartbeat("a"))
    put("members/b.json", new_heartbeat("b"))
    reading = members.read(["z", "b", "b"])
    assert reading.heartbeats == (new_heartbeat("b"),)
    assert reading.unread == {"z": "members/z.json is absent"}
    assert not reading.complete


def test_a_folder_that_cannot_be_listed_is_no_empty_reading(members, put, new_heartbeat):
    """Who cannot look must not conclude that nobody is there."""
    put("members", b"in the way")
    for use in (members.read_all, lambda: members.read_due(0.0), lambda: members.write(new_heartbeat("a"))):
        with pytest.raises(StorageError):
            use()


ODD = {
    "a folder": lambda path: path.mkdir(),
    "a FIFO": os.mkfifo,
    "a link to a terminal": lambda path: path.symlink_to("/dev/tty"),
    "a terabyte": lambda path: (path.touch(), os.truncate(path, 1 << 40)),
    "torn": lambda path: path.write_bytes(b'{"run":'),
}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("odd", list(ODD))
def test_one_odd_file_is_named_and_stops_nobody(storage, put, new_heartbeat, odd):
    """It takes its turn like all others, is named as long as it stands there, and the others are known."""
    put("members/n2.json", new_heartbeat("n2"))
    path = storage.root / "members" / "n1.json"
    ODD[odd](path)
    members, view = Heartbeats(storage, "run-a"), Liveness("me", LEASE)
    for beat in range(3):
        members.write(new_heartbeat("me", beat=beat))
        view.wrote(new_heartbeat("me", beat=beat), 2.0 * beat)
        put("members/n2.json", new_heartbeat("n2", beat=beat))
        reading = members.read_due(2.0 * beat)
        view.observe(reading, 2.0 * beat)
        assert (list(reading.unread), reading.complete) == (["n1"], True)
        (sentence,) = reading.unknown
        assert "members/n1.json" in sentence
    assert view.fresh("n2", 4.0)
    view.wrote(new_heartbeat("me", beat=4), LEASE)
    view.observe(members.read_due(LEASE), LEASE)
    assert view.ready_to_propose(LEASE)
    path.rmdir() if path.is_dir() else path.unlink()
    put("members/n1.json", new_heartbeat("n1"))
    reading = members.read_due(12.0)
    assert ([each.node for each in reading.heartbeats], reading.unknown) == (["n1", "n2"], ())


def test_the_own_heartbeat_cannot_be_written_over_a_folder(storage, members, new_heartbeat):
    """Nothing can be agreed without it: the sentence says what is in the way."""
    (storage.root / "members" / "me.json").mkdir(parents=True)
    with pytest.raises(StorageError, match=r"members/me\.json.*folder"):
        members.write(new_heartbeat("me"))


@only_root
def test_a_heartbeat_that_only_its_user_may_read_stops_nobody(new_heartbeat):
    """One daemon runs as another user, with umask 077: the others go on without it, and say why."""
    with shared_folder() as shared:
        storage = PosixStorage(shared / "run")
        with acting_as(VICTIM):
            Heartbeats(storage, "run-a").write(new_heartbeat("n1"))
            Heartbeats(storage, "run-a").write(new_heartbeat("n2"))
        with acting_as(MALLORY, 0o077):
            Heartbeats(storage, "run-a").write(new_heartbeat("n3"))
        with acting_as(VICTIM):
            reading = Heartbeats(storage, "run-a").read_due(0.0)
        assert [each.node for each in reading.heartbeats] == ["n1", "n2"]
        (sentence,) = reading.unknown
        assert "members/n3.json: Permission denied; let the user with id 54321" in sentence
        assert "read it" in sentence


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


def test_files_that_cannot_be_read_take_no_turns_from_the_others(storage, new_heartbeat):
    """Each may take as long as the storage's timeout, so a look ends after three, and the others come first then."""

    class Failing(Counted):
        def read(self, path, limit=None):
            self.asked.append(("read", path))
            if "bad" in path:
                raise StorageError(f"cannot read {path}: Input/output error")
            return self.storage.read(path, limit)

    nodes = [f"bad-{number}" for number in range(9)] + [f"good-{number}" for number in range(9)]
    for node in nodes:
        Heartbeats(storage, "run-a").write(new_heartbeat(node))
    failing = Failing(storage)
    members, looks = Heartbeats(failing, "run-a"), []
    for at in range(12):
        failing.asked.clear()
        looks.append([each.node for each in members.read_due(2.0 * at).heartbeats])
        assert sum("bad" in path for _, path in failing.asked) <= 3
    assert [len(nodes) for nodes in looks[-5:]] == [9] * 5


def test_a_restarted_daemon_takes_over_its_file(storage, new_heartbeat):
    """The file of the former life is there, and one late write of the dying process changes nothing."""
    old, new = Heartbeats(storage, "run-a"), Heartbeats(storage, "run-a")
    old.write(new_heartbeat(incarnation="z", beat=7))
    new.write(new_heartbeat(incarnation="b", beat=1))
    storage.replace(heartbeat_path("worker-1"), dumps(new_heartbeat(incarnation="z", beat=8)))
    for beat in range(2, 30):
        new.write(new_heartbeat(incarnation="b", beat=beat))
    assert new.read(["worker-1"]).heartbeats == (new_heartbeat(incarnation="b", beat=29),)


@pytest.mark.parametrize(("earlier", "later"), [("a", "b"), ("b", "a")])
@pytest.mark.parametrize("beats_between", [1, 3])
def test_of_two_daemons_under_one_name_the_later_goes(storage, new_heartbeat, earlier, later, beats_between):
    """Whatever their incarnations, who found the other's heartbeat at its start stops soon, and the other stays."""
    first, second = Heartbeats(storage, "run-a"), Heartbeats(storage, "run-a")
    first.write(new_heartbeat(incarnation=earlier, beat=1))
    for beat in range(2, 4):
        for extra in range(beats_between):
            second.write(new_heartbeat(incarnation=later, beat=beat * 10 + extra))
        first.write(new_heartbeat(incarnation=earlier, beat=beat))
    with pytest.raises(NodeNameTakenError, match="'worker-1'"):
        second.write(new_heartbeat(incarnation=later, beat=40))
    for beat in range(4, 24):
        first.write(new_heartbeat(incarnation=earlier, beat=beat))


def test_of_two_daemons_that_start_at_once_under_one_name_one_goes(storage, new_heartbeat):
    """Neither found the other at its start, so the incarnations decide: never both go."""

    class Simultaneous(Heartbeats):
        def _check_name(self, mine):
            if self._written:
                super()._check_name(mine)

    daemons = {incarnation: Simultaneous(storage, "run-a") for incarnation in ("a", "b")}
    gone = []
    for beat in range(1, 40):
        for incarnation, daemon in list(daemons.items()):
            try:
                daemon.write(new_heartbeat(incarnation=incarnation, beat=beat))
            except NodeNameTakenError:
                gone.append(incarnation)
                del daemons[incarnation]
    assert gone == ["b"]


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
    """Who read only those before it does not know yet who else is there."""
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
        view.observe(look(new_heartbeat("slow", beat=at // 6), new_heartbeat("quick", beat=at)), float(at))
    assert (view.lease_of("quick"), view.lease_of("slow")) == (LEASE, 18.0)
    view.observe(look(new_heartbeat("slow", beat=4), new_heartbeat("quick", beat=28)), 43.0)
    assert view.lost("quick") is None
    view.observe(look(new_heartbeat("slow", beat=4), new_heartbeat("quick", beat=28)), 50.0)
    assert view.lost("quick") is None
    view.observe(look(new_heartbeat("slow", beat=4), new_heartbeat("quick", beat=28)), 53.5)
    assert "silent" in view.lost("quick")


@pytest.mark.parametrize(
    ("changes", "lease"),
    [
        ([0, 2, 4, 6], 10.0),
        ([0, 2, 7, 9], 15.0),
        ([0, 2, 7, 16], 27.0),
        ([0, 2, 14, 16], 30.0),
        ([0, 2, 500, 502], 30.0),
    ],
    ids=["regular", "a gap of 5", "gaps of 5 and 9", "a gap over the lease", "a node that was away"],
)
def test_the_lease_is_three_times_the_largest_gap_within_reason(freshness, new_heartbeat, changes, lease):
    """Storage that shows changes late does not make its nodes flap, nor does one long absence make them immortal."""
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
        now += 9.0 if beat == 10 else 2.0
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


# -- many nodes ------------------------------------------------------------------------------------------------------


class Counted:
    """Storage that counts what it is asked."""

    def __init__(self, storage):
        self.storage, self.asked = storage, []

    def __getattr__(self, method):
        def call(*arguments):
            self.asked.append((method, arguments[0]))
            return getattr(self.storage, method)(*arguments)

        return call


@pytest.fixture
def crowd(storage, new_heartbeat):
    """64 nodes that have beaten, and the one that looks."""
    for number in range(64):
        Heartbeats(storage, "run-a").write(new_heartbeat(f"worker-{number}"))
    counted = Counted(storage)
    return Heartbeats(counted, "run-a"), counted


def test_of_many_nodes_each_is_read_in_its_turn(crowd, new_heartbeat):
    """24 at a look every 2 s; in the third all have been read, and the lease of nobody runs out unseen."""
    members, counted = crowd
    members.write(new_heartbeat("worker-0"))
    found, complete = [], []
    for look in range(9):
        counted.asked.clear()
        reading = members.read_due(2.0 * look)
        found.append([each.node for each in reading.heartbeats])
        complete.append(reading.complete)
        assert len([each for each in counted.asked if each[0] != "modified"]) <= 1 + 24
    assert complete == [False, False, True, *[True] * 6]
    for node in (f"worker-{number}" for number in range(1, 64)):
        looks = [look for look, nodes in enumerate(found) if node in nodes]
        assert max(b - a for a, b in pairwise([-1, *looks, 9])) <= 3


def test_each_node_is_watched_by_near_and_far_ones():
    """A dead row of neighbours, as of one rack, is noticed by nodes outside it; the next proposer watches the first."""
    ring = list(range(1000))
    assert watched_nodes(ring, 500) == [499, 497, 491, 473, 419, 257, 771]
    assert watched_nodes(["a"], 0) == []
    watchers = {node: [place for place in ring if node in watched_nodes(ring, place)] for node in range(300, 320)}
    assert {len(found) for found in watchers.values()} == {7}
    assert all(set(found) - watchers.keys() for found in watchers.values())


def test_watched_and_attended_nodes_are_read_at_every_look(storage, new_heartbeat):
    """Among 100 nodes others are read in turn, and no look reads more than its share."""
    nodes = [f"worker-{number}" for number in range(100)]
    for node in nodes:
        Heartbeats(storage, "run-a").write(new_heartbeat(node))
    members, found = Heartbeats(storage, "run-a"), []
    for look in range(28):
        members.write(new_heartbeat("worker-50", beat=look))
        reading = members.read_due(2.0 * look, ["worker-7", "worker-50", "unknown"])
        found.append({each.node for each in reading.heartbeats})
        assert len(found[-1]) <= 24
    watched = {"worker-7", *(f"worker-{number}" for number in (49, 47, 41, 23, 69))}
    assert all(watched <= nodes for nodes in found[5:])
    for node in set(nodes) - {"worker-50"}:
        looks = [look for look, read in enumerate(found) if node in read]
        assert max(b - a for a, b in pairwise(looks)) <= 6
    assert reading.round_seconds == pytest.approx((99 - 5) / (9 - 2.5))


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


def test_looks_in_quick_succession_read_little(crowd):
    """An evaluation causes several visits in a second; what they may read is what the time since then allows."""
    members, counted = crowd
    members.read_due(0.0)
    counted.asked.clear()
    for look in range(1, 11):
        members.read_due(look / 10)
    assert len([each for each in counted.asked if each[0] == "read"]) == 12


def test_few_nodes_are_all_read_at_every_look(storage, new_heartbeat):
    """Two others, as often as ten times in a second for a while."""
    for node in ("a", "b"):
        Heartbeats(storage, "run-a").write(new_heartbeat(node))
    members = Heartbeats(storage, "run-a")
    assert [len(members.read_due(10 + look / 10).heartbeats) for look in range(20)] == [2] * 20


def test_who_has_long_been_silent_is_read_rarely(storage, new_heartbeat):
    """Names of nodes that were there once do not take turns from those that live; one that comes back is seen."""
    for node in ("gone", "here"):
        Heartbeats(storage, "run-a").write(new_heartbeat(node))
    members, found = Heartbeats(storage, "run-a"), []
    for look in range(400):
        Heartbeats(storage, "run-a").write(new_heartbeat("here", beat=look))
        found.append([each.node for each in members.read_due(2.0 * look).heartbeats])
    assert all("here" in nodes for nodes in found)
    assert all("gone" in nodes for nodes in found[:300])
    assert sum("gone" in nodes for nodes in found[305:]) == 6
    Heartbeats(storage, "run-a").write(new_heartbeat("gone", beat=9))
    found = [[each.node for each in members.read_due(800 + 2.0 * look).heartbeats] for look in range(20)]
    assert sum("gone" in nodes for nodes in found) > 2


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


class Crowd:
    """Storage in memory, on which these nodes beat every 2 s, and these did once. A beat is written when it is read."""

    def __init__(self, new_heartbeat, live, dead):
        self.new, self.live = new_heartbeat, {heartbeat_path(node): node for node in numbered("worker", live)}
        self.files = {heartbeat_path(node): dumps(new_heartbeat(node)) for node in numbered("old", dead)}
        self.number = 0

    def beat(self, number):
        """All that live."""
        self.number = number

    def names(self, folder):
        """As `Storage.names`."""
        return sorted(path.removeprefix(f"{folder}/") for path in (*self.files, *self.live))

    def modified(self, _):
        """As `Storage.modified`: this one cannot tell."""
        return {}

    def read(self, path, limit=None):
        """As `Storage.read`."""
        node = self.live.get(path)
        found = self.files.get(path) if node is None else dumps(self.new(node, beat=self.number))
        return found if found is None or limit is None else found[: limit + 1]

    def replace(self, path, data):
        """As `Storage.replace`."""
        self.files[path] = data


def numbered(name, count):
    return [f"{name}-{number}" for number in range(count)]


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
def test_beside_three_thousand_dead_nodes_the_living_are_known_at_once(storage, freshness, aged, state):
    """Names that were made up for pods come to that: a start reads none whose file is an hour old."""
    for number in range(3000):
        aged(f"dead-{number}", 2 * HOUR + number, state=state)
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


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("live", "dead"),
    [
        *((3, 0), (64, 0), (3, 130)),
        *(pytest.param(*each, marks=pytest.mark.nightly) for each in ((100, 0), (130, 0), (300, 0), (30, 1000))),
    ],
)
def test_however_many_there_are_the_living_are_known_and_somebody_proposes(new_heartbeat, live, dead):
    """Where a round of reads takes longer than the lease, too; names of nodes that died long ago take little of it."""
    crowd = Crowd(new_heartbeat, live, dead)
    members, freshness = Heartbeats(crowd, "run-a"), Liveness("me", LEASE)
    round_seconds = (live + dead) / 9
    ready, there, told = [], [], []
    for look in range(round(3 * round_seconds) + 400):
        now = 2.0 * look
        crowd.beat(look + 1)
        own = new_heartbeat("me", beat=look)
        members.write(own)
        freshness.wrote(own, now)
        freshness.observe(members.read_due(now), now)
        if now > 30 + 3 * round_seconds:
            ready.append(freshness.ready_to_propose(now))
            there.append(len(freshness.fresh_heartbeats(now)))
            told.append(sum(freshness.lost(f"worker-{number}") is not None for number in range(live)))
    unsure = [look for look, knows in enumerate(zip(ready, there, strict=True)) if knows != (True, live + 1)]
    assert unsure == []
    assert set(told) == {0}
