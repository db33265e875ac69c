"""Among many nodes names of files tell the beats: nobody reads what did not change, and the dead are noticed."""

from dataclasses import replace

import pytest
from coordination.conftest import Counted

from sidecar.coordination.beat_names import ListedBeats, beat_name, names_of, node_of
from sidecar.coordination.heartbeats import Heartbeats, ReadLimits, heartbeat_path
from sidecar.coordination.liveness import Liveness
from sidecar.errors import NodeNameTakenError, StorageError

BEAT, LEASE = 2.0, 10.0
MANY = 30


class Node:
    """A node that beats, and reads the others as a daemon does."""

    def __init__(self, storage, new_heartbeat, name, incarnation="i1"):
        self.storage = Counted(storage)
        self.members = Heartbeats(self.storage, "run-a", ReadLimits(heard_seconds=LEASE / 2))
        self.view = Liveness(name, LEASE)
        self.heartbeat = new_heartbeat(name, incarnation=incarnation, beat=0)

    def beat(self, now, **changes):
        """Write the heartbeat, read what is due, and return whether its name stood."""
        stood = self.members.survey()
        self.heartbeat = replace(self.heartbeat, beat=self.heartbeat.beat + 1, **changes)
        self.members.write(self.heartbeat)
        self.view.wrote(self.heartbeat, now)
        self.view.observe(self.members.read_due(now), now)
        return stood

    def asked(self, method):
        """Return how often the storage was asked for something since the last call."""
        return sum(each[0] == method for each in self.storage.asked)


@pytest.fixture
def nodes(storage, new_heartbeat):
    """More nodes than one reading covers, which know each other."""
    found = [Node(storage, new_heartbeat, f"worker-{number}") for number in range(MANY)]
    for round_ in range(-2, 6):
        beat(found, round_ * BEAT)
    return found


def beat(nodes, now):
    """Let all nodes beat, each at its own time."""
    for number, node in enumerate(nodes):
        node.beat(now + number * BEAT / len(nodes))


def test_nobody_reads_what_did_not_change(nodes):
    """One listing a beat tells that all are alive; its own file a node reads in each fourth beat."""
    for node in nodes:
        node.storage.asked.clear()
    for round_ in range(6, 14):
        beat(nodes, round_ * BEAT)
    for node in nodes:
        assert [node.asked(method) for method in ("names", "replace", "rename", "read")] == [8, 8, 8, 2]
        assert len(node.view.fresh_heartbeats(14 * BEAT)) == MANY
        assert node.view.ready_to_propose(14 * BEAT)


def test_what_changed_is_read_in_the_next_beat_and_loads_are_told_by_names(nodes):
    """A new state as in any run; a new load without a read."""
    about = nodes[3].heartbeat.about
    nodes[3].beat(6 * BEAT, state="draining", about=replace(about, load=3.7))
    nodes[7].beat(6 * BEAT + 0.1)
    known = nodes[7].view.heartbeat("worker-3")
    assert (known.state, known.about.load) == ("draining", 3.7)
    nodes[7].storage.asked.clear()
    nodes[3].beat(7 * BEAT, about=replace(about, load=6.2))
    nodes[7].beat(7 * BEAT + 0.1)
    assert nodes[7].view.heartbeat("worker-3").about.load == 6.0
    assert ("read", heartbeat_path("worker-3")) not in nodes[7].storage.asked


@pytest.mark.parametrize("dead", [1, MANY - 5])
def test_the_dead_are_noticed_by_all_within_a_lease_and_three_beats(nodes, dead):
    """Silence is proved by reading, since a name that stands still proves none; many at once, too."""
    died_at, now, alive = 6 * BEAT, 6 * BEAT, nodes[dead:]
    while now < died_at + LEASE + 3 * BEAT:
        beat(alive, now)
        now += BEAT
        lost = [sum(node.view.lost(each.view.node) is not None for each in nodes) for node in alive]
        assert max(lost) == 0 or now > died_at + LEASE - BEAT
    assert lost == [dead] * len(alive)


class WithoutRenames:
    """Storage that renames nothing."""

    def __init__(self, storage):
        self._storage = storage

    def __getattr__(self, method):
        return getattr(self._storage, method)

    def rename(self, path, _):
        """Fail, as on a filesystem in trouble."""
        raise StorageError(f"cannot rename {path}: Input/output error")


def test_a_name_that_cannot_be_changed_costs_reads_and_nothing_else(nodes):
    """As beside a node of an older release, which has none."""
    nodes[2].storage.storage = WithoutRenames(nodes[2].storage.storage)
    nodes[5].storage.asked.clear()
    for round_ in range(6, 20):
        beat(nodes, round_ * BEAT)
        assert nodes[5].view.lost("worker-2") is None
    assert nodes[5].storage.asked.count(("read", heartbeat_path("worker-2"))) > 8
    assert nodes[5].view.fresh("worker-2", 20 * BEAT)


def test_a_daemon_takes_over_the_name_of_the_one_before_it(nodes, storage, new_heartbeat):
    """One name is left, and the others know the new daemon."""
    nodes[4] = Node(storage, new_heartbeat, "worker-4", incarnation="i2")
    for round_ in range(6, 10):
        beat(nodes, round_ * BEAT)
    assert len(names_of("worker-4", storage.names("members"))) == 1
    assert nodes[9].view.heartbeat("worker-4").incarnation == "i2"
    assert nodes[9].view.fresh("worker-4", 10 * BEAT)


def test_of_two_daemons_under_one_name_among_many_one_goes(nodes, storage, new_heartbeat):
    """The later one, within a few beats: its own file is looked at as long as there is another name."""
    rival = Node(storage, new_heartbeat, "worker-4", incarnation="i2")

    def go_on():
        for round_ in range(6, 30):
            beat(nodes, round_ * BEAT)
            rival.beat(round_ * BEAT + 1.9)

    with pytest.raises(NodeNameTakenError):
        go_on()
    assert rival.heartbeat.beat < 10


def test_a_state_directory_that_is_gone_is_looked_at(nodes, storage):
    """As soon as the name of the newest beat is not there, nothing is taken for certain."""
    assert nodes[0].beat(6 * BEAT)
    for name in names_of("worker-0", storage.names("members")):
        storage.remove(f"members/{name}")
    assert not nodes[0].beat(7 * BEAT)


def test_few_nodes_have_no_such_names(storage, new_heartbeat):
    """Their files are read in each beat, as ever."""
    found = [Node(storage, new_heartbeat, f"worker-{number}") for number in range(3)]
    for round_ in range(4):
        beat(found, round_ * BEAT)
    assert storage.names("members") == [f"worker-{number}.json" for number in range(3)]


def test_names_of_any_node_are_understood_and_odd_ones_are_passed_over(new_heartbeat):
    """A node's name may have dots; a name that is too long is not made."""
    for node in ("a", "a.b.1.2.3", "w 0/ö", "x.json"):
        name = beat_name(new_heartbeat(node, incarnation="1f", beat=9), 7)
        assert "/" not in name
        assert (node_of(f"members/{name}"), names_of(node, ["z", name, f"{name}.1"])) == (node, [name])
        beats = ListedBeats()
        assert beats.update([name, "a.beat", "a.i.-1..2.beat", "a.i.1.2.beat", "a.i.1..².beat"], 0.0) == set()
        assert (list(beats.newest), beats.newest[node].beat, beats.newest[node].changed) == ([node], 9, 7)
        assert beats.update([name], 2.0) == set()
        assert beats.update([name.replace(".9.beat", ".8.beat")], 4.0) == set()
    assert beat_name(new_heartbeat("ö" * 42), 1) is None
