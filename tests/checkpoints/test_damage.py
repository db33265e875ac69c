"""Cut off, damaged, hostile: what real writers wrote is whole or refused, and arbitrary bytes have an answer."""

import contextlib
import io
import json
import os
import shutil
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoints.conftest import only
from checkpoints.kinds import KINDS, NEVER_WHOLE, SECOND_WRITERS, TORCH_KINDS
from checkpoints.tables import index_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidecar.checkpoints.formats import FORMATS
from sidecar.checkpoints.formats.checkpoint_state import named_in
from sidecar.checkpoints.formats.hdf5 import SIGNATURE, SUPERBLOCK_BYTES
from sidecar.checkpoints.formats.sstable import read_table
from sidecar.checkpoints.work_budget import WorkBudget
from sidecar.errors import CheckpointError, CorruptError, IncompleteError, VanishedError

WHOLE_KINDS = [kind for kind in KINDS + TORCH_KINDS if kind not in NEVER_WHOLE]

FIRST_WRITERS = [
    pytest.param(kind, marks=pytest.mark.nightly if kind in SECOND_WRITERS else ()) for kind in WHOLE_KINDS
]

BLOCK = 4096

EDGE = 256  # longer than superblocks and outlines

NOT_REQUIRED = ("m-5/config.json", "m-5/generation_config.json")
"""Descriptions of a model that Hugging Face's libraries write, and training programs of their own do not."""

quietly = settings(deadline=5000, suppress_health_check=[HealthCheck.function_scoped_fixture])


def tables(path: Path) -> Iterator[range]:
    """Where headers, footers and tables lie; the ends of a file without any count as such."""
    size = path.stat().st_size
    if path.name.endswith((".index", ".json")):
        yield range(size)
    elif path.name.endswith(".safetensors"):
        yield range(8 + int.from_bytes(path.read_bytes()[:8], "little"))
    elif path.name.endswith((".bin", ".keras", ".pt", ".pth", ".pth.tar", ".ckpt")):
        with zipfile.ZipFile(path) as archive:
            yield range(archive.start_dir, size)
            for each in archive.infolist():
                yield range(each.header_offset, each.header_offset + 30 + len(each.filename) + SUPERBLOCK_BYTES)
    yield from (range(EDGE), range(size - EDGE, size))


def cuts(path: Path) -> list[int]:
    """Every 4 KiB, and every byte of headers, footers and tables, longest first."""
    size = len(path.read_bytes().rstrip(b"\n")) if path.name.endswith(".json") else path.stat().st_size
    chosen = {*range(0, size, BLOCK), *(length for part in tables(path) for length in part if 0 <= length < size)}
    return sorted(chosen, reverse=True)


@pytest.mark.seconds
@pytest.mark.parametrize("kind", FIRST_WRITERS)
@pytest.mark.drawn(7)
def test_no_truncation_is_complete(checkpoint, root, kind, tally):
    """Each file of each kind, cut at each 4 KiB and at each byte of its headers, footers and tables."""
    format_, name, files = checkpoint(kind)
    files = tuple(file for file in files if "/assets/" not in file)  # nothing tells how long these are
    tried = caught = 0
    for file in files:
        content = (root / file).read_bytes()
        for length in cuts(root / file):
            os.truncate(root / file, length)
            tried += 1
            with contextlib.suppress(CheckpointError):
                format_.inspect(root, name)
                continue
            caught += 1
        (root / file).write_bytes(content)
    tally.add("truncations, against the structure", tried, caught)
    print(f"{kind}: {tried} truncations of {len(files)} files, {caught} caught")
    assert tried == caught > 500
    format_.inspect(root, name)


@pytest.mark.parametrize("kind", WHOLE_KINDS)
def test_each_file_is_needed(checkpoint, root, kind):
    """A file that is missing means not complete, or gone if it is the one that makes the name."""
    format_, name, files = checkpoint(kind)
    for number, file in enumerate(files):
        if file in NOT_REQUIRED:
            continue
        (root / file).rename(root / "elsewhere")
        with pytest.raises(IncompleteError if number or kind == "trainer" else VanishedError):
            format_.inspect(root, name)
        (root / "elsewhere").rename(root / file)


