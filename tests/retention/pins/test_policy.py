"""Decide which pins must stay, from what the journal and other nodes say."""

import errno
import os
import shutil

import pytest
from disk import Disk
from fakes import FakeClock, Node, outcomes, pass_time, restarted, save

from sidecar.protocol.codec import dumps
from sidecar.protocol.records import Checkpoint


def test_a_pin_that_nobody_can_read_goes_by_its_name_when_that_is_settled(looks):
    """In the second look, as all that is let go; the others stay, and so does what a newer release made."""
    digests = {"ckpt-1": "1" * 64, "ckpt-2": "2" * 64, "ckpt-3": "3" * 64, "ckpt-4": "4" * 64}
    settled = [(name, digest) for name, digest in digests.items() if name != "ckpt-2"]
    for name, digest in digests.items():
        folder = looks.pins / f"{name}@{digest[:12]}"
        folder.mkdir(parents=True)
        (folder / "garbage").write_bytes(b"?")
    (looks.pins / f"ckpt-4@{'4' * 12}" / ".checkpoint.json").write_bytes(
        dumps(Checkpoint(name="ckpt-4", digest="4" * 64, step=4, format="zarr"))
    )
    looks("ckpt-3", settled=settled)
    assert looks.pinned() == ["ckpt-1", "ckpt-2", "ckpt-3", "ckpt-4"]
    looks("ckpt-3", settled=settled)
    assert looks.pinned() == ["ckpt-2", "ckpt-3", "ckpt-4"]


def test_the_journal_says_what_a_pins_name_means(tmp_path):
    """It was evaluated and let go; what is left of its pin goes when that comes back, as storage may bring it."""
    node = Node(tmp_path, FakeClock())
    save(node.checkpoint_dir, 5)
    pass_time(10, node)
    ((name, digest),) = node.history.verdicts.succeeded
    left = [node.run_dir / "pins" / each for each in (f"{name}@{digest[:12]}", f"{name}@{'0' * 12}")]
    for each in left:
        each.mkdir(parents=True)
        (each / "rest").write_bytes(b"?")
    pass_time(10, node)
    assert [each.exists() for each in left] == [False, True]


@pytest.mark.skipif(os.geteuid() != 0, reason="a disk of its own needs root")
def test_who_was_not_heard_of_for_long_lets_go_what_is_settled(tmp_path, system_calls):
    """No heartbeat could be written for several leases: such a node may not decide, but the journal has decided."""
    with Disk(tmp_path / "disk") as disk:
        node = Node(tmp_path / "node", FakeClock(), state_dir=disk.path / "state")
        node.silent = {"Evaluate"}
        save(node.checkpoint_dir, 5)
        pass_time(5, node)
        pins = node.run_dir / "pins"
        (folder,) = pins.glob("ckpt-5@*")
        # So that its pin stands when the disk fills up.
        system_calls.refuse("rename", errno.EIO, lambda name, *_, **__: name == folder.name)
        node.silent = set()
        while not node.history.verdicts.succeeded:
            pass_time(1, node)
        node.silent = {"Evaluate"}
        save(node.checkpoint_dir, 6, keep=[5])
        pass_time(5, node)
        with disk.full(names=True):
            pass_time(60, node)
            assert "No space left" in node.status.unready
            assert sorted(path.name.split("@")[0] for path in pins.iterdir()) == ["ckpt-5", "ckpt-6"]
            system_calls.allow()
            pass_time(120, node)
            assert sorted(path.name.split("@")[0] for path in pins.iterdir()) == ["ckpt-6"]
        node.silent = set()
        pass_time(30, node)
        assert outcomes(node.history) == [("succeeded", "ckpt-5"), ("succeeded", "ckpt-6")]


@pytest.mark.skipif(os.geteuid() != 0, reason="a disk of its own needs root")
def test_who_is_started_on_a_full_disk_lets_go_what_is_settled(tmp_path):
    """All nodes lost power, say: nobody else is there to make room, and training waits for it, too."""
    with Disk(tmp_path / "disk") as disk:
        node = Node(tmp_path / "node", FakeClock(), state_dir=disk.path / "state")
        for step in (5, 6):
            save(node.checkpoint_dir, step, keep=[5])
            node.silent = {"Evaluate"} if step == 6 else set()
            pass_time(30, node)
        pins = node.run_dir / "pins"
        (wanted,) = pins.glob("ckpt-6@*")
        ((name, digest),) = node.history.verdicts.succeeded
        shutil.copytree(wanted, pins / Checkpoint(name=name, digest=digest, step=None, format="").folder)
        with disk.full(names=True):
            late = restarted(node, "i2", state_dir=disk.path / "state")
            late.silent = {"Evaluate"}
            pass_time(120, late)
            assert late.log.of("storage_failed")
            assert [path.name.split("@")[0] for path in pins.iterdir()] == ["ckpt-6"]
        late.silent = set()
        pass_time(60, late)
        assert outcomes(late.history)[-1] == ("succeeded", "ckpt-6")
