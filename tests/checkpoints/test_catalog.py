"""Find checkpoints in a directory and in pins, and order them."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from catalogs import make_catalog

from sidecar.checkpoints.inspect import restore_path, verify
from sidecar.errors import StorageError, VanishedError
from sidecar.retention.pins.pin import pin, unpin


def names(scan) -> list[str]:
    return [found.checkpoint.name for found in scan.found]


def test_named_checkpoints_are_found_at_once(put, new_catalog, clock):
    """Checkpoints that the manager committed are found by the first scan, in order of their steps."""
    root = put("keras")
    scan = new_catalog().scan()
    assert [(found.checkpoint.name, found.checkpoint.step) for found in scan.found] == [
        ("ckpt-1", 2),
        ("ckpt-2", 4),
        ("ckpt-3", 7),
    ]
    assert (scan.corrupt, scan.waiting, scan.missing) == ((), (), False)
    first = scan.found[0]
    assert first.folder == root
    assert first.seen_at == clock.now()
    assert first.written_at == (root / "ckpt-1.index").stat().st_mtime_ns / 1e9
    assert first.checkpoint.pin is None
    assert first.checkpoint.format == "tf_object"
    assert restore_path(first, first.folder) == restore_path(first.checkpoint, root) == str(root / "ckpt-1")
    assert verify(root, "ckpt-1") == first.checkpoint.digest


@pytest.mark.parametrize("prefix", ["workertemp_1", "tmp-1", "a.tmp1", ".hidden"])
def test_names_of_the_unfinished(put, new_catalog, prefix):
    """Temporary names of writers are never candidates, however whole they scan."""
    root = put("plain", "weights-9*")
    for file in list(root.iterdir()):
        file.rename(root / file.name.replace("weights-9", prefix))
    catalog = new_catalog(quiet_seconds=0)
    scan = catalog.scan()
    assert (scan.found, scan.waiting) == ((), ())


def test_steps_come_from_names_last(put, new_catalog):
    """Where the checkpoint itself holds no step; a pattern that finds none leaves it unknown."""
    put("step")
    put("keras", "ckpt-3*")
    found = new_catalog(quiet_seconds=0, step_pattern=r"^none-(\d)$").scan().found
    steps = {one.checkpoint.name: one.checkpoint.step for one in found}
    assert steps == {"all-1": 30, "both-1": 10, "global-1": 20, "none-1": 1, "saver-1": 77, "ckpt-3": 7}
    unknown = new_catalog(quiet_seconds=0, step_pattern=r"none").scan().found
    assert [one.checkpoint.name for one in unknown if one.checkpoint.step is None] == ["none-1"]


def test_step_key(put, new_catalog):
    """The user's variable, else the name, and no other variable."""
    put("step")
    found = new_catalog(quiet_seconds=0, step_key="epoch").scan().found
    assert {one.checkpoint.name: one.checkpoint.step for one in found}["both-1"] == 5
    assert {one.checkpoint.name: one.checkpoint.step for one in found}["saver-1"] == 1


def test_order_of_discovery(put, new_catalog):
    """A later find comes later, though its step is lower: a rollback must show."""
    put("keras", "ckpt-3*")
    root = put("keras", "checkpoint")
    catalog = new_catalog()
    assert names(catalog.scan()) == ["ckpt-3"]
    put("keras", "ckpt-1*")
    for file in root.glob("ckpt-1*"):
        os.utime(file)
    assert names(catalog.scan()) == ["ckpt-3", "ckpt-1"]
    for file in root.glob("ckpt-3*"):
        file.unlink()
    assert names(catalog.scan()) == ["ckpt-1"]
    put("keras", "ckpt-3*")
    assert names(catalog.scan()) == ["ckpt-3", "ckpt-1"]  # it flickered, it is not new


def test_a_pin_that_another_node_makes_of_what_is_gone_is_waited_for(new_catalog, put, pins):
    """The run is not over then."""
    put("keras")
    (pins / ".tmp-0123456789ab-11111111-2222222222222222").mkdir(parents=True)
    (pins / ".tmp-33333333333333ff").mkdir()
    catalog = new_catalog()
    scan = catalog.scan()
    assert scan.waiting == (("@0123456789ab", "a node is making a pin of it, or left one unfinished"),)
    assert scan.making == {"0123456789ab"}
    shutil.rmtree(pins)
    scan = catalog.scan()
    assert (scan.waiting, scan.making) == ((), frozenset())


def test_the_directory_is_missing(root, new_catalog, put):
    """No directory is a state, not an error; it may come, go and come again."""
    root.rmdir()
    catalog = new_catalog()
    assert catalog.scan().missing
    root.mkdir()
    put("keras")
    assert len(catalog.scan().found) == 3
    shutil.rmtree(root)
    assert (catalog.scan().missing, catalog.scan().found) == (True, ())


def test_the_directory_is_a_file(root, new_catalog):
    """A checkpoint directory that cannot be listed is a storage error that names the path."""
    root.rmdir()
    root.write_text("")
    with pytest.raises(StorageError, match="checkpoints"):
        new_catalog().scan()


def test_pins_outlive_the_directory(put, new_catalog, pins):
    """A pinned checkpoint that the trainer deleted is found again by a daemon that starts now."""
    root = put("keras")
    catalog = new_catalog()
    before = catalog.scan().found[0]
    pinned = pin(before, pins)
    for file in root.glob("ckpt-1*"):
        file.unlink()
    again = new_catalog().scan().found[0]
    assert again.checkpoint == pinned.checkpoint == replace(before.checkpoint, pin=f"pins/{before.checkpoint.folder}")
    assert again.folder == pinned.folder == pins / before.checkpoint.folder
    assert again.written_at == before.written_at
    assert catalog.scan().found[0].seen_at == before.seen_at
    assert names(catalog.scan()) == ["ckpt-1", "ckpt-2", "ckpt-3"]