@pytest.mark.parametrize("kind", WHOLE_KINDS)
def test_the_digest_is_of_content(checkpoint, root, tmp_path, kind):
    """Not of times, inodes or folders."""
    format_, name, _ = checkpoint(kind)
    digest = format_.inspect(root, name).digest
    shutil.copytree(root, tmp_path / "copy", copy_function=shutil.copy)
    assert format_.inspect(tmp_path / "copy", name).digest == digest


def test_one_value_in_a_large_file(written, tmp_path):
    """Samples of files above 16 MiB are read: 4 KiB of each MiB, so a layer that changed shows."""
    content = bytearray((written / "weights" / "m-5.weights.h5").read_bytes())
    length = 40 * 1024 * 1024
    content[40:48] = length.to_bytes(8, "little")  # the superblock's end of file
    path = tmp_path / "m.weights.h5"
    path.write_bytes(content)
    os.truncate(path, length)
    digests = {FORMATS["hdf5"].inspect(tmp_path, path.name).digest}
    for offset in (20 * 1024 * 1024, length - 1, 60_000):
        with path.open("r+b") as file:
            file.seek(offset)
            file.write(b"\1")
        digests.add(FORMATS["hdf5"].inspect(tmp_path, path.name).digest)
    assert len(digests) == 4


ODD_NAMES = [
    "with space-5",
    "line\nbreak-5",
    'quote"\\-5',
    "mod\u00e8le \u6a21\u578b-5",
    os.fsdecode(b"no\xfftext-5"),
    "x" * 220 + "-5",
    "a..-5",
    "%2e-5",
]


@pytest.mark.parametrize("odd", ODD_NAMES, ids=ascii)
@pytest.mark.parametrize("kind", WHOLE_KINDS)
@pytest.mark.drawn(40)
def test_odd_names(checkpoint, root, new_catalog, clock, pins, kind, odd):
    """A name is bytes: found, with the step that the files or the name hold, pinned, found in the pin."""
    from sidecar.retention.pins.pin import pin

    checkpoint(kind)
    for entry in list(root.iterdir()):
        if entry.name == "m-5.weights.json":
            map_of = json.loads(entry.read_text())
            map_of["weight_map"] = {"all": [f"{odd}_0000{number}.weights.h5" for number in range(5)]}
            entry.write_text(json.dumps(map_of))
        if entry.name == "m-5.safetensors.index.json":
            shards = sorted({*json.loads(entry.read_text())["weight_map"].values()})
            named = {str(number): shard.replace("m-5", odd) for number, shard in enumerate(shards)}
            entry.write_text(json.dumps({"weight_map": named}))
        if entry.name.startswith("m-5"):
            entry.rename(root / entry.name.replace("m-5", odd))
    (root / "checkpoint").unlink(missing_ok=True)
    catalog = new_catalog()
    catalog.scan()
    clock.seconds += 3
    found = {each.checkpoint.name.startswith(odd): each for each in catalog.scan().found}[True]
    assert found.checkpoint.step_source in ("optimizer", "variable") or found.checkpoint.step == (
        5 if odd != "%2e-5" else None
    )
    pinned = pin(found, pins)
    assert pinned.checkpoint.key in {each.checkpoint.key for each in new_catalog(quiet_seconds=0).scan().found}
    assert (pins / pinned.checkpoint.folder).is_dir()


