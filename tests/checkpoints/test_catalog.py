import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from catalogs import make_catalog

from sidecar.checkpoints import file_group_reader, files
from sidecar.checkpoints.formats import FORMATS
from sidecar.checkpoints.formats.hdf5 import SIGNATURE
from sidecar.checkpoints.formats.tf_object import TfObject
from sidecar.checkpoints.inspect import restore_path, verify
from sidecar.errors import StorageError, VanishedError
from sidecar.retention.pins.pin import pin, unpin


def names(scan) -> list[str]:
    return [found.checkpoint.name for found in scan.found]


@pytest.fixture
def inspections(monkeypatch) -> list[str]:
    """The names of all checkpoints that were parsed."""
    seen, inspect = [], TfObject.inspect

    def counted(self, folder, name, **settings):
        seen.append(name)
        return inspect(self, folder, name, **settings)

    monkeypatch.setattr(TfObject, "inspect", counted)
    return seen


def test_named_checkpoints_are_found_at_once(put, new_catalog, clock):
    """What the manager committed needs no second scan, and comes in order of steps."""
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


def test_unnamed_checkpoints_have_to_settle(put, new_catalog, clock):
    """`Checkpoint.write` names nothing: found once two looks at least `quiet_seconds` apart saw the same files."""
    put("plain")
    catalog = new_catalog()
    assert sorted(name for name, _ in catalog.scan().waiting) == ["weights-10", "weights-9"]
    clock.seconds += 2.9
    assert names(catalog.scan()) == []
    clock.seconds += 0.1
    scan = catalog.scan()
    assert names(scan) == ["weights-9", "weights-10"]  # by the step in the name, not by its letters
    assert scan.waiting == ()


def test_changing_files_do_not_settle(put, new_catalog, clock):
    """Every change starts the wait anew; a hard link to a file is no change."""
    root = put("plain", "weights-9*")
    catalog = new_catalog()
    catalog.scan()
    clock.seconds += 2
    os.utime(root / "weights-9.index", ns=(1, 1))
    catalog.scan()
    clock.seconds += 2
    (root / "link").hardlink_to(root / "weights-9.data-00000-of-00001")
    assert names(catalog.scan()) == []
    clock.seconds += 1
    assert names(catalog.scan()) == ["weights-9"]


def test_unchanged_files_are_parsed_once(put, new_catalog, inspections):
    """The cost of a scan is that of what changed: found, waiting and broken alike."""
    root = put("keras")
    put("plain")
    (root / "weights-9.index").write_bytes(b"broken")
    catalog = new_catalog()
    catalog.scan()
    assert len(inspections) == 5
    catalog.scan()
    assert len(inspections) == 5
    os.utime(root / "ckpt-2.index", ns=(1, 1))
    catalog.scan()
    assert inspections[5:] == ["ckpt-2"]


@pytest.mark.parametrize("prefix", ["workertemp_1", "tmp-1", "a.tmp1", ".hidden"])
def test_names_of_the_unfinished(put, new_catalog, prefix):
    """Temporary names of writers are never candidates, however whole they scan."""
    root = put("plain", "weights-9*")
    for file in list(root.iterdir()):
        file.rename(root / file.name.replace("weights-9", prefix))
    catalog = new_catalog(quiet_seconds=0)
    scan = catalog.scan()
    assert (scan.found, scan.waiting) == ((), ())


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


def test_changed_content_is_another_checkpoint(recorded, root, new_catalog, clock):
    """The same name with another digest is found anew, later in the order, and the old one is gone."""
    catalog = new_catalog()
    (root / "checkpoint").write_text('model_checkpoint_path: "best"\n')
    shutil.copytree(recorded.objects / "overwritten/before", root, dirs_exist_ok=True)
    (before,) = catalog.scan().found
    clock.seconds += 1
    shutil.copy2(recorded.objects / "overwritten/after/best.data-00000-of-00001", root)
    assert catalog.scan().found == ()  # new data, old index
    shutil.copy2(recorded.objects / "overwritten/after/best.index", root)
    (after,) = catalog.scan().found
    assert (before.checkpoint.name, before.checkpoint.step) == ("best", 1)
    assert (after.checkpoint.name, after.checkpoint.step) == ("best", 2)
    assert after.checkpoint.digest != before.checkpoint.digest
    assert after.seen_at == before.seen_at + 1


