"""Leave out a file of `torch.save` that is another name of a state that has its own."""

import os
import shutil
from pathlib import Path

import pytest

from sidecar.checkpoints.files import list_files
from sidecar.checkpoints.formats.additional_names import saved_before


def lightning(recorded, root: Path, kind: str) -> Path:
    """Copy a folder of Lightning, with its links."""
    shutil.copytree(recorded.torch / kind, root, dirs_exist_ok=True, symlinks=True)
    return root


@pytest.mark.parametrize(
    ("kind", "found", "other"),
    [
        ("lightning_last", ["epoch=0-step=5.ckpt", "epoch=1-step=10.ckpt"], "epoch=1-step=10.ckpt"),
        ("lightning_link", ["epoch=0-step=5.ckpt", "epoch=1-step=10.ckpt"], "epoch=1-step=10.ckpt"),
        ("lightning_best_and_last", ["epoch=0-step=5.ckpt"], "epoch=0-step=5.ckpt"),
    ],
)
def test_last_is_not_evaluated_twice(recorded, root, new_catalog, kind, found, other):
    """`last.ckpt` holds the state that was saved just before under its own name, whether it is a copy or a link."""
    lightning(recorded, root, kind)
    scan = new_catalog(quiet_seconds=0).scan()
    assert [each.checkpoint.name for each in scan.found] == found
    assert scan.left_out == (("last.ckpt", f"it has the training state of {other}"),)
    assert (scan.waiting, scan.corrupt) == ((), ())


def test_last_alone_is_evaluated(recorded, root, new_catalog):
    """As with `save_top_k=0`, or if another state is the best: no other name holds its state."""
    lightning(recorded, root, "lightning_last")
    (root / "epoch=1-step=10.ckpt").unlink()
    scan = new_catalog(quiet_seconds=0).scan()
    assert [each.checkpoint.name for each in scan.found] == ["epoch=0-step=5.ckpt", "last.ckpt"]
    assert [each.checkpoint.step for each in scan.found] == [5, 10]
    assert scan.left_out == ()


def test_last_stays_left_out_when_the_other_is_deleted(recorded, root, new_catalog, clock):
    """Training keeps the best few only; the state was evaluated under its own name. A new one under the name counts."""
    lightning(recorded, root, "lightning_last")
    catalog = new_catalog(quiet_seconds=0)
    catalog.scan()
    (root / "epoch=1-step=10.ckpt").unlink()
    for _ in range(3):
        clock.seconds += 100
        scan = catalog.scan()
        assert [each.checkpoint.name for each in scan.found] == ["epoch=0-step=5.ckpt"]
        assert [name for name, _ in scan.left_out] == ["last.ckpt"]
    shutil.copy(recorded.kinds / "lightning" / "m-5.ckpt", root / "last.ckpt")
    scan = catalog.scan()
    assert [each.checkpoint.name for each in scan.found] == ["epoch=0-step=5.ckpt", "last.ckpt"]


def test_last_counts_if_it_alone_is_looked_for(recorded, root, new_catalog):
    """The other name is not one that `checkpoint_glob` accepts."""
    lightning(recorded, root, "lightning_last")
    scan = new_catalog(quiet_seconds=0, checkpoint_glob=("last*",)).scan()
    assert [each.checkpoint.name for each in scan.found] == ["last.ckpt"]


def test_last_of_another_state_is_evaluated(recorded, root, new_catalog):
    """The same step and size, but other weights."""
    lightning(recorded, root, "lightning_last")
    shutil.copy(recorded.torch / "lightning_link" / "epoch=1-step=10.ckpt", root / "last.ckpt")
    scan = new_catalog(quiet_seconds=0).scan()
    assert "last.ckpt" in [each.checkpoint.name for each in scan.found]


@pytest.mark.parametrize("name", ["last-v1.ckpt", "last-v12.ckpt"])
def test_last_of_a_second_training(recorded, root, new_catalog, name):
    """Lightning counts versions if the file is there already."""
    lightning(recorded, root, "lightning_last")
    (root / "last.ckpt").rename(root / name)
    assert new_catalog(quiet_seconds=0).scan().left_out == (
        (name, "it has the training state of epoch=1-step=10.ckpt"),
    )


def test_other_names_of_the_same_state_are_checkpoints(recorded, root, new_catalog):
    """A copy that a user made under a name of their own is evaluated; a link is only another name."""
    lightning(recorded, root, "lightning_last")
    (root / "last.ckpt").rename(root / "mine.ckpt")
    (root / "best.ckpt").symlink_to("mine.ckpt")
    scan = new_catalog(quiet_seconds=0).scan()
    assert "mine.ckpt" in [each.checkpoint.name for each in scan.found]
    assert scan.left_out == (("best.ckpt", "it has the training state of mine.ckpt"),)


def test_last_is_compared_with_few_files(recorded, root):
    """In a folder of many files, those of a similar size that were written at about the same time."""
    lightning(recorded, root, "lightning_last")
    for number in range(50):
        shutil.copy(root / "epoch=0-step=5.ckpt", root / f"epoch={number + 9}.ckpt")
        os.utime(root / f"epoch={number + 9}.ckpt", (number, number))
    names = saved_before(root, "last.ckpt")
    assert (names[0], len(names)) == ("epoch=1-step=10.ckpt", 4)
    assert "last.ckpt" in list_files(root).files
