"""Read, settle and give up the checkpoints of one group of files."""

import gc
import os
import shutil
from pathlib import Path

import pytest

from sidecar.checkpoints import file_group_reader, files
from sidecar.checkpoints.discovery_rules import DiscoveryRules
from sidecar.checkpoints.formats import FORMATS
from sidecar.checkpoints.formats.hdf5 import SIGNATURE
from sidecar.checkpoints.inspect import inspect_one, verify
from sidecar.errors import SidecarError
from sidecar.retention.pins.pin import pin


def test_settings_come_first(optimizers):
    """`step_key`, then `step_pattern`, then what the file holds, then the name."""
    path = optimizers / "keras_adam"
    assert inspect_one(path).step_source == "optimizer"
    key = "optimizer/_iterations"
    found = inspect_one(path, rules=DiscoveryRules(step_key=key, step_pattern="(2)"))
    assert (found.step, found.step_source) == (8, "step_key")
    shutil.copy(optimizers / "keras_adam.keras", optimizers.parent / "epoch_2.keras")
    found = inspect_one(optimizers.parent / "epoch_2.keras", rules=DiscoveryRules(step_pattern=r"epoch_(\d+)$"))
    assert (found.step, found.step_source) == (2, "step_pattern")
    found = inspect_one(optimizers.parent / "epoch_2.keras", rules=DiscoveryRules(step_pattern=r"other_(\d+)$"))
    assert (found.step, found.step_source) == (8, "optimizer")


def test_nodes_that_saw_other_names_agree_about_a_pin(put, root, pins, new_catalog):
    """The one that made the pin says it for all: what training deleted before they looked they cannot compare."""
    put("step", "none-1*")
    for entry in list(root.glob("none-1*")):
        for name in ("m-12-75", "m-13-71"):
            shutil.copy(entry, root / entry.name.replace("none-1", name))
        entry.unlink()
    first = new_catalog(quiet_seconds=0)
    by_name = {each.checkpoint.name: each for each in first.scan().found}
    assert by_name["m-13-71"].checkpoint.step == 13
    pin(by_name["m-13-71"], pins)
    for entry in root.glob("m-*"):
        entry.unlink()
    for catalog in (first, new_catalog(quiet_seconds=0)):
        (found,) = catalog.scan().found
        assert (found.checkpoint.step, found.checkpoint.step_source) == (13, "name")
        assert found.checkpoint.pin


def test_a_step_stays_what_it_was(put, root, new_catalog):
    """A checkpoint keeps the step that it was found with: the journal may hold it by now."""
    put("step", "none-1*")
    for entry in list(root.glob("none-1*")):
        entry.rename(root / entry.name.replace("none-1", "m-12-75"))
    catalog = new_catalog(quiet_seconds=0)
    assert [each.checkpoint.step for each in catalog.scan().found] == [None]
    for entry in list(root.glob("m-12*")):
        shutil.copy(entry, root / entry.name.replace("12-75", "13-71"))
    os.utime(root / "m-12-75.index")
    assert {each.checkpoint.name: each.checkpoint.step for each in catalog.scan().found} == {
        "m-12-75": None,
        "m-13-71": 13,
    }


def test_without_steps_the_order_is_that_of_writing(put, root, new_catalog):
    """Not that of the alphabet; and steps of two kinds say nothing of one another."""
    put("step", "none-1*")
    for seconds, name in enumerate(("zebra", "best", "ckpt-7")):
        for entry in list(root.glob("none-1*")):
            copy = root / entry.name.replace("none-1", name)
            shutil.copy(entry, copy)
            os.utime(copy, (1_700_000_000 + seconds, 1_700_000_000 + seconds))
    for entry in list(root.glob("none-1*")):
        entry.unlink()
    names = [each.checkpoint.name for each in new_catalog(quiet_seconds=0).scan().found]
    assert names == ["zebra", "best", "ckpt-7"]


def names(scan) -> list[str]:
    return [found.checkpoint.name for found in scan.found]


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
    """A corrupt checkpoint that was given up is found once its files are written again."""
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
    """Return what counts as one: a first superblock of version 0 that tells its length, and something behind it."""
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
    assert names(catalog.scan(set(), sweep=False)) == ["m-5.h5"]


@pytest.mark.usefixtures("coarse")
def test_content_that_was_rewritten_within_a_tick_is_not_what_was_read_before(root, new_catalog, clock):
    """Content that is rewritten within one tick of the file times is read again, so its digest is the right one."""
    path, at = root / "m-5.h5", clock.wall()
    frozen(path, hdf5_file(b"1" * 100), at)
    catalog = new_catalog(quiet_seconds=3.0)
    catalog.scan()
    frozen(path, hdf5_file(b"2" * 100), at)
    clock.seconds += 3
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


def test_whatever_a_file_makes_of_its_parser_ends_no_daemon(put, new_catalog, before_inspection, clock):
    """It is one file that cannot be used."""
    put("keras")

    def fails(_, name):
        if name == "ckpt-2":
            raise ZeroDivisionError("what nobody thought of")

    before_inspection(fails)
    catalog = new_catalog()
    scan = catalog.scan()
    assert names(scan) == ["ckpt-1", "ckpt-3"]
    assert "please report it: ZeroDivisionError" in str(scan.waiting)
    clock.seconds += 70
    assert [each.name for each in catalog.scan().corrupt] == ["ckpt-2"]


def test_being_deleted_is_not_corrupt(put, new_catalog, clock):
    """The state file may name what is gone, or half gone: the index goes first."""
    root = put("keras")
    (root / "ckpt-1.index").unlink()
    catalog = new_catalog()
    assert told(catalog, clock) == ()
    assert catalog.scan().waiting == ()
    assert names(catalog.scan()) == ["ckpt-2", "ckpt-3"]


def test_deleted_between_listing_and_reading(put, new_catalog, before_inspection):
    """The trainer may delete at any moment; the scan goes on."""
    root = put("keras")

    def late(_, name):
        if name == "ckpt-2":
            (root / "ckpt-2.index").unlink(missing_ok=True)

    before_inspection(late)
    scan = new_catalog().scan()
    assert (names(scan), scan.waiting) == (["ckpt-1", "ckpt-3"], ())


def test_a_file_that_cannot_be_read(put, new_catalog, before_inspection):
    """One unreadable checkpoint does not hide the others."""
    put("keras")

    def refused(_, name):
        if name == "ckpt-2":
            raise PermissionError(13, "Permission denied")

    before_inspection(refused)
    scan = new_catalog().scan()
    assert names(scan) == ["ckpt-1", "ckpt-3"]
    ((name, reason),) = scan.waiting
    assert name == "ckpt-2"
    assert reason.startswith("cannot be read: Permission denied")


def test_a_broken_checkpoint_keeps_no_traceback_in_memory(put, new_catalog, root):
    """With its frames it held all that was read: 5,000 broken checkpoints took 86 MB, and take 14."""
    put("plain")
    for file in root.glob("*.data-*"):
        file.unlink()
    catalog = new_catalog()
    assert catalog.scan().waiting
    gc.collect()
    held = [each for each in gc.get_objects() if issubclass(type(each), SidecarError)]
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
