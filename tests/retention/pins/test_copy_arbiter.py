"""Decide which node copies a checkpoint that cannot be linked."""

import errno
import threading
from pathlib import Path

import pytest
from fakes import outcomes, pass_time, save

from sidecar.checkpoints.files import File
from sidecar.checkpoints.scan import DiscoveredCheckpoint
from sidecar.protocol.records import Checkpoint
from sidecar.retention.pins import link_or_copy
from sidecar.retention.pins.copy_arbiter import CopyArbiter

FILE = File("ckpt-1.index", 900, 0, 0, 0)
FOUND = DiscoveredCheckpoint(
    checkpoint=Checkpoint(name="ckpt-1", digest="d" * 64, step=1, format="tf_object"),
    folder=Path("/ckpts"),
    written_at=0.0,
    seen_at=0.0,
    files=(FILE,),
)


class Looks:
    """A node that looks every now and then, and wants to hold the one checkpoint."""

    def __init__(self) -> None:
        self.turns = CopyArbiter(10.0)

    def __call__(self, now, *, before, copied=None) -> bool:
        """Return whether it is to copy it now."""
        self.turns.begin(lambda: {"d" * 12: copied} if copied is not None else {})
        return self.turns.is_mine(FOUND, before=before, now=now)


@pytest.fixture
def look():
    return Looks()


def test_the_first_copies_at_once(look):
    """Nobody comes before it."""
    assert look(5.0, before=0)


def test_the_others_wait_each_for_those_before_it(look):
    """From when this node first wanted it."""
    assert [look(now, before=2) for now in (5.0, 24.9, 25.0)] == [False, False, True]


def test_a_copy_that_grows_is_waited_for(look):
    """Also by who became the first meanwhile; one that grows no more is made again by the next in line."""
    assert not any(look(now, before=1, copied=now) for now in range(0, 100, 5))
    assert [look(now, before=1, copied=95) for now in (100.0, 114.9, 115.0)] == [False, False, True]
    assert not look(104.0, before=0, copied=95)
    assert look(105.0, before=0, copied=95)


def test_a_copy_that_is_whole_is_waited_for_as_long_as_it_took(look):
    """Its bytes go to the disk, and full verification reads them again: nothing grows meanwhile."""
    assert not any(look(now, before=1, copied=now * 10) for now in range(0, 100, 10))
    assert [look(now, before=1, copied=900) for now in (100.0, 199.0, 200.0)] == [False, False, True]


def test_a_copy_that_fails_again_and_again_gets_nowhere(look):
    """It grows as far as before, so the next in line has its turn."""
    assert any(look(now, before=1, copied=now % 4 * 10) for now in range(30))


def test_what_no_look_asked_for_is_waited_for_anew(look):
    """It was pinned or settled meanwhile, or its files changed."""
    look(0.0, before=1)
    look.turns.begin(dict)
    assert not look(50.0, before=1)


def test_a_copy_of_what_was_never_seen_goes_on_as_long_as_it_grows(look):
    """Then for as long as it may take to be made durable, as nobody knows its size."""
    turns, now = look.turns, 0.0
    for copied in (0, 10, 20, 30):
        now += 8.0
        turns.begin(lambda copied=copied: {"dddddddddddd": copied})
        assert turns.goes_on("dddddddddddd", now)
    for later, goes_on in ((33.0, True), (35.0, False)):
        turns.begin(lambda: {"dddddddddddd": 30})
        assert turns.goes_on("dddddddddddd", now + later) is goes_on
    turns.begin(dict)
    assert not turns.goes_on("dddddddddddd", now)


@pytest.fixture
def no_links(monkeypatch, system_calls):
    """The checkpoints belong to another user, say; links within the state directory are granted."""
    system_calls.refuse("link", errno.EPERM, lambda *_, **named: "src_dir_fd" not in named)
    monkeypatch.setattr(link_or_copy, "_SMALL_BYTES", 0)


class Copies:
    """Those that a node makes."""

    def __init__(self, node) -> None:
        pinner = node.storage_thread.reconciler.pinner
        pinner.patience_seconds = 0.2  # of real time, where one hangs
        self._make, pinner.make = pinner.make, self
        self.made, self.hang = [], False

    def __call__(self, found, pins, *, copies, owner):
        """Pin as `checkpoints.pin.pin` does, and note the name; hang if the test says so."""
        if copies and self.hang:
            threading.Event().wait(10)
        pinned = self._make(found, pins, copies=copies, owner=owner)
        self.made.append(found.checkpoint.name)
        return pinned