@pytest.mark.parametrize("kind", WHOLE_KINDS)
def test_pins(checkpoint, root, new_catalog, pins, kind):
    """Linked or copied as the writer's habits ask, unchanged by what the trainer does then."""
    from sidecar.checkpoints.inspect import restore_path, verify
    from sidecar.retention.pins.pin import pin, unpin
    from sidecar.retention.pins.usage import pins_bytes

    format_, name, files = checkpoint(kind)
    (found,) = new_catalog(quiet_seconds=0).scan().found
    assert {file.name for file in found.files} == set(files)
    pinned = pin(found, pins)
    for file in files:
        assert (pinned.folder / file).samefile(root / file) == (not format_.written_in_place(file))
    assert pins_bytes(pins) == sum((root / file).stat().st_size for file in files)
    for file in files:
        if format_.written_in_place(file):
            (root / file).write_bytes(b"written again")
        (root / file).unlink()
    assert verify(pinned.folder, name, format_.name) == found.checkpoint.digest
    (again,) = new_catalog().scan().found
    assert again.checkpoint == pinned.checkpoint
    path = Path(restore_path(again, again.folder))
    assert path.exists() or Path(f"{path}.index").exists()
    unpin(again.checkpoint, pins)
    assert list(pins.iterdir()) == []


@pytest.mark.parametrize("kind", WHOLE_KINDS)
def test_links_out_of_the_directory(checkpoint, root, tmp_path, new_catalog, clock, kind):
    """Whichever file it is, nothing outside is read; the checkpoint is not found, and is no corrupt one."""
    format_, name, files = checkpoint(kind)
    for file in files:
        (root / file).rename(tmp_path / "outside")
        (root / file).symlink_to(tmp_path / "outside")
        with pytest.raises(CorruptError, match="leads out of"):
            format_.inspect(root, name)
        catalog = new_catalog()
        catalog.scan()
        clock.seconds += 100
        scan = catalog.scan()
        assert (scan.found, scan.corrupt) == ((), ())
        assert (name, f"{file} is a link out of the directory") in scan.waiting
        (root / file).unlink()
        (tmp_path / "outside").rename(root / file)


@pytest.mark.parametrize("name", ["m.keras", "m.weights.h5", "m.h5", "m.weights.json", "m.pt"])
def test_what_is_no_file(root, new_catalog, name):
    """A folder, a FIFO, a link to nothing, to itself or to a device, named like a checkpoint."""
    for make in (
        lambda path: path.mkdir(),
        os.mkfifo,
        lambda path: path.symlink_to("nowhere"),
        lambda path: path.symlink_to(path.name),
        lambda path: path.symlink_to("/dev/zero"),
    ):
        path = root / name
        make(path)
        assert new_catalog(quiet_seconds=0).scan().found == ()
        for format_ in FORMATS.values():
            with pytest.raises((CheckpointError, OSError)):
                format_.inspect(root, name)
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


STATE_WORDS = (
    b"model_checkpoint_path:",
    b"all_",
    b'"',
    b"'",
    b"\\",
    b"\\x",
    b"\\8",
    b"\n",
    b"m-5",
    b"../",
    b"/",
    b"\0",
    b"{",
)

NAMED = [
    ("keras", "m.keras"),
    ("hdf5", "m.weights.h5"),
    ("keras_shards", "m.weights.json"),
    ("saved_model", "m"),
    ("torch_zip", "m.pt"),
]


def put(root: Path, name: str, content: bytes) -> None:
    if name == "m":
        (root / "m").mkdir(exist_ok=True)
        name = "m/saved_model.pb"
    (root / name).write_bytes(content)


def answers(root: Path, format_name: str, name: str) -> None:
    """Inspecting and checking end soon, with an answer or a CheckpointError."""
    started = time.monotonic()
    for scan in (FORMATS[format_name].inspect, FORMATS[format_name].check):
        with contextlib.suppress(CheckpointError):
            scan(root, name)
    assert time.monotonic() - started < 3


