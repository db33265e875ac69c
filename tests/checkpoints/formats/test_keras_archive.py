"""Compare the members of a Keras archive with their checksums."""

import io
import shutil
import time
import zipfile

import pytest

from sidecar.checkpoints.inspect import check
from sidecar.errors import CheckpointError, ChecksumError


def test_the_message_names_the_member(written, root):
    """Archive, member, expected, found."""
    shutil.copytree(written / "keras", root, dirs_exist_ok=True)
    with (root / "m-5.keras").open("r+b") as file:
        file.seek(50_000)
        file.write(b"\xff\xff\xff\xff\xff")
    expected = (
        r"m-5\.keras: .*\bmodel\.weights\.h5 \(\d+ bytes .*\d+\) "
        r".*\b[0-9a-f]{8}\b.*\b[0-9a-f]{8}\b"
    )
    with pytest.raises(ChecksumError, match=expected):
        check(root / "m-5.keras", "keras")


@pytest.fixture(scope="module")
def bomb():
    """An archive of 100 MiB of zeros."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in ("metadata.json", "config.json"):
            archive.writestr(name, "{}")
        archive.writestr("model.weights.h5", b"\0" * (100 << 20))
    return content.getvalue()


@pytest.mark.parametrize("size", [0, 1 << 20, 1 << 28])
def test_a_member_that_expands_to_more_or_less_than_it_says(bomb, tmp_path, size):
    """A bomb is left after as many bytes as it declares, in bounded memory and time."""
    path = tmp_path / "m.keras"
    content = bytearray(bomb)
    for signature, at in ((b"PK\1\2", 24), (b"PK\3\4", 22)):
        position = content.rfind(signature)
        content[position + at : position + at + 4] = size.to_bytes(4, "little")
    path.write_bytes(content)
    started = time.monotonic()
    with pytest.raises(CheckpointError, match=rf"model\.weights\.h5 .*\d+ bytes.*\b{size}\b"):
        check(path, "keras")
    assert time.monotonic() - started < 10