@pytest.mark.usefixtures("no_links")
def test_one_node_copies_for_all(new_node):
    """The others evaluate what it copied."""
    nodes = [new_node(f"worker-{number}") for number in range(3)]
    copies = [Copies(each) for each in nodes]
    save(nodes[0].checkpoint_dir, 5)
    pass_time(30, *nodes)
    save(nodes[0].checkpoint_dir, 6)
    pass_time(30, *nodes)
    assert [each.made for each in copies] == [["ckpt-5", "ckpt-6"], [], []]
    assert outcomes(nodes[2].history) == [("succeeded", "ckpt-5"), ("succeeded", "ckpt-6")]
    assert len(nodes[2].history.newest.plan.members) == 3


@pytest.mark.usefixtures("no_links")
def test_the_next_in_line_copies_if_the_first_does_not(new_node):
    """After the patience that it has for each node before it; the third one need not."""
    nodes = [new_node(f"worker-{number}") for number in range(3)]
    nodes[0].checkpoint_dir.mkdir(parents=True)
    pass_time(20, *nodes)
    copies = [Copies(each) for each in nodes]
    copies[0].hang = True
    save(nodes[0].checkpoint_dir, 5)
    pass_time(9, *nodes)
    assert not any(each.made for each in copies)
    pass_time(20, *nodes)
    assert [each.made for each in copies] == [[], ["ckpt-5"], []]
    assert outcomes(nodes[2].history) == [("succeeded", "ckpt-5")]


@pytest.fixture
def slow_copy(monkeypatch):
    """Copies of data take until the test says so; what they have copied shows."""
    copy, go_on = link_or_copy._copy, threading.Event()

    def slow(original, name, temporary):
        copied = copy(original, name, temporary)
        if ".data" in name:
            go_on.wait(10)
        return copied

    monkeypatch.setattr(link_or_copy, "_copy", slow)
    yield go_on
    go_on.set()


@pytest.mark.usefixtures("no_links")
def test_what_is_deleted_while_it_is_copied_is_evaluated_all_the_same(new_node, slow_copy):
    """Its files were opened before; nobody says that it vanished as long as the copy goes on."""
    nodes = [new_node(f"worker-{number}") for number in range(2)]
    nodes[0].checkpoint_dir.mkdir(parents=True)
    pass_time(20, *nodes)
    for each in nodes:
        Copies(each)
    save(nodes[0].checkpoint_dir, 5)
    pass_time(5, *nodes)
    for path in nodes[0].checkpoint_dir.glob("ckpt-5.*"):
        path.unlink()
    pass_time(8, *nodes)
    assert [each.history.entries for each in nodes] == [[], []]
    slow_copy.set()
    for thread in threading.enumerate():
        if thread.name == "pin":
            thread.join(240)
    pass_time(20, *nodes)
    assert outcomes(nodes[1].history) == [("succeeded", "ckpt-5")]


@pytest.mark.usefixtures("no_links", "slow_copy")
def test_what_is_deleted_has_vanished_when_its_copy_gets_no_further(new_node):
    """The node that copied it may be gone."""
    nodes = [new_node(f"worker-{number}") for number in range(2)]
    nodes[0].checkpoint_dir.mkdir(parents=True)
    pass_time(20, *nodes)
    for each in nodes:
        Copies(each)
    save(nodes[0].checkpoint_dir, 5)
    pass_time(5, *nodes)
    for path in nodes[0].checkpoint_dir.glob("ckpt-5.*"):
        path.unlink()
    pass_time(130, nodes[1])
    assert outcomes(nodes[1].history) == [("vanished", "ckpt-5")]


@pytest.mark.usefixtures("no_links")
def test_a_run_does_not_end_while_a_copy_grows(node, monkeypatch):
    """Also where it takes longer than anything that is broken is waited for."""
    node.checkpoint_dir.mkdir(parents=True)
    pass_time(10, node)
    Copies(node).hang = True
    save(node.checkpoint_dir, 5)
    pass_time(5, node)
    (waiting,) = node.state.complete.values()
    digest, pinner = waiting.checkpoint.digest[:12], type(node.storage_thread.reconciler.pinner)
    grows = [True]
    monkeypatch.setattr(pinner, "bytes_copied", lambda _: {digest: int(node.clock.now())} if grows else {})
    for path in node.checkpoint_dir.glob("ckpt-5.*"):
        path.unlink()
    (node.checkpoint_dir / "DONE").touch()
    pass_time(300, node)
    assert node.exited is None
    grows.clear()
    pass_time(100, node)
    assert node.exited == 0
    assert outcomes(node.history) == [("vanished", "ckpt-5")]