def test_new_data_beside_an_old_index_has_to_settle(put, new_catalog, clock):
    """A named checkpoint whose shard is newer than its index may be half overwritten; a copied one just waits."""
    root = put("keras", "c*")
    shard = root / "ckpt-2.data-00000-of-00001"
    os.utime(shard, ns=(shard.stat().st_atime_ns, (root / "ckpt-2.index").stat().st_mtime_ns + 1))
    catalog = new_catalog()
    assert names(catalog.scan()) == ["ckpt-1", "ckpt-3"]
    clock.seconds += 3
    assert names(catalog.scan()) == ["ckpt-1", "ckpt-2", "ckpt-3"]  # it was written before, so it is no rollback


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


@pytest.mark.parametrize("damage", ["index", "short", "missing"])
def test_corrupt_is_told_once(put, new_catalog, clock, damage):
    """A named checkpoint that stays broken is given up, once; until then it waits."""
    root = put("keras")
    index, shard = root / "ckpt-2.index", root / "ckpt-2.data-00000-of-00001"
    if damage == "index":
        index.write_bytes(index.read_bytes()[:-10])
    elif damage == "short":
        shard.write_bytes(shard.read_bytes()[:100])
    else:
        shard.unlink()
    catalog = new_catalog()
    scan = catalog.scan()
    assert (names(scan), scan.corrupt) == (["ckpt-1", "ckpt-3"], ())
    ((name, reason),) = scan.waiting
    assert name == "ckpt-2"
    clock.seconds += 60
    scan = catalog.scan()
    (settlement,) = scan.corrupt
    assert (settlement.name, settlement.step, settlement.verdict) == ("ckpt-2", 2, "corrupt")
    assert settlement.reason == reason
    assert len(settlement.digest) == 64
    assert scan.waiting == ()
    clock.seconds += 60
    assert catalog.scan().corrupt == ()
    (again,) = told(new_catalog(), clock)
    assert again == settlement  # every daemon comes to the same identity


def told(catalog, clock):
    catalog.scan()
    clock.seconds += 60
    return catalog.scan().corrupt


def test_corrupt_becomes_whole(put, new_catalog, clock):
    """What was given up and is then written again is found."""
    root = put("keras")
    whole = (root / "ckpt-2.index").read_bytes()
    (root / "ckpt-2.index").write_bytes(whole[:50])
    catalog = new_catalog()
    assert len(told(catalog, clock)) == 1
    (root / "ckpt-2.index").write_bytes(whole)
    assert names(catalog.scan()) == ["ckpt-1", "ckpt-3", "ckpt-2"]


