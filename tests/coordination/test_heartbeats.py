"""Write and read heartbeats, also of thousands of nodes."""

import os
from itertools import pairwise

import pytest
from coordination.conftest import Counted
from users import MALLORY, VICTIM, acting_as, only_root, shared_folder

from sidecar.coordination.heartbeats import Heartbeats, ReadLimits, heartbeat_path, watched_nodes
from sidecar.coordination.liveness import HeartbeatReadings, Liveness, natural_order
from sidecar.coordination.storage import PosixStorage
from sidecar.errors import NodeNameTakenError, StorageError
from sidecar.protocol.codec import dumps

LEASE = 10.0


@pytest.fixture
def members(storage):
    return Heartbeats(storage, "run-a")


def look(*heartbeats):
    return HeartbeatReadings(heartbeats=heartbeats)


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
    """Ignore files of another run, copies by hand, other files, and files that are not renamed yet."""
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
    """Report a node as absent that was asked for and has no file."""
    put("members/a.json", new_heartbeat("a"))
    put("members/b.json", new_heartbeat("b"))
    reading = members.read(["z", "b", "b"])
    assert reading.heartbeats == (new_heartbeat("b"),)
    assert reading.unread == {"z": "members/z.json is absent"}
    assert not reading.complete


def test_a_folder_that_cannot_be_listed_is_no_empty_reading(members, put, new_heartbeat):
    """A node that cannot look must not conclude that nobody is there."""
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
    """The daemon that found the other's heartbeat at its start stops soon, whatever their incarnations are."""
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


def test_watched_nodes_leave_others_their_turns_however_few_reads_a_look_has(storage, put, new_heartbeat):
    """Looks of one read each gave it to a watched node, nearly always: others counted as unheard after a while."""
    nodes = [f"worker-{number}" for number in range(15)]
    for node in nodes:
        Heartbeats(storage, "run-a").write(new_heartbeat(node))
    members, read_at = Heartbeats(storage, "run-a", reads=ReadLimits(per_second=1.0)), dict[str, float]()
    for look in range(160):
        for node in nodes:
            put(heartbeat_path(node), new_heartbeat(node, beat=look))
        members.write(new_heartbeat("worker-0", beat=look))
        reading = members.read_due(now := 1.0638 * look)
        read_at |= {each.node: now for each in reading.heartbeats}
        assert all(now - read_at.get(node, now) < 3 * reading.round_seconds for node in nodes[1:])
    assert len(read_at) == len(nodes) - 1


LONG_TURN = 100.0


def turn(*heartbeats):
    """A reading of some of many nodes, each of which has its turn every `LONG_TURN`."""
    return HeartbeatReadings(heartbeats=heartbeats, round_seconds=LONG_TURN)


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


class Crowd:
    """Storage in memory, on which these nodes beat every 2 s, and these did once. A beat is written when it is read."""

    def __init__(self, new_heartbeat, live, dead):
        self.new, self.live = new_heartbeat, {heartbeat_path(node): node for node in numbered("worker", live)}
        self.files = {heartbeat_path(node): dumps(new_heartbeat(node)) for node in numbered("old", dead)}
        self.number = 0

    def beat(self, number):
        """Give all live nodes their beat of this number."""
        self.number = number

    def names(self, folder):
        """Return the names of the heartbeats of all nodes, dead and alive."""
        return sorted(path.removeprefix(f"{folder}/") for path in (*self.files, *self.live))

    def modified(self, *_):
        """As `Storage.modified`: this one cannot tell."""
        return {}

    def survey(self, _):
        """As `Storage.survey` of a filesystem."""

    def read(self, path, limit=None):
        """Return the newest heartbeat of a live node, or the only one of a dead node."""
        node = self.live.get(path)
        found = self.files.get(path) if node is None else dumps(self.new(node, beat=self.number))
        return found if found is None or limit is None else found[: limit + 1]

    def replace(self, path, data):
        """Keep the new content of a file in memory."""
        self.files[path] = data

    def rename(self, path, name):
        """Keep a content under another name."""
        self.files[f"members/{name}"] = self.files.pop(path)
        return True


def numbered(name, count):
    return [f"{name}-{number}" for number in range(count)]


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
