"""One checkpoint may take so much work, a brief budget ends earlier, and other checkpoints never wait for one file."""

import json
import os
import struct
import threading
from collections import deque

import pytest
from checkpoints.hostile import safetensors, torch_archive

from sidecar.checkpoints import work_budget as module
from sidecar.checkpoints.formats import FORMATS
from sidecar.checkpoints.formats.tf_tensors import STRING, VARIANT, Entry, check_tensors
from sidecar.checkpoints.formats.torch_zip import check_archive, check_archives
from sidecar.checkpoints.work_budget import (
    BRIEF_UNITS,
    MOST_FULL_UNITS,
    MOST_UNITS,
    OPENED_FILE,
    TakesLongerError,
    TooMuchWorkError,
    WorkBudget,
)
from sidecar.errors import CorruptError
from sidecar.system.bounded_calls import BoundedCalls


def header(tensors: int) -> bytes:
    """The header of a file with so many tensors of one byte."""
    return json.dumps({f"w{n}": {"data_offsets": [n, n + 1]} for n in range(tensors)}).encode()


def test_a_brief_budget_ends_early():
    """The rest is for another turn."""
    work = WorkBudget(is_brief=True)
    work.add(BRIEF_UNITS)
    with pytest.raises(TakesLongerError):
        work.add(BRIEF_UNITS)


def test_the_whole_budget_ends_with_the_limit_and_a_remedy():
    """The pieces do not matter."""
    work = WorkBudget()
    with pytest.raises(CorruptError, match=rf"{MOST_UNITS}.*fewer files"):
        deque((work.add(1000) for _ in range(MOST_UNITS)), maxlen=0)


def test_work_beside_others_rests():
    """Once for each hundredth of a second."""
    rests = []
    work = WorkBudget(rest=lambda: rests.append(work.units))
    for _ in range(100_000):
        work.add(1)
    assert len(rests) == 10


@pytest.mark.parametrize("shards", [3, 60])
def test_shards_that_are_one_file_share_one_budget(tmp_path, monkeypatch, shards):
    """Hard links make a large header into many, each of which is within the bounds of a file."""
    monkeypatch.setattr(module, "MOST_UNITS", 50_000)
    name = "m-{:05d}-of-00060.safetensors"
    safetensors(tmp_path, header(1_000), "", 1_000, name.format(0))
    for number in range(1, shards):
        os.link(tmp_path / name.format(0), tmp_path / name.format(number))
    places = {f"w{number}": name.format(number) for number in range(shards)}
    (tmp_path / "m.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    inspect = FORMATS["safetensors"].inspect
    if shards == 3:
        assert len(inspect(tmp_path, "m.safetensors.index.json").files) == 4
    else:
        with pytest.raises(CorruptError, match="50000"):
            inspect(tmp_path, "m.safetensors.index.json")


def test_an_index_of_100_000_shards_is_read(tmp_path):
    """The names of shards have five digits, and each of them counts."""
    shards = [f"m-{number:05d}-of-99999.safetensors" for number in range(1, 400)]
    for shard in shards:
        (tmp_path / shard).write_bytes(struct.pack("<Q", 2) + b"{}")
    work = WorkBudget()
    index = json.dumps({"weight_map": {shard: shard for shard in shards}})
    (tmp_path / "m.safetensors.index.json").write_text(index)
    FORMATS["safetensors"].inspect(tmp_path, "m.safetensors.index.json", work=work)
    assert work.units / len(shards) * 100_000 < MOST_UNITS / 2


EMPTY_ARCHIVE = (
    struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 0, 0, 0, 0)
    + struct.pack("<4sLQL", b"PK\6\7", 0, 0, 1)
    + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0, 0, 0, 0, 0)
)


def check_pieces(folder, dtype, piece, count, work):
    """Compare a tensor of so many pieces with its checksum."""
    (folder / "m").write_bytes(piece * count)
    entry = Entry(dtype, (count,), sliced=False, shard=0, offset=0, size=len(piece) * count, crc=0)
    check_tensors(folder, ["m"], [(b"w", entry)], work)


def check_row(folder, _, piece, count, work):
    """Compare so many archives in a row."""
    (folder / "m").write_bytes(piece * count)
    check_archives(folder, "m", work)