def test_broken_and_not_named_is_given_up_too(put, new_catalog, clock):
    """Nobody said that it is finished, but nobody writes it any more; a writer that only paused is found after all."""
    root = put("plain", "weights-9*")
    shard = root / "weights-9.data-00000-of-00001"
    whole = shard.read_bytes()
    shard.write_bytes(whole[: len(whole) // 2])
    catalog = new_catalog()
    (settlement,) = told(catalog, clock)
    assert (settlement.name, settlement.verdict) == ("weights-9", "corrupt")
    clock.seconds += 600
    scan = catalog.scan()
    assert (scan.found, scan.corrupt, scan.waiting) == ((), (), ())
    shard.write_bytes(whole)
    assert [name for name, _ in catalog.scan().waiting] == ["weights-9"]
    clock.seconds += 3
    assert names(catalog.scan()) == ["weights-9"]


@pytest.mark.parametrize("kind", ["keras", "weights", "h5"])
def test_a_torn_file_of_keras_is_given_up_and_found_once_it_is_whole(written, root, new_catalog, clock, kind):
    """Nothing declares these finished, so a writer that died leaves one that is torn; one that pauses goes on."""
    (path,) = (written / kind).iterdir()
    whole = path.read_bytes()
    (root / path.name).write_bytes(whole[:-100])
    catalog = new_catalog()
    (settlement,) = told(catalog, clock)
    assert (settlement.name, settlement.step, settlement.verdict) == (path.name, 5, "corrupt")
    clock.seconds += 600
    scan = catalog.scan()
    assert (scan.corrupt, scan.waiting) == ((), ())
    with (root / path.name).open("ab") as file:
        file.write(whole[-100:])
    assert [name for name, _ in catalog.scan().waiting] == [path.name]
    clock.seconds += 3
    assert names(catalog.scan()) == [path.name]


def hdf5_file(content=b"0" * 100) -> bytes:
    """What counts as one: a first superblock of version 0 that tells its length, and something behind it."""
    head = bytearray(128)
    head[:8], head[13] = SIGNATURE, 8
    head[40:48] = (len(head) + len(content)).to_bytes(8, "little")
    head[64:72] = (96).to_bytes(8, "little")  # the root group
    return bytes(head) + content


def being_written(whole) -> bytes:
    return whole[:20] + b"\1" + whole[21:]


def frozen(path, content, at):
    """Write in place within one tick of the kernel's clock for files: size and times are as before."""
    path.write_bytes(content)
    os.utime(path, (at, at))


@pytest.fixture
def coarse(monkeypatch):
    """A kernel on which no time of a file changes within this test, but that which is set."""
    seen = {}

    def stat_of(name, found):
        ctime = seen.setdefault((name, found.st_size), found.st_ctime_ns)
        return files.File(name, found.st_size, found.st_mtime_ns, 1, ctime)

    monkeypatch.setattr(files, "as_file", stat_of)


@pytest.mark.usefixtures("coarse")
def test_a_last_write_within_the_tick_of_the_one_before_is_seen(root, new_catalog, clock):
    """As h5py clears the flag that says "open for writing": the file scans the same, and is whole."""
    path, at = root / "m-5.h5", clock.wall()
    whole = hdf5_file()
    frozen(path, being_written(whole), at)
    catalog = new_catalog(quiet_seconds=3.0)
    assert "open for writing" in str(catalog.scan().waiting)
    frozen(path, whole, at)
    assert names(catalog.scan()) == []
    clock.seconds += 3
    clock.wall_seconds += 3
    assert names(catalog.scan(set(), sweep=False)) == ["m-5.h5"]


@pytest.mark.usefixtures("coarse")
def test_content_that_was_rewritten_within_a_tick_is_not_what_was_read_before(root, new_catalog, clock):
    """What is pinned must be what was found, or it would be given up."""
    path, at = root / "m-5.h5", clock.wall()
    frozen(path, hdf5_file(b"1" * 100), at)
    catalog = new_catalog(quiet_seconds=3.0)
    catalog.scan()
    frozen(path, hdf5_file(b"2" * 100), at)
    clock.seconds += 3
    clock.wall_seconds += 3
    (found,) = catalog.scan().found
    assert found.checkpoint.digest == verify(root, "m-5.h5", "hdf5")


def test_what_was_given_up_is_found_when_it_was_repaired_from_a_copy(root, new_catalog, clock, tmp_path):
    """With the size and the time of modification of the original, as `cp -p` and `rsync -c` keep them."""
    path, whole = root / "m-5.h5", hdf5_file()
    frozen(path, being_written(whole), 1e9)
    catalog = new_catalog()
    catalog.scan()
    clock.seconds += 70
    assert [each.verdict for each in catalog.scan().corrupt] == ["corrupt"]
    frozen(tmp_path / "copy", whole, 1e9)
    (tmp_path / "copy").replace(path)
    for _ in range(3):
        clock.seconds += 5
        scan = catalog.scan()
    assert names(scan) == ["m-5.h5"]


def test_whatever_a_file_makes_of_its_parser_ends_no_daemon(put, new_catalog, monkeypatch, clock):
    """It is one file that cannot be used."""
    put("keras")
    inspect = TfObject.inspect

    def fails(self, folder, name, **options):
        if name == "ckpt-2":
            raise ZeroDivisionError("what nobody thought of")
        return inspect(self, folder, name, **options)

    monkeypatch.setattr(TfObject, "inspect", fails)
    catalog = new_catalog()
    scan = catalog.scan()
    assert names(scan) == ["ckpt-1", "ckpt-3"]
    assert "please report it: ZeroDivisionError" in str(scan.waiting)
    clock.seconds += 70
    assert [each.name for each in catalog.scan().corrupt] == ["ckpt-2"]


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


def test_being_deleted_is_not_corrupt(put, new_catalog, clock):
    """The state file may name what is gone, or half gone: the index goes first."""
    root = put("keras")
    (root / "ckpt-1.index").unlink()
    catalog = new_catalog()
    assert told(catalog, clock) == ()
    assert catalog.scan().waiting == ()
    assert names(catalog.scan()) == ["ckpt-2", "ckpt-3"]


def test_deleted_between_listing_and_reading(put, new_catalog, monkeypatch):
    """The trainer may delete at any moment; the scan goes on."""
    root = put("keras")
    inspect = TfObject.inspect

    def late(self, folder, name, **settings):
        if name == "ckpt-2":
            (root / "ckpt-2.index").unlink(missing_ok=True)
        return inspect(self, folder, name, **settings)

    monkeypatch.setattr(TfObject, "inspect", late)
    scan = new_catalog().scan()
    assert (names(scan), scan.waiting) == (["ckpt-1", "ckpt-3"], ())


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


def test_a_file_that_cannot_be_read(put, new_catalog, monkeypatch):
    """One unreadable checkpoint does not hide the others."""
    put("keras")
    inspect = TfObject.inspect

    def refused(self, folder, name, **settings):
        if name == "ckpt-2":
            raise PermissionError(13, "Permission denied")
        return inspect(self, folder, name, **settings)

    monkeypatch.setattr(TfObject, "inspect", refused)
    scan = new_catalog().scan()
    assert names(scan) == ["ckpt-1", "ckpt-3"]
    ((name, reason),) = scan.waiting
    assert name == "ckpt-2"
    assert reason.startswith("cannot be read: Permission denied")


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
    """What cannot be listed is a storage error that names the path."""
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
    """Whoever starts now sees them all at once, and what is the last of a run must be the same for all."""
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


def test_a_broken_checkpoint_keeps_no_traceback_in_memory(put, new_catalog, root):
    """With its frames it held all that was read: 5,000 broken checkpoints took 86 MB, and take 14."""
    put("plain")
    for file in root.glob("*.data-*"):
        file.unlink()
    catalog = new_catalog()
    assert catalog.scan().waiting
    held = [each.verdict for known in catalog._directory._candidates.values() for each in known]
    assert held
    assert all(verdict.__traceback__ is None and verdict.__context__ is None for verdict in held)


@pytest.fixture
def archive(recorded, root, clock):
    """A `.keras` file that was written this second."""

    def put(content: bytes | None = None) -> Path:
        path = root / "m-5.keras"
        path.write_bytes((recorded.kinds / "keras" / "m-5.keras").read_bytes() if content is None else content)
        os.utime(path, (clock.wall(), clock.wall()))
        return path

    return put


def test_checksums_prove_that_an_archive_is_whole(archive, new_catalog):
    """Its writer adds them last, so nobody has to wait for the quiet time."""
    archive()
    assert [found.checkpoint.name for found in new_catalog(quiet_seconds=30).scan().found] == ["m-5.keras"]


def test_an_old_archive_is_not_read_whole(archive, new_catalog, clock, monkeypatch):
    """A first scan may find thousands; nor is a large one."""
    path = archive()
    monkeypatch.setattr(FORMATS["keras"], "check", None, raising=False)
    os.utime(path, (clock.wall() - 90, clock.wall() - 90))
    assert new_catalog(quiet_seconds=30).scan().found == ()
    archive()
    monkeypatch.setattr(file_group_reader, "_QUICKLY_CHECKED_BYTES", 100)
    assert new_catalog(quiet_seconds=30).scan().found == ()


def test_a_flipped_bit_in_a_new_archive_is_not_evaluated(archive, new_catalog, clock):
    """Neither Keras nor torch would notice it: the checkpoint waits for a repair, then it is corrupt."""
    path = archive()
    content = bytearray(path.read_bytes())
    content[content.index(b"HDF") + 3000] ^= 1
    path = archive(bytes(content))
    catalog = new_catalog(quiet_seconds=3, corrupt_after_seconds=60)
    for _ in range(7):
        scan = catalog.scan()
        assert (scan.found, scan.corrupt) == ((), ())
        assert "checksum" in dict(scan.waiting)["m-5.keras"]
        clock.seconds += 9
    (settlement,) = catalog.scan().corrupt
    assert "checksum" in settlement.reason
    archive()
    assert catalog.scan().found