def test_what_was_met_as_a_pin_only_comes_before_what_was_written_later(put, new_catalog, pins):
    """Another node held it, which took time, and training deleted it: by then this node had found newer ones."""
    root = put("keras")
    first, second, third = new_catalog().scan().found
    for file in (*root.glob("ckpt-1*"), *root.glob("ckpt-2*")):
        file.rename(root.parent / file.name)
    catalog = new_catalog()
    assert names(catalog.scan()) == ["ckpt-3"]
    for file in (*root.parent.glob("ckpt-1*"), *root.parent.glob("ckpt-2*")):
        file.rename(root / file.name)
    for each in (second, first):
        pin(each, pins)
        for file in root.glob(f"{each.checkpoint.name}.*"):
            file.unlink()
    scan = catalog.scan()
    assert names(scan) == ["ckpt-1", "ckpt-2", "ckpt-3"]
    assert [*scan.by_key] == [each.checkpoint.key for each in (first, second, third)]
    assert [each.checkpoint.pin is None for each in scan.found] == [False, False, True]


@pytest.mark.parametrize("age_seconds", [-100, 100])
def test_of_two_contents_under_one_name_the_newer_comes_last(recorded, root, new_catalog, pins, age_seconds):
    """A daemon that starts now sees them all at once, and what is the last of a run must be the same for all."""
    (root / "checkpoint").write_text('model_checkpoint_path: "best"\n')
    shutil.copytree(recorded.objects / "overwritten/before", root, dirs_exist_ok=True)
    (pinned,) = new_catalog(step_key="none").scan().found
    pin(pinned, pins)
    for path in (recorded.objects / "overwritten/after").glob("best.*"):
        (root / path.name).unlink()
        shutil.copy2(path, root)
        os.utime(root / path.name, (pinned.written_at, pinned.written_at + age_seconds))
    found = new_catalog(step_key="none").scan().found
    assert [each.checkpoint.step for each in found] == [None, None]
    assert [each.checkpoint.pin is not None for each in found] == ([True, False] if age_seconds > 0 else [False, True])


def test_pinned_and_there_is_one(put, new_catalog, pins, inspections):
    """In the directory and in a pin: one find, the pin, parsed once."""
    put("keras")
    catalog = new_catalog()
    pin(catalog.scan().found[1], pins)
    assert [bool(one.checkpoint.pin) for one in catalog.scan().found] == [False, True, False]
    inspections.clear()
    scan = catalog.scan()
    assert inspections == []
    unpin(scan.found[1].checkpoint, pins)
    assert [one.checkpoint.pin for one in catalog.scan().found] == [None] * 3


def test_a_pin_is_what_it_holds(put, new_catalog, pins):
    """A folder whose content is not what its name says is no pin, and is reported."""
    put("keras", "ckpt-1*")
    found = new_catalog(quiet_seconds=0).scan().found[0]
    pinned = pin(found, pins)
    wrong = pinned.folder.rename(pins / f"ckpt-1@{'0' * 12}")
    (pins / "empty").mkdir()
    (pins / ".tmp-1").mkdir()
    scan = new_catalog(quiet_seconds=0).scan()
    assert [one.checkpoint.pin for one in scan.found] == [None]
    assert sorted(name for name, _ in scan.waiting) == sorted([wrong.name, "empty"])


def test_a_damaged_file_that_is_planted_in_a_pin_does_not_count(put, new_catalog, pins):
    """The pin is still the checkpoint that it is named after, whatever else another user puts there."""
    put("keras", "ckpt-1*")
    pinned = pin(new_catalog(quiet_seconds=0).scan().found[0], pins)
    for name in ("a.pt", "b.keras", "c.safetensors", "a.index"):
        (pinned.folder / name).write_bytes(b"planted")
    scan = new_catalog(quiet_seconds=0).scan()
    assert [one.checkpoint.pin for one in scan.found] == [pinned.checkpoint.pin]
    assert (scan.broken, scan.waiting) == ((), ())


def test_odd_names(put, new_catalog, pins):
    """Quotes, spaces, per cent and letters beyond ASCII survive the state file and the pin's folder name."""
    put("odd_name")
    (found,) = new_catalog().scan().found
    assert found.checkpoint.step == 6
    pin(found, pins)
    (again,) = new_catalog().scan().found
    assert again.checkpoint.name == found.checkpoint.name
    assert again.checkpoint.pin == f"pins/{found.checkpoint.folder}"


def test_verify_elsewhere(put, root):
    """A folder is re-checked under the checkpoint's name; an unknown format asks for a newer daemon."""
    put("plain")
    assert verify(root, "weights-9") != verify(root, "weights-10")
    with pytest.raises(VanishedError):
        verify(root, "weights-8")
    with pytest.raises(StorageError, match="torch"):
        verify(root, "weights-9", "torch")


def test_relative_paths_are_made_absolute(put, root, pins, clock, monkeypatch):
    """A daemon may be started with a relative directory; what it hands to workers is absolute."""
    put("keras")
    monkeypatch.chdir(root.parent)
    found = make_catalog(Path(root.name), pins, quiet_seconds=3, clock=clock).scan().found
    assert found[0].folder == root
