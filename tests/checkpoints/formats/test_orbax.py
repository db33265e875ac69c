"""Checkpoints of `keras.callbacks.OrbaxCheckpoint`, as the callback writes and deletes them."""

import json
import os
import shutil

import pytest
from orbax_training import needs_orbax, trained_once

from sidecar.checkpoints.formats.orbax import MANIFEST, MARKER, Orbax
from sidecar.errors import CorruptError, IncompleteError, VanishedError
from sidecar.retention.pins.pin import pin

pytestmark = [pytest.mark.tensorflow, needs_orbax]


@pytest.fixture(scope="session")
def trained(made_once):
    """Three checkpoints, of the epochs 0 to 2."""
    return trained_once(made_once) / "saves"


@pytest.fixture
def saved(trained, root):
    """One of them, as if its writer had renamed it into the checkpoint directory just now."""

    def copy(name, to=None):
        there = root / (to or name)
        shutil.copytree(trained / name, there)
        for folder, _, _ in os.walk(trained / name):
            shutil.copystat(folder, there / os.path.relpath(folder, trained / name))
        return there

    return copy


def names(scan) -> list[str]:
    return [found.checkpoint.name for found in scan.found]


def test_found_at_once(saved, new_catalog):
    """The rename is the commit: nothing has to settle; the folder's name is the step."""
    for name in ("0", "1", "2"):
        saved(name)
    scan = new_catalog().scan()
    assert [(each.checkpoint.name, each.checkpoint.step, each.checkpoint.format) for each in scan.found] == [
        ("0", 0, "orbax"),
        ("1", 1, "orbax"),
        ("2", 2, "orbax"),
    ]
    assert len({each.checkpoint.digest for each in scan.found}) == 3
    assert scan.waiting == ()


def test_pinned_whole(saved, new_catalog, pins, trained):
    """Every file, by links; the pin outlives the original, and is read back as the same checkpoint."""
    there = saved("2")
    (found,) = new_catalog().scan().found
    pinned = pin(found, pins, check=True)
    shutil.rmtree(there)
    original = {path.relative_to(trained) for path in (trained / "2").rglob("*") if path.is_file()}
    assert {path.relative_to(pinned.folder) for path in (pinned.folder / "2").rglob("*") if path.is_file()} == original
    (again,) = new_catalog().scan().found
    assert again.checkpoint == pinned.checkpoint


def test_in_a_sub_folder(saved, new_catalog, pins, root):
    """With the folder's name in the checkpoint's, and the step from its own."""
    (root / "run-7").mkdir()
    saved("2", "run-7/12")
    scan = new_catalog().scan()
    assert scan.below.endswith('checkpoint_glob = "run-*/*"')
    catalog = new_catalog(checkpoint_glob=("run-*/*",))
    (found,) = catalog.scan().found
    assert (found.checkpoint.name, found.checkpoint.step) == ("run-7/12", 12)
    pin(found, pins)
    shutil.rmtree(root / "run-7")
    assert names(new_catalog().scan()) == ["run-7/12"]


def test_one_that_is_being_written_is_nothing(trained, root, new_catalog):
    """Under its temporary name it is neither found nor told of."""
    shutil.copytree(trained / "2", root / "2.orbax-checkpoint-tmp")
    catalog = new_catalog()
    scan = catalog.scan()
    assert (scan.found, scan.waiting, scan.below) == ((), (), None)
    (root / "2.orbax-checkpoint-tmp").rename(root / "2")
    assert [name for name, _ in catalog.scan({"2"}, sweep=False).waiting] in ([], ["2"])  # a copy has to settle


def test_no_state_of_deletion_is_found(saved, new_catalog, clock):
    """Orbax deletes the files one by one, in any order: one that lacks a file has to settle, and it does not."""
    there = saved("2")
    files = sorted(path for path in there.rglob("*") if path.is_file())
    assert len(files) > 8
    for number, first in enumerate(files):
        shutil.rmtree(there)
        saved("2")
        for file in [first, *files[number + 1 :], *files[:number]]:
            file.unlink()
            catalog = new_catalog()
            assert names(catalog.scan()) == []
            clock.seconds += 1


def test_one_that_is_deleted_while_it_is_looked_at(saved, new_catalog, before_inspection):
    """Found as it was, or not at all."""
    (data,) = (saved("2") / "pytree" / "d").iterdir()
    before_inspection(lambda *_: data.unlink(missing_ok=True), Orbax)
    assert names(new_catalog().scan()) == []


def test_copies_have_to_settle(trained, root, new_catalog, clock):
    """A copy of a part cannot be told from a whole one; it is found once nothing more comes."""
    shutil.copytree(trained / "2", root / "2")
    (last,) = (root / "2" / "pytree" / "d").iterdir()
    content = last.read_bytes()
    last.unlink()
    catalog = new_catalog()
    assert [name for name, _ in catalog.scan().waiting] == ["2"]
    clock.seconds += 2
    last.write_bytes(content)
    assert names(catalog.scan()) == []
    clock.seconds += 3
    assert names(catalog.scan()) == ["2"]


def test_not_committed_yet(saved, root):
    """On storage without renames all is written under the final name, and the marker gets its time last."""
    there = saved("2")
    marker = there / MARKER
    known = json.loads(marker.read_text())
    for content in ("", "{", "[]", json.dumps(known | {"commit_timestamp_nsecs": None}), "[" * 100_000):
        marker.write_text(content)
        with pytest.raises(IncompleteError, match=f"2/{MARKER}"):
            Orbax().inspect(root, "2")
    marker.unlink()
    with pytest.raises(VanishedError):
        Orbax().inspect(root, "2")


def test_a_damaged_manifest(saved, root):
    """Every bit of it counts, and so does its length."""
    path = saved("2") / "pytree" / MANIFEST
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises((CorruptError, IncompleteError), match=f"2/pytree/{MANIFEST}"):
            Orbax().inspect(root, "2")
        path.write_bytes(whole[:place])
        with pytest.raises((CorruptError, IncompleteError), match=f"2/pytree/{MANIFEST}"):
            Orbax().inspect(root, "2")


def test_every_file_is_part_of_the_digest(saved, root):
    """Content and names; the folder's own name is not."""
    there = saved("2")
    before = Orbax().inspect(root, "2").digest
    there.rename(root / "x")
    assert Orbax().inspect(root, "x").digest == before
    for path in (root / "x").rglob("*"):
        if path.is_file() and path.name not in (MANIFEST, MARKER):
            content = path.read_bytes()
            path.write_bytes(content + b" ")
            assert Orbax().inspect(root, "x").digest != before
            path.write_bytes(content)
    assert Orbax().inspect(root, "x").digest == before


def test_links_out_of_it(saved, new_catalog, root, tmp_path):
    """It is not used, and that is said."""
    there = saved("2")
    (data,) = (there / "pytree" / "d").iterdir()
    shutil.move(data, tmp_path / "elsewhere")
    data.symlink_to(tmp_path / "elsewhere")
    scan = new_catalog().scan()
    assert scan.found == ()
    ((name, why),) = scan.waiting
    assert name == "2"
    assert data.name in why
    with pytest.raises(CorruptError, match=data.name):
        Orbax().inspect(root, "2")
