"""Scan, unpin and pin in one pass, though single entries cannot be read."""

import errno

import pytest
from fakes import FakeClock, Node, outcomes, pass_time, save
from faults import failing, hidden
from retention.pins.conftest import Looks

from sidecar.errors import StorageError
from sidecar.retention.pins.pin import pin


def named(told) -> list[str]:
    return sorted(name.split("@")[0] for name in told)


def test_what_a_listing_misses_is_still_found(looks):
    """Its files stand where they stood; once they do not, it is gone."""
    for step in (5, 6):
        save(looks.root, step, keep=[5])
    before = looks().reconciliation.scan
    files = [path.name for path in looks.root.glob("ckpt-5.*")]
    with hidden(*files):
        for _ in range(3):
            answer = looks(seconds=400)
            assert answer.reconciliation.scan.by_key.keys() == before.by_key.keys()
            assert (answer.reconciliation.given_up, answer.reconciliation.scan.unknown) == ((), {})
            assert [found.checkpoint.name for found in answer.reconciliation.scan.found] == ["ckpt-5", "ckpt-6"]
    for name in files:
        (looks.root / name).unlink()
    assert named(key[0] for key in looks(seconds=400).reconciliation.scan.by_key) == ["ckpt-6"]


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ESTALE])
def test_what_cannot_be_asked_for_is_not_gone(looks, code):
    """A listing misses it, and its files do not answer: it is still known, and the reason is told."""
    save(looks.root, 5)
    before = looks().reconciliation.scan
    with (
        hidden(*(path.name for path in looks.root.glob("ckpt-5.*"))),
        failing("stat", looks.root / "ckpt-5.index", code),
    ):
        for _ in range(3):
            answer = looks(seconds=400)
            assert answer.reconciliation.scan.by_key.keys() == before.by_key.keys()
            assert named(answer.reconciliation.scan.unknown) == ["ckpt-5"]
    for path in looks.root.glob("ckpt-5.*"):
        path.unlink()
    gone = looks(seconds=400).reconciliation.scan
    assert (gone.by_key, gone.unknown) == ({}, {})


def test_news_tell_of_what_was_absent_for_a_while_and_then_is_gone(looks):
    """A node that only hears of news would believe for ever that it is there."""
    save(looks.root, 5)
    looks()
    files = [path.name for path in looks.root.glob("ckpt-5.*")]
    with hidden(*files):
        shown = [looks(seconds=400).reconciliation.scan for _ in range(2)]
        for name in files:
            (looks.root / name).unlink()
        shown.append(looks(seconds=400).reconciliation.scan)


def test_a_pin_that_cannot_be_read_for_long_is_evaluated_when_it_can(tmp_path):
    """Training deleted all but the pin; the plans of others come and go meanwhile."""
    node = Node(tmp_path, FakeClock())
    node.silent = {"Evaluate"}
    for step in (5, 6):
        save(node.checkpoint_dir, step, keep=[5])
        pass_time(6, node)
    save(node.checkpoint_dir, 7)
    pass_time(6, node)
    (folder,) = (node.run_dir / "pins").glob("ckpt-6@*")
    with failing("stat", folder, errno.EIO):
        pass_time(20, node)
        assert "vanished" not in [verdict for verdict, _ in outcomes(node.history)]
        assert [key[0] for key in node.state.complete] == ["ckpt-5", "ckpt-6", "ckpt-7"]
    node.silent = set()
    pass_time(60, node)
    ended = {name: verdict for verdict, name in outcomes(node.history)}
    assert ended["ckpt-6"] == ended["ckpt-7"] == "succeeded"


def test_a_pin_that_cannot_be_read_does_not_block_all_others(tmp_path):
    """It takes all that pins may take, and stays: one that is wanted is held all the same, which is said."""
    looks = Looks(tmp_path, pin_max_bytes=1000)
    folder = looks.pins / f"ckpt-1@{'1' * 12}"
    folder.mkdir(parents=True)
    (folder / "garbage").write_bytes(b"?" * 1000)
    for step in (5, 6):
        save(looks.root, step, keep=[5])
    answer = looks("ckpt-5", "ckpt-6")
    assert looks.pinned() == ["ckpt-1", "ckpt-5"]
    assert named(name for name, _ in answer.reconciliation.no_room) == ["ckpt-6"]
    assert [name for name, why in answer.reconciliation.scan.waiting if "pinned in spite" in why] == ["ckpt-5"]
    assert not [name for name, why in looks("ckpt-5", "ckpt-6").reconciliation.scan.waiting if "pinned in spite" in why]


def content(folder):
    return sorted((str(path.relative_to(folder)), path.stat().st_mtime_ns) for path in folder.rglob("*"))


def test_where_the_pins_are_a_link_nothing_is_written_or_removed(looks, victim):
    """It is said, and the daemon goes on."""
    (victim / f".tmp-{'a' * 12}-{'b' * 8}-{'c' * 16}").mkdir()
    before = content(victim)
    save(looks.root, 5)
    looks.pins.symlink_to(victim)
    for wanted in (["ckpt-5"], [], []):
        answer = looks(*wanted, seconds=1000)
        assert "is a link or a file" in str(answer.error)
    found = Node(
        looks.root.parent, FakeClock(), state_dir=looks.root.parent / "other"
    ).storage_thread.reconciler.checkpoints.catalog.scan()
    for each in found.found:
        with pytest.raises(StorageError, match="link"):
            pin(each, looks.pins)
        with pytest.raises(StorageError, match="link"):
            looks.pinner.unpin(each.checkpoint)
    assert content(victim) == before


def test_links_in_the_pins_are_not_followed(looks, victim):
    """Neither in place of a pin nor of what a copier left."""
    save(looks.root, 5)
    looks("ckpt-5")
    before = content(victim)
    (folder,) = looks.pins.iterdir()
    (folder / "link").symlink_to(victim)
    (looks.pins / f".tmp-{'a' * 12}-{'b' * 8}-{'c' * 16}").symlink_to(victim)
    (looks.pins / f"ckpt-6@{'6' * 12}").symlink_to(victim)
    settled = [("ckpt-6", "6" * 64)]
    assert looks.pinner.bytes() < 1000
    for _ in range(200):
        looks(seconds=10.0, settled=settled)
    assert content(victim) == before
    assert not folder.exists()
