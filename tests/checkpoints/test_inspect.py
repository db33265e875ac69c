"""Full verification: what real writers wrote passes, and no flipped bit in a checksummed range does."""

import os
import random
import shutil
import zipfile
from pathlib import Path

import pytest
from checkpoints.kinds import KINDS, NEVER_WHOLE, SECOND_WRITERS
from fakes import AllAlike

from sidecar.checkpoints.files import list_files
from sidecar.checkpoints.formats import FORMATS
from sidecar.checkpoints.inspect import check
from sidecar.checkpoints.watched_catalog import WatchedCatalog
from sidecar.errors import ChecksumError, CorruptError
from sidecar.retention.pins.background import BackgroundPinner
from sidecar.retention.pins.pin import pin
from sidecar.retention.pins.reconciler import PinReconciler
from sidecar.retention.saves.cleanup import ArtifactCleanup
from sidecar.settings.model import Settings

WHOLE_KINDS = [kind for kind in KINDS if kind not in NEVER_WHOLE]

WITH_CHECKSUMS = [kind for kind in WHOLE_KINDS if kind.startswith(("keras", "saved_model", "export", "tf_object"))]


@pytest.mark.parametrize("kind", WHOLE_KINDS)
def test_what_was_written_passes(written, kind):
    """Every kind of every writer."""
    for format_ in FORMATS.values():
        for candidate in format_.candidates(written / kind, list_files(written / kind)):
            format_.check(written / kind, candidate.name)


@pytest.mark.parametrize("kind", ["keras", "plain", "sharded", "step", "wide", "odd_name", "keras2"])
def test_object_checkpoints_pass(recorded, kind):
    """Several shards, thousands of tensors, strings, integers."""
    for name in recorded.wrote[kind]:
        check(recorded.objects / kind / name, "tf_object")


def checksummed(root: Path, files: tuple[str, ...]) -> dict[str, list[range]]:
    """Which bytes of which file a checksum covers."""
    found = {}
    for file in files:
        size = (root / file).stat().st_size
        if file.endswith(".keras"):
            with zipfile.ZipFile(root / file) as archive:
                starts = [(each.header_offset + 30 + len(each.filename), each.file_size) for each in archive.infolist()]
            found[file] = [range(start, start + length) for start, length in starts]
        elif ".data-" in file or file.endswith(".index"):
            found[file] = [range(size)]
    return found


@pytest.mark.seconds
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.nightly if kind in SECOND_WRITERS else ()) for kind in WITH_CHECKSUMS]
)
@pytest.mark.drawn(2)
def test_every_flip_is_found(written, root, kind, tally):
    """A bit of each byte at the edges of each range, and of 300 bytes between all edges: none goes unnoticed."""
    shutil.copytree(written / kind, root, dirs_exist_ok=True)
    ((format_, name),) = [
        (each, one.name) for each in FORMATS.values() for one in each.candidates(root, list_files(root))
    ]
    tried, chance = 0, random.Random(kind)
    files = checksummed(root, format_.inspect(root, name).files)
    between = 300 // sum(map(len, files.values()))
    for file, ranges in files.items():
        whole = (root / file).read_bytes()
        for covered in ranges:
            inner = covered[128:-128]
            positions = {*covered[:128], *covered[-128:], *chance.sample(inner, min(between, len(inner)))}
            for position in sorted(positions):
                with (root / file).open("r+b") as damaged:
                    damaged.seek(position)
                    damaged.write(bytes([whole[position] ^ 1 << chance.randrange(8)]))
                with pytest.raises(CorruptError):
                    format_.check(root, name)
                with (root / file).open("r+b") as damaged:
                    damaged.seek(position)
                    damaged.write(whole[position : position + 1])
                tried += 1
    format_.check(root, name)
    tally.add("flipped bits, against the checksums", tried, tried)
    print(f"{kind}: {tried} flipped bits in checksummed ranges, {tried} caught")
    assert tried > 500


def test_the_message_names_the_tensor(written, root):
    """File, tensor, expected, found."""
    shutil.copytree(written / "tf_object", root, dirs_exist_ok=True)
    with (root / "m-5.data-00000-of-00001").open("r+b") as file:
        file.seek(file.seek(0, os.SEEK_END) // 2)
        file.write(b"\xff\xff\xff\xff\xff")
    expected = (
        r"m-5\.data-00000-of-00001: .*\b(model|optimizer)/\S+ \(\d+ bytes .*\d+\) "
        r".*\b[0-9a-f]{8}\b.*\b[0-9a-f]{8}\b"
    )
    with pytest.raises(ChecksumError, match=expected):
        check(root / "m-5", "tf_object")


def test_the_message_names_the_slice(written, root):
    """Where a tensor is divided among shards, its key is a code."""
    shutil.copytree(written / "tf_object_sharded", root, dirs_exist_ok=True)
    for file in root.glob("m-5.data-*"):
        flip(file)
    with pytest.raises(ChecksumError, match=r"m-5\.data-0000\d-of-0000\d: .*\w\S+VALUE .*\bslice\b.*\d+ bytes"):
        check(root / "m-5", "tf_object")


@pytest.fixture
def keeper(new_catalog, pins, clock):
    """As the daemon makes it with `verify = "full"`."""

    def make(level: str) -> PinReconciler:
        def held(found, folder, *, copies, owner):
            return pin(found, folder, copies=copies, owner=owner, check=level == "full")

        run = pins.parent
        return PinReconciler(
            root=run,
            checkpoints=WatchedCatalog(new_catalog(quiet_seconds=0), None, clock),
            pinner=BackgroundPinner(pins=pins, owner="n1", patience_seconds=60, make=held),
            saves=ArtifactCleanup(run),
            clock=clock,
        )

    return make


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    stat = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.mark.parametrize(
    ("kind", "file"),
    [
        ("tf_object", "m-5.data-00000-of-00001"),
        ("keras", "m-5.keras"),
        ("export", "m-5/variables/variables.data-00000-of-00001"),
    ],
)
def test_damaged_checkpoints_end_as_corrupt(written, root, pins, keeper, kind, file):
    """Structure alone lets them pass; full verification gives them up before they are held, and reads them once."""
    shutil.copytree(written / kind, root, dirs_exist_ok=True)
    flip(root / file)
    full = keeper("full")
    for _ in range(2):
        sight = full.scan(AllAlike(wanted=True), leaving=False)
        ((name, verdict, reason),) = [(each.name, each.verdict, each.reason) for each in sight.given_up]
        assert name.startswith("m-5")
        assert verdict == "corrupt"
        assert "has the checksum" in reason
        assert sight.scan.found == ()
        assert list(pins.iterdir()) == []
    flip(root / file)  # it was copied again, and is whole now
    os.utime(root / file)
    sight = full.scan(AllAlike(wanted=True), leaving=False)
    assert [found.checkpoint.pin is not None for found in sight.scan.found] == [True]
    assert sight.given_up == ()


def test_structure_alone_does_not_read_tensors(written, root, keeper):
    """The default: such damage is found when TensorFlow restores."""
    shutil.copytree(written / "tf_object", root, dirs_exist_ok=True)
    flip(root / "m-5.data-00000-of-00001")
    sight = keeper("structure").scan(AllAlike(wanted=True), leaving=False)
    assert [found.checkpoint.pin is not None for found in sight.scan.found] == [True]


def test_the_setting(tmp_path):
    """Structure unless told otherwise."""
    assert Settings(checkpoint_dir=tmp_path).verify == "structure"
    assert Settings(checkpoint_dir=tmp_path, verify="full").verify == "full"