@pytest.mark.parametrize(("format_name", "name"), NAMED)
@quietly
@given(
    st.one_of(
        st.binary(max_size=400),
        st.binary(max_size=200).map(lambda data: SIGNATURE + data),
        st.binary(max_size=200).map(lambda data: b"PK\5\6" + data),
        st.binary(max_size=22).map(lambda data: b"PK\1\2" * 3 + b"PK\5\6" + data),
        st.binary(max_size=200).map(lambda data: b"\x08\x01\x12" + data),
        st.binary(max_size=99).map(lambda data: bytes([0x12, len(data)]) + data),
        st.binary(max_size=99).map(lambda data: bytes([0x12, len(data) + 2, 0x32, len(data)]) + data),
        st.recursive(
            st.none() | st.integers() | st.text(), lambda each: st.lists(each) | st.dictionaries(st.text(), each)
        ).map(lambda value: json.dumps({"metadata": {"total_size": 1}, "weight_map": value}).encode()),
    )
)
def test_arbitrary_bytes_have_an_answer(tmp_path, format_name, name, data):
    """Answer for any bytes."""
    put(tmp_path, name, data)
    answers(tmp_path, format_name, name)


LENGTHS = (b"\xff" * 8, b"\xff" * 9 + b"\x01", bytes(8), (1 << 62).to_bytes(8, "little"), b"\xfe\xff\xff\xff", b"\0")


@pytest.mark.seconds
@pytest.mark.parametrize("kind", FIRST_WRITERS)
@quietly
@given(st.data())
@pytest.mark.drawn(7)
def test_real_bytes_damaged_have_an_answer(written, tmp_path_factory, kind, data):
    """Some bytes of a real file are others, as lengths would be: at its ends, where tables are, or anywhere."""
    root = tmp_path_factory.getbasetemp() / f"damaged-{kind}"
    if not root.exists():
        shutil.copytree(written / kind, root)
    format_, candidate = only(written / kind)
    file = data.draw(st.sampled_from(format_.inspect(written / kind, candidate.name).files))
    content = bytearray((written / kind / file).read_bytes())
    places = st.integers(0, 300) | st.integers(0, 300).map(lambda place: len(content) - place)
    places |= st.integers(0, len(content))
    for at, new in data.draw(st.lists(st.tuples(places, st.sampled_from(LENGTHS) | st.binary(max_size=9)), max_size=4)):
        content[max(0, at) : max(0, at) + data.draw(st.sampled_from((0, len(new))))] = new
    (root / file).write_bytes(content)
    try:
        answers(root, format_.name, candidate.name)
    finally:
        shutil.copyfile(written / kind / file, root / file)


@pytest.mark.parametrize("kind", ["tf_object", "tf_object_sharded"])
@quietly
@given(st.data())
def test_entries_damaged_behind_right_checksums_have_an_answer(written, tmp_path_factory, kind, data):
    """The index of a real checkpoint, whose entries say something else, sealed again."""
    root = tmp_path_factory.getbasetemp() / f"resealed-{kind}"
    if not root.exists():
        shutil.copytree(written / kind, root)
    entries = list(read_table((written / kind / "m-5.index").read_bytes(), WorkBudget()))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(entries) - 1))
        key, value = entries[at][0], bytearray(entries[at][1])
        place = data.draw(st.integers(0, len(value)))
        new = data.draw(st.sampled_from(LENGTHS) | st.binary(max_size=4))
        value[place : place + data.draw(st.sampled_from((0, 1, len(new))))] = new
        entries[at] = key, bytes(value)
    (root / "m-5.index").write_bytes(index_of(entries))
    answers(root, "tf_object", "m-5")


@quietly
@given(st.binary(max_size=300) | st.lists(st.sampled_from(STATE_WORDS)).map(b"".join))
def test_arbitrary_state_files_have_an_answer(tmp_path, data):
    """The text file `checkpoint`, of which nothing is known but its name."""
    (tmp_path / "checkpoint").write_bytes(data)
    assert named_in(tmp_path, {"m-5"}) <= {"m-5"}


def archive(**members: bytes) -> bytes:
    """A zip file with what Keras writes, and more."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        for name in ("metadata.json", "config.json"):
            file.writestr(name, "{}")
        for name, content in members.items():
            file.writestr(name.replace("_", "."), content, zipfile.ZIP_DEFLATED)
    return made.getvalue()
