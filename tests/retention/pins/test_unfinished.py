"""Remove what dead makers left of a pin, and leave what grows."""

import os

from fakes import save
from retention.pins.conftest import Looks, leave


def test_what_a_dead_copier_left_is_in_nobodys_way(tmp_path, monkeypatch):
    """Once it does not grow no room is kept for it; and it goes when nobody has touched it for long."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
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
