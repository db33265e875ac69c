"""Pin in the background, so that scans go on."""

import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import save
from retention.pins.conftest import Looks, leave

from sidecar.checkpoints.scan import DiscoveredCheckpoint
from sidecar.errors import StorageError, VanishedError
from sidecar.protocol.records import Checkpoint
from sidecar.retention.pins.background import BackgroundPinner, turns_of

BOUND = 10.0


def found(name):
    return DiscoveredCheckpoint(
        checkpoint=Checkpoint(name=name, digest=name * 16, step=1, format="tf_object"),
        folder=Path("/ckpts"),
        written_at=0.0,
        seen_at=0.0,
    )


class Copying:
    """Stands where a copy would take an hour: it ends when the test says so."""

    def __init__(self, error=None):
        self.ended, self.error, self.begun = threading.Event(), error, []

    def __call__(self, each, pins, **_):
        """Return what `checkpoints.pin.pin` would do."""
        self.begun.append(each.checkpoint.name)
        assert self.ended.wait(BOUND)
        if self.error is not None:
            raise self.error
        return replace(each, folder=pins / each.checkpoint.name)


def finished(pinner, each):
    """Return what it answers once the thread has ended, as the scans that follow would find it."""
    for _ in range(1000):
        if (pinned := pinner.pin(each, copies=True)) is not None:
            return pinned
        threading.Event().wait(BOUND / 1000)
    raise AssertionError("it never finished")


def test_what_is_quick_is_done_at_once():
    """A link is made while the scan waits for it."""
    pinner = BackgroundPinner(pins=Path("/pins"), make=lambda each, pins, **_: replace(each, folder=pins / "a"))
    assert pinner.pin(found("a"), copies=True).folder == Path("/pins/a")


def test_what_takes_long_goes_on_beside_the_looks():
    """Each scan is answered at once, the copy begins once, and the scan after its end has it."""
    copying = Copying()
    pinner = BackgroundPinner(pins=Path("/pins"), patience_seconds=0.01, make=copying)
    assert [pinner.pin(found("a"), copies=True) for _ in range(3)] == [None, None, None]
    assert pinner.pin(found("b"), copies=True) is None
    copying.ended.set()
    assert finished(pinner, found("a")).folder == Path("/pins/a")
    assert finished(pinner, found("b")).folder == Path("/pins/b")
    assert copying.begun == ["a", "b"]


def test_what_fails_beside_the_looks_is_told_in_one():
    """The scan that asks after its end hears of it, once; then it is tried anew."""
    copying = Copying(VanishedError("a was deleted"))
    pinner = BackgroundPinner(pins=Path("/pins"), patience_seconds=0.01, make=copying)
    assert pinner.pin(found("a"), copies=True) is None
    copying.ended.set()
    with pytest.raises(VanishedError, match="a was deleted"):
        finished(pinner, found("a"))


def test_what_nobody_asks_for_any_more_blocks_nobody():
    """A checkpoint that vanished while it was copied makes room for the next."""
    copying = Copying()
    pinner = BackgroundPinner(pins=Path("/pins"), patience_seconds=0.01, make=copying)
    assert pinner.pin(found("a"), copies=True) is None
    copying.ended.set()
    assert finished(pinner, found("b")).folder == Path("/pins/b")


def test_one_that_hangs_holds_up_no_other():
    """It is named; what comes after it is pinned, one at a time as ever."""
    hanging, copying = Copying(), Copying()
    pinner = BackgroundPinner(pins=Path("/pins"), patience_seconds=0.01, make=hanging, hangs_after_seconds=0.05)
    assert pinner.pin(found("a"), copies=True) is None
    assert pinner.pin(found("b"), copies=True) is None
    assert hanging.begun == ["a"], "it may only be slow"
    until(pinner.hanging)
    assert "reading a hangs" in pinner.hanging()["a@aaaaaaaaaaaa"]
    pinner.make = copying
    assert pinner.pin(found("b"), copies=True) is None
    assert pinner.pin(found("c"), copies=True) is None
    assert copying.begun == ["b"]
    copying.ended.set()
    assert finished(pinner, found("b")).folder == Path("/pins/b")
    hanging.ended.set()
    assert finished(pinner, found("a")).folder == Path("/pins/a")
    assert pinner.hanging() == {}


