"""Read tables of zip archives that contradict their contents."""

import contextlib
import io
import time
import zipfile
from pathlib import Path

import pytest
from checkpoints.recorded import RECORDED

from sidecar.checkpoints.formats import FORMATS
from sidecar.checkpoints.formats.hdf5 import SIGNATURE
from sidecar.errors import CheckpointError, CorruptError, IncompleteError


def put(root: Path, name: str, content: bytes) -> None:
    if name == "m":
        (root / "m").mkdir(exist_ok=True)
        name = "m/saved_model.pb"
    (root / name).write_bytes(content)


def archive(**members: bytes) -> bytes:
    """A zip file with what Keras writes, and more."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        for name in ("metadata.json", "config.json"):
            file.writestr(name, "{}")
        for name, content in members.items():
            file.writestr(name.replace("_", "."), content, zipfile.ZIP_DEFLATED)
    return made.getvalue()


def test_a_zip_bomb_is_not_extracted(tmp_path):
    """A member that says it is a terabyte costs nothing to look at."""
    started = time.monotonic()
    put(tmp_path, "m.keras", archive(model_weights_h5=b"\0" * (64 << 20)))
    FORMATS["keras"].inspect(tmp_path, "m.keras")
    assert time.monotonic() - started < 3


def test_members_that_expand_too_far_together_are_refused(tmp_path):
    """With verify = "full" every byte of them is read: at most 100 times the file, and 256 MiB."""
    with zipfile.ZipFile(tmp_path / "m.keras", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        for name in ("metadata.json", "config.json", "model.weights.h5", "more"):
            with file.open(name, "w") as member:
                for _ in range(100):
                    member.write(b"\0" * (1 << 20))
    with pytest.raises(CorruptError, match="members expand to 419430400 bytes"):
        FORMATS["keras"].inspect(tmp_path, "m.keras")


def patched(content: bytes, signature: bytes, at: int, value: bytes) -> bytes:
    """The last record of a kind with other bytes in it."""
    position = content.rfind(signature) + at
    return content[:position] + value + content[position + len(value) :]


GOOD = archive(model_weights_h5=b"weights")


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (archive(), IncompleteError, "holds no model.weights.h5"),
        (patched(GOOD, b"PK\1\2", 8, b"\1\0"), CorruptError, "encrypted"),
        (patched(GOOD, b"PK\1\2", 10, b"\x0c\0"), CorruptError, "compressed in a way"),
        (patched(GOOD, b"PK\1\2", 42, b"\0\0\0\0"), CorruptError, r"at \d+ overlaps"),
        (patched(GOOD, b"PK\1\2", 42, b"\xff\xff\0\0"), CorruptError, r"at \d+ overlaps"),
        (patched(GOOD, b"PK\1\2", 16, b"\0\0\0\0"), CorruptError, "size or checksum"),
        (patched(GOOD, b"PK\1\2", 20, b"\0\0\1\0"), CorruptError, "size or checksum"),
        (patched(GOOD, b"PK\1\2", 20, b"\xff\xff\xff\xff"), CorruptError, "lacks the sizes"),
        (patched(GOOD, b"PK\1\2", 46, b"M"), CorruptError, "another name"),
        (patched(GOOD, b"PK\3\4", 0, b"XXXX"), CorruptError, "not where"),
        (patched(GOOD, b"PK\5\6", 4, b"\1"), CorruptError, "of several"),
        (patched(GOOD, b"PK\5\6", 8, b"\1\0\1\0"), CorruptError, "counts 1"),
        (patched(GOOD, b"PK\5\6", 8, b"\4\0\4\0"), CorruptError, "counts 4"),
        (patched(GOOD, b"PK\5\6", 8, b"\xff\xff\xff\xff"), CorruptError, "large file"),
        (patched(GOOD, b"PK\5\6", 16, b"\0\0\0\0"), CorruptError, "but should"),
        (GOOD + b"x", IncompleteError, "does not end with"),
    ],
)
def test_zip_tables_that_contradict(tmp_path, content, error, message):
    """Table, headers and file must agree."""
    put(tmp_path, "m.keras", content)
    with pytest.raises(error, match=message):
        FORMATS["keras"].inspect(tmp_path, "m.keras")


def large(field: int, value: int) -> bytes:
    """A real archive of PyTorch with another number in the large end record, which miniz always writes."""
    content = (RECORDED / "kinds" / "torch_training" / "m-5.pt").read_bytes()
    return patched(content, b"PK\6\6", field, value.to_bytes(8, "little"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (patched(large(24, 30), b"PK\6\6", 32, (30).to_bytes(8, "little")), "contradict each other"),
        (large(24, 30), "contradict each other"),
        (large(40, 1 << 40), "contradict each other"),
        (large(48, 0), "contradict each other"),
        (large(16, 1), "of several"),
        (patched(large(4, 44), b"PK\6\7", 8, b"\xff" * 8), "damaged"),
        (patched(large(4, 44), b"PK\6\7", 8, bytes(8)), "damaged"),
        (patched(large(4, 44), b"PK\6\6", 0, b"XXXX"), "damaged"),
        (patched(large(4, 44), b"PK\6\7", 0, b"XXXX"), "but should"),
        (patched(large(4, 44), b"PK\5\6", 10, b"\x1e\0"), "contradict each other"),
        (patched(large(4, 44), b"PK\5\6", 12, b"\0\0\0\0"), "contradict each other"),
    ],
)
def test_large_zip_tables_that_contradict(tmp_path, content, message):
    """The large end record counts if its locator is there, and must agree with the small one."""
    put(tmp_path, "m.pt", content)
    with pytest.raises(CorruptError, match=message):
        FORMATS["torch_zip"].inspect(tmp_path, "m.pt")


def test_large_and_streamed_archives(tmp_path):
    """Zip64 records, as for weights of 4 GB, sizes behind the data, and a comment are read as zipfile wrote them."""

    class Pipe(io.RawIOBase):
        def __init__(self, file):
            self.file = file

        def writable(self):
            return True

        def write(self, data):
            return self.file.write(data)

    for streamed in (False, True):
        with (tmp_path / "m.keras").open("wb") as raw, zipfile.ZipFile(Pipe(raw) if streamed else raw, "w") as file:
            file.comment = b"PK\5\6 is a signature"
            for name in ("metadata.json", "config.json", "model.weights.h5"):
                with file.open(zipfile.ZipInfo(name), "w", force_zip64=True) as member:
                    member.write(b"x" if name[0] == "c" else SIGNATURE.ljust(100, b"\0"))
        with contextlib.suppress(CorruptError, IncompleteError):
            FORMATS["keras"].inspect(tmp_path, "m.keras")
            pytest.fail("the weights inside are no HDF5 file")
        with pytest.raises(CheckpointError, match=r"model\.weights\.h5 in m\.keras"):
            FORMATS["keras"].inspect(tmp_path, "m.keras")