@pytest.mark.parametrize(
    ("check", "dtype", "piece"),
    [(check_pieces, VARIANT, bytes(5)), (check_pieces, STRING, b"\x80\x01"), (check_row, None, EMPTY_ARCHIVE)],
    ids=["variants", "strings", "archives"],
)
def test_comparing_checksums_has_a_budget_of_pieces(tmp_path, check, dtype, piece):
    """A file of very short pieces takes far longer than its bytes do."""
    work = WorkBudget(is_full=True, units=MOST_FULL_UNITS - 20_000)
    with pytest.raises(TooMuchWorkError, match=rf"checksums.* {MOST_FULL_UNITS} steps"):
        check(tmp_path, dtype, piece, 31_000, work)


def test_bytes_in_a_hole_are_not_compared(tmp_path):
    """A shard may state more bytes than all disks hold, and would be read for days."""
    (tmp_path / "m").touch()
    os.truncate(tmp_path / "m", size := 6 << 40)
    entry = Entry(1, (size // 4,), sliced=False, shard=0, offset=0, size=size, crc=0)
    with pytest.raises(TooMuchWorkError, match="verify"):
        check_tensors(tmp_path, ["m"], [(b"w", entry)], WorkBudget(is_full=True))


def test_a_file_of_many_names_is_compared_once(tmp_path):
    """Each further hard link only costs that it is opened."""
    torch_archive(tmp_path, {"data.pkl": b"\x80\x02}.", "data/0": b"x", "data/1": b"y"}, "whole", "a.bin")
    os.link(tmp_path / "a.bin", tmp_path / "b.bin")
    work = WorkBudget(is_full=True)
    check_archive(tmp_path, "a.bin", work)
    before = work.units
    check_archive(tmp_path, "b.bin", work)
    assert work.units == before + OPENED_FILE
    assert before > 2 * OPENED_FILE


@pytest.fixture
def long(root, monkeypatch):
    """Ten checkpoints whose headers take longer than a brief budget, and a good one that comes after them."""
    monkeypatch.setattr(module, "BRIEF_UNITS", 10_000)
    safetensors(root, header(9_000), "", 9_000, "a0.safetensors")
    for number in range(1, 10):
        os.link(root / "a0.safetensors", root / f"a{number}.safetensors")
    safetensors(root, header(1), "", 1, "good.safetensors")


@pytest.mark.usefixtures("long")
def test_what_takes_long_is_read_after_the_others(new_catalog):
    """Where nothing else waits, all are found in one scan."""
    found = new_catalog(quiet_seconds=0).scan().found
    assert len(found) == 11


@pytest.mark.usefixtures("long")
def test_nothing_waits_for_files_that_take_long(new_catalog, clock):
    """The good one is found in the first scan, the others one at a time, each named with the reason until then."""
    gate, begun, reading = threading.Event(), threading.Event(), []

    def rest() -> None:
        reading.append(threading.get_ident())
        begun.set()
        assert gate.wait(60)

    longer = BoundedCalls(patience_seconds=0.01, most_hanging=1)
    catalog = new_catalog(quiet_seconds=0, longer=longer, rest=rest)
    for _ in range(3):
        scan = catalog.scan()
        assert [found.checkpoint.name for found in scan.found] == ["good.safetensors"]
        assert {name for name, why in scan.waiting if "takes long" in why} == {f"a{n}.safetensors" for n in range(10)}
    assert begun.wait(60)
    assert len(longer.hanging) == len(set(reading)) == 1
    gate.set()
    for _ in range(2000):
        clock.seconds += 2
        if len(found := catalog.scan().found) == 11:
            break
        threading.Event().wait(0.01)
    assert len(found) == 11
    assert not catalog.scan().waiting


def test_a_folder_of_more_entries_than_any_checkpoint_is_named(root, new_catalog, monkeypatch):
    """And the others go on."""
    monkeypatch.setattr("sidecar.checkpoints.formats.dcp.MOST_ENTRIES", 10)
    (root / "many").mkdir()
    for number in range(12):
        (root / "many" / f"__{number}_0.distcp").touch()
    (root / "many" / ".metadata").touch()
    safetensors(root, header(1), "", 1, "good.safetensors")
    scan = new_catalog(quiet_seconds=0).scan()
    assert [found.checkpoint.name for found in scan.found] == ["good.safetensors"]
    assert dict(scan.waiting)["many"].endswith("holds more than 10 entries, which no checkpoint does")