def test_when_as_many_hang_as_may_nothing_is_begun():
    """That is said; and nobody waits for them, as they may never end."""
    hanging = Copying()
    pinner = BackgroundPinner(pins=Path("/pins"), patience_seconds=0.01, make=hanging, hangs_after_seconds=0.05)
    for number, name in enumerate("abcd"):
        until(lambda number=number: len(pinner.hanging()) == number)
        assert pinner.pin(found(name), copies=True) is None
    until(lambda: len(pinner.hanging()) == 4)
    with pytest.raises(StorageError, match=r"\b4\b.*\ba, b, c, d$"):
        pinner.pin(found("e"), copies=True)
    assert hanging.begun == ["a", "b", "c", "d"]
    hanging.ended.set()
    until(lambda: not pinner.hanging())
    assert finished(pinner, found("e")).folder == Path("/pins/e")


def test_one_that_takes_long_does_not_hang_as_long_as_it_gets_on(tmp_path):
    """It reads, writes or compares: the kernel counts that it had its turns, also where nothing grows."""
    over = threading.Event()

    def check(each, _, **__):
        while not over.wait(0.001):
            (tmp_path / "file").write_bytes(b"x")
        return each

    pinner = BackgroundPinner(pins=tmp_path, patience_seconds=0.01, make=check, hangs_after_seconds=0.2)
    for _ in range(50):
        assert pinner.pin(found("a"), copies=True) is None
        assert pinner.hanging() == {}
        threading.Event().wait(0.01)
    over.set()
    assert finished(pinner, found("a")) == found("a")


def until(holds):
    """Wait until it holds."""
    for _ in range(1000):
        if holds():
            return
        threading.Event().wait(BOUND / 1000)
    raise AssertionError("it never came")


def test_turns_grow_while_a_thread_works_and_stand_while_it_hangs():
    """Count the context switches of one thread only."""
    go, done, stop = threading.Event(), threading.Event(), threading.Event()

    def work():
        while not stop.is_set():
            go.wait()
            go.clear()
            done.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    before = turns_of(thread)
    for _ in range(20):
        done.clear()
        go.set()
        assert done.wait(timeout=30)
    assert turns_of(thread) >= before + 20
    stop.set()
    go.set()
    thread.join(timeout=240)
    end = time.monotonic() + 30
    while turns_of(thread) is not None:  # the kernel may know a thread for a moment after it was joined
        assert time.monotonic() < end


def test_what_a_dead_copier_left_is_in_nobodys_way(tmp_path):
    """Once it does not grow no room is kept for it; and it goes when nobody has touched it for long."""
    looks = Looks(tmp_path, pin_max_bytes=100_000)
    left = leave(looks)
    for step in (5, 6):
        save(looks.root, step, keep=[5])
    assert looks("ckpt-5", "ckpt-6").reconciliation.no_room
    assert looks.pinned() == []
    for _ in range(10):
        answer = looks("ckpt-5", "ckpt-6")
    assert (looks.pinned(), answer.reconciliation.no_room, left.exists()) == (["ckpt-5", "ckpt-6"], {}, True)
    for _ in range(50):
        looks("ckpt-5", seconds=11.0)
    assert left.exists()
    for _ in range(10):
        looks("ckpt-5", seconds=11.0)
    assert not left.exists()


def test_a_copy_that_grows_or_is_touched_stays(looks):
    """A copy that changes has a live maker and is kept; a copy that stays unchanged is removed."""
    left, quiet = leave(looks), leave(looks, name=f".tmp-{'d' * 12}-{'b' * 8}-{'c' * 16}")
    for number in range(100):
        os.utime(left, (number, number))
        looks(seconds=11.0)
    assert (left.exists(), quiet.exists()) == (True, False)
