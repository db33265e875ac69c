"""Which node copies what cannot be linked."""

import errno
import os
import threading

import pytest
from fakes import outcomes, pass_time, save

from sidecar.checkpoints import pin
from sidecar.daemon.turns import Turns

KEY = "ckpt-1", "d" * 64


@pytest.fixture
def turns():
    return Turns(10.0)


def test_the_first_copies_at_once(turns):
    """Nobody comes before it."""
    assert turns.is_mine(KEY, size=10**6, before=0, copied=None, now=5.0)


def test_the_others_wait_each_for_those_before_it(turns):
    """From when this node first wanted it."""
    assert [turns.is_mine(KEY, size=10**6, before=2, copied=None, now=now) for now in (5.0, 24.9, 25.0)] == [
        False,
        False,
        True,
    ]


def test_a_copy_that_grows_is_waited_for(turns):
    """Also by who became the first meanwhile; one that ends to grow is made again by the next in line."""
    grows = [turns.is_mine(KEY, size=10**6, before=1, copied=now * 100, now=now) for now in range(0, 100, 5)]
    assert not any(grows)
    stands = [turns.is_mine(KEY, size=10**6, before=1, copied=9500, now=now) for now in (100.0, 114.9, 115.0)]
    assert stands == [False, False, True]
    assert turns.is_mine(KEY, size=10**6, before=0, copied=9500, now=105.0)


def test_a_copy_that_is_whole_is_waited_for_as_long_as_it_took(turns):
    """Its bytes go to the disk, and full verification reads them again: nothing grows meanwhile."""
    for now in range(0, 100, 10):
        assert not turns.is_mine(KEY, size=900, before=1, copied=now * 10, now=now)
    stands = [turns.is_mine(KEY, size=900, before=1, copied=900, now=now) for now in (100.0, 199.0, 200.0)]
    assert stands == [False, False, True]


def test_a_copy_that_fails_again_and_again_gets_nowhere(turns):
    """It grows as far as before, so the next in line has its turn."""
    tries = [turns.is_mine(KEY, size=10**6, before=1, copied=now % 4 * 10, now=now) for now in range(30)]
    assert True in tries


def test_what_is_forgotten_is_waited_for_anew(turns):
    """It was pinned or settled meanwhile, or its files changed."""
    turns.is_mine(KEY, size=10**6, before=1, copied=None, now=0.0)
    turns.forget(but=set())
    assert not turns.is_mine(KEY, size=10**6, before=1, copied=None, now=50.0)


@pytest.fixture
def no_links(monkeypatch):
    """The checkpoints belong to another user, say; links within the state directory are granted."""
    link = os.link

    def refuse(source, target, **options):
        if not options:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        link(source, target, **options)

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(pin, "_SMALL_BYTES", 0)


class Copies:
    """Those that a node makes."""

    def __init__(self, node) -> None:
        pinner = node.courier.keeper.pinner
        pinner.patience_seconds = 0.2  # of real time, where one hangs
        self._make, pinner.make = pinner.make, self
        self.made, self.hang = [], False

    def __call__(self, found, pins, *, copies):
        """As `checkpoints.pin.pin`."""
        if copies and self.hang:
            threading.Event().wait(10)
        pinned = self._make(found, pins, copies=copies)
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
