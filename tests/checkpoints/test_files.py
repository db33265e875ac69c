"""List, open and sample files of a directory that others write to."""

import hashlib
import json
import os
import shutil

import pytest
from checkpoints.hostile import safetensors

from sidecar.checkpoints import work_budget as module
from sidecar.checkpoints.files import update_from_content
from sidecar.checkpoints.work_budget import WorkBudget
from sidecar.retention.pins.pin import pin


def names(scan) -> list[str]:
    return [found.checkpoint.name for found in scan.found]


def test_folders_are_not_entered(put, new_catalog, root):
    """`<prefix>_temp/` and the state directory are folders, and a folder named like an index is none."""
    put("plain", "weights-9*")
    for folder in ("x_temp", ".sidecar"):
        (root / folder).mkdir()
        for file in root.glob("weights-9*"):
            shutil.copy(file, root / folder)
    (root / "folder.index").mkdir()
    os.mkfifo(root / "fifo.index")
    (root / "dangling.index").symlink_to("nowhere")
    (root / "loop.index").symlink_to("loop.index")
    assert names(new_catalog(quiet_seconds=0).scan()) == ["weights-9"]


def told(catalog, clock):
    catalog.scan()
    clock.seconds += 60
    return catalog.scan().corrupt


def test_links_out_of_the_directory(put, new_catalog, clock, tmp_path):
    """A checkpoint with a file from elsewhere is not used, is no corrupt one either, and says why."""
    root = put("keras")
    for name in ("ckpt-1.index", "ckpt-2.data-00000-of-00001"):
        (root / name).rename(tmp_path / name)
        (root / name).symlink_to(tmp_path / name)
    (root / "inner.index").symlink_to("ckpt-3.index")
    (root / "inner.data-00000-of-00001").symlink_to("ckpt-3.data-00000-of-00001")
    catalog = new_catalog()
    assert told(catalog, clock) == ()
    scan = catalog.scan()
    assert names(scan) == ["ckpt-3", "inner"]
    assert scan.waiting == (
        ("ckpt-1", "ckpt-1.index is a link out of the directory"),
        ("ckpt-2", "ckpt-2.data-00000-of-00001 is a link out of the directory"),
    )


def test_names_that_are_no_text(put, new_catalog, clock, root, pins):
    """A file name is bytes: one that is no UTF-8 is found, pinned and, if broken, named like any other."""
    put("keras", "ckpt-1*")
    name = os.fsdecode(b"ck\xffpt-1")
    for file in list(root.iterdir()):
        file.rename(root / file.name.replace("ckpt-1", name))
    (root / "checkpoint").write_bytes(b'model_checkpoint_path: "ck\xffpt-1"\n')
    (found,) = new_catalog().scan().found
    assert found.checkpoint.name == name
    assert pin(found, pins).checkpoint == new_catalog().scan().found[0].checkpoint
    (root / f"{name}.index").write_bytes(b"")
    (settlement,) = told(new_catalog(), clock)
    assert settlement.name == name


def header(tensors: int) -> bytes:
    """The header of a file with so many tensors of one byte."""
    return json.dumps({f"w{n}": {"data_offsets": [n, n + 1]} for n in range(tensors)}).encode()


def test_many_large_files_are_sampled_further_apart(tmp_path):
    """A checkpoint of any size has a digest that takes bounded work; that of one of usual size does not change."""
    with (tmp_path / "large").open("wb") as file:
        file.truncate(100 << 20)

    def units(most: int) -> tuple[int, str]:
        work, digest = WorkBudget(samples_left=most), hashlib.sha256()
        for _ in range(3):
            with (tmp_path / "large").open("rb", buffering=0) as file:
                update_from_content(digest, file, work)
        return work.units, digest.hexdigest()

    usual, few = units(module.MOST_SAMPLES), units(150)
    assert units(297) == usual
    assert few[0] < usual[0] * 0.7
    assert few[1] != usual[1]


def test_small_files_of_many_gigabytes_are_sampled(tmp_path):
    """Each is read as a whole as long as the budget of bytes allows it."""
    (tmp_path / "small").write_bytes(bytes(3 << 20))

    def units(most: int) -> int:
        work = WorkBudget(whole_bytes_left=most)
        with (tmp_path / "small").open("rb", buffering=0) as file:
            update_from_content(hashlib.sha256(), file, work)
        return work.units

    assert units(3 << 20) > 3000
    assert units((3 << 20) - 1) < 100


@pytest.fixture
def long(root, monkeypatch):
    """Ten checkpoints whose headers take longer than a brief budget, and a good one that comes after them."""
    monkeypatch.setattr(module, "BRIEF_UNITS", 10_000)
    safetensors(root, header(9_000), "", 9_000, "a0.safetensors")
    for number in range(1, 10):
        os.link(root / "a0.safetensors", root / f"a{number}.safetensors")
    safetensors(root, header(1), "", 1, "good.safetensors")
