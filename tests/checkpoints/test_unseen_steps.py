"""Histories of scans and of the journal, and what they say about checkpoints that nobody saw."""

import pickle
from pathlib import Path

import pytest

from sidecar.checkpoints.scan import DiscoveredCheckpoint
from sidecar.checkpoints.unseen_steps import UnseenSteps
from sidecar.protocol.records import Checkpoint

SAVE_SECONDS = 5.0
LOOK_SECONDS = 2.0


class History:
    """A node that scans every 2 s, beside training that saves every 5 s, unless told otherwise."""

    def __init__(self, name="ckpt-{}"):
        self.name, self.gaps, self.now, self.written_at, self.there = name, UnseenSteps(), 0.0, 0.0, set()

    def scan(self, *numbers, after=LOOK_SECONDS, keep=2, apart=SAVE_SECONDS):
        """Look `after` seconds, and discover what was written last; training keeps so many."""
        self.now += after
        names = [self.name.format(number) for number in numbers]
        new = []
        for place, name in enumerate(names):
            written_at = self.now - apart * (len(names) - place)
            new.append(
                DiscoveredCheckpoint(
                    checkpoint=Checkpoint(name=name, digest=f"{name}{self.now}", step=None, format="tf_object"),
                    folder=Path("/"),
                    written_at=written_at,
                    seen_at=self.now,
                )
            )
        self.gaps.scan(new, self.now)
        self.there = {*names} | ({*sorted(self.there)[-keep:]} if not names else set())

    def each(self, *numbers):
        """Find one after the other, and evaluate it."""
        for number in numbers:
            self.scan(number)
            self.scan()
            self.settle(number)

    def settle(self, *numbers, settled=True):
        """Read in the journal what became of these."""
        for number in numbers:
            self.gaps.journaled(self.name.format(number), self.there.__contains__, settled=settled)

    @property
    def missing(self):
        """Numbers that became certain since this was asked last."""
        return [number for gap in self.gaps.take() for number in gap.missing]


@pytest.fixture
def history():
    return History()


def stopped(history, *, first=1, last=24, stride=1):
    """A node that saw everything up to a number, was stopped for as long as nine saves take, and goes on."""
    history.each(*range(first, last + 1, stride))
    after = last + 10 * stride
    history.scan(after - stride, after, after=9 * SAVE_SECONDS)
    history.scan()
    return after


def test_what_training_deleted_while_the_node_stood_still_is_counted(history):
    """24, then 33 and 34: eight names that nobody saw, known once what came after them is evaluated."""
    after = stopped(history)
    assert history.missing == []
    history.settle(after - 1)
    assert history.missing == list(range(25, 33))
    assert history.gaps.count == 8
    history.settle(after)
    assert history.missing == []


@pytest.mark.parametrize("name", ["ckpt-{}", "m-{}.keras", "epoch{}.weights.h5", "2024-run/ckpt-{}", "ckpt-{:04}"])
def test_numbers_count_in_names_of_every_format(name):
    """A number counts as a step in names of every format, whatever text the format puts after it."""
    history = History(name)
    history.settle(stopped(history))
    assert history.missing == list(range(25, 33))


def test_the_stride_is_learned(history):
    """Saved every 100 steps: nothing is missing between them; of a gap, what is a multiple of it."""
    after = stopped(history, first=100, last=800, stride=100)
    history.settle(after)
    assert history.missing == list(range(900, 1700, 100))


def test_a_slow_node_counts_every_gap(history):
    """Storage that takes longer than training keeps two."""
    history.each(1, 2, 3, 4)
    for number in range(10, 60, 10):
        history.scan(number, number + 1, after=10 * SAVE_SECONDS)
        history.settle(number, number + 1)
    assert history.gaps.count == 5 + 4 * 8


def test_in_a_healthy_run_nothing_is_missing(history):
    """Also where training is slow, saves twice at once, or pauses."""
    history.each(*range(1, 20))
    history.scan(20, 21)
    history.scan(after=3600.0)
    history.each(*range(22, 30))
    assert history.gaps.count == 0


def test_what_another_node_saw_is_not_missing(history):
    """It stands in the journal, whether read before the scan or after it, evaluated, skipped or only tried."""
    history.each(*range(1, 25))
    history.settle(25, 26, 27)
    history.settle(28, settled=False)
    history.scan(33, 34, after=9 * SAVE_SECONDS)
    history.settle(29, 30)
    history.scan(31)  # its pin
    history.settle(33)
    assert history.missing == [32]


def test_numbers_that_were_passed_over_while_the_node_looked_never_existed(history):
    """The best by epoch: 5 and 6 were not better. Had they been saved, a scan would have seen them."""
    history.each(1, 2, 3, 4)
    for _ in range(8):
        history.scan()
    history.each(7, 8, 9)
    assert history.gaps.count == 0


def test_training_that_deletes_nothing_has_deleted_nothing(history):
    """The checkpoint before the gap is there, however long the node stood still."""
    history.each(1, 2, 3, 4)
    history.scan(9, 10, after=30.0)
    history.there.add("ckpt-4")
    history.settle(9, 10)
    assert history.gaps.count == 0


def test_one_that_is_held_a_little_longer_is_judged_again(history):
    """The pin of what came before the gap may outlast its evaluation by a scan."""
    after = stopped(history)
    history.there.add("ckpt-24")
    history.settle(after - 1)
    assert history.gaps.count == 0
    history.there.discard("ckpt-24")
    history.settle(after)
    assert history.gaps.count == 8


@pytest.mark.parametrize(
    "numbers",
    [
        (100, 200, 300, 400, 1400, 2400, 3400, 4400),  # from now on every 1000 steps
        (103, 199, 310, 402, 500, 611, 700, 803),  # by the clock
        (1, 2, 4, 8, 16, 32, 33),
        (100, 200, 300, 400, 450, 550, 650),  # the last one of an epoch
        (1, 2, 3, 50, 100, 150),  # steps instead of a counter
        (1, 2, 5, 6, 9, 10, 13),  # no stride yet
    ],
)
def test_numbers_without_a_constant_stride_say_nothing(history, numbers):
    """Even though the node stood still before each of them."""
    history.there.clear()
    for number in numbers:
        history.scan(number, after=600.0)
        history.there.clear()
        history.settle(number)
    assert history.gaps.count == 0


def test_training_that_starts_again_counts_anew(history):
    """From an older checkpoint, from nothing, or from one that jumps ahead: nothing between is missing."""
    history.each(1, 2, 3, 4, 5, 6)
    history.scan(4, after=600.0)
    history.each(5, 6, 7, 8)
    history.scan(1, after=600.0)
    history.scan(2)
    history.settle(1, 2)
    assert history.gaps.count == 0
    history.each(3, 4)
    history.scan(400, 401, after=30.0)  # half an hour of saves does not fit into this pause
    history.settle(400, 401)
    assert history.gaps.count == 0


def test_what_lay_there_at_the_first_look_is_no_news(history):
    """Nobody knows what happened before, and start=new does not want it."""
    history.scan(1, 2, 3, 4, 10, 20, 21)
    history.each(22, 23)
    assert history.gaps.count == 0


def test_names_are_bounded():
    """For any names, little is remembered and nothing is raised."""
    gaps = UnseenSteps()
    for number in range(2000):
        for name in (f"run{number}x-1", f"ckpt-{10**14 * number}", "-", "", "7", "٣", f"ckpt-{number % 7}"):
            gaps.scan(
                [
                    DiscoveredCheckpoint(
                        checkpoint=Checkpoint(name=name, digest="d", step=None, format="tf_object"),
                        folder=Path("/"),
                        written_at=0.0,
                        seen_at=0.0,
                    )
                ],
                100.0 * number,
            )
            gaps.journaled(name, lambda _: False, settled=True)
    assert len(pickle.dumps(gaps)) < 20_000
    assert gaps.count == 0
