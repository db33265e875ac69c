"""Files of safetensors that the real library wrote, single and in shards: whole, damaged, refused."""

import json
import os
import shutil

import pytest

from sidecar.checkpoints.discovery_rules import DiscoveryRules
from sidecar.checkpoints.formats import FORMATS
from sidecar.checkpoints.inspect import inspect_one
from sidecar.errors import CheckpointError, CorruptError, IncompleteError

SAFETENSORS = FORMATS["safetensors"]

INDEX = "m-5.safetensors.index.json"


def file_of(header: object, values: bytes = b"") -> bytes:
    """A file with a header of one's own."""
    content = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(content).to_bytes(8, "little") + content + values


def tensor(*offsets: int) -> dict[str, object]:
    """Return what a header says of a tensor of bytes."""
    return {"dtype": "U8", "shape": [offsets[-1] - offsets[0]], "data_offsets": list(offsets)}


@pytest.mark.parametrize(
    ("kind", "source", "key", "step"),
    [
        ("safetensors", "variable", None, 5),
        ("safetensors", "step_key", "global_step", 5),
        ("safetensors_shards", "name", None, 5),
    ],
)
def test_the_step(written, kind, source, key, step):
    """From the metadata in the header if it has one, else from the name."""
    name = INDEX if "shards" in kind else "m-5.safetensors"
    found = inspect_one(written / kind / name, rules=DiscoveryRules(step_key=key))
    assert (found.format, found.step, found.step_source) == ("safetensors", step, source)


@pytest.mark.parametrize("value", ["", "-3", "3.5", "five", "٣", "9" * 30])
def test_metadata_that_is_no_step(tmp_path, value):
    """Metadata are texts: only whole numbers that fit are steps."""
    (tmp_path / "m.safetensors").write_bytes(file_of({"__metadata__": {"step": value}, "a": tensor(0, 2)}, b"ab"))
    assert SAFETENSORS.inspect(tmp_path, "m.safetensors").step is None


@pytest.mark.parametrize("kind", ["safetensors", "safetensors_shards"])
def test_flipped_bits(written, tmp_path, kind, tally):
    """The format has no checksums; a flip that is not refused changes the digest."""
    shutil.copytree(written / kind, tmp_path, dirs_exist_ok=True)
    name = INDEX if "shards" in kind else "m-5.safetensors"
    digest, files = SAFETENSORS.inspect(tmp_path, name).digest, SAFETENSORS.inspect(tmp_path, name).files
    tried = caught = 0
    for file in files:
        content = (tmp_path / file).read_bytes()
        for bit in range(0, 8 * len(content), 8 * len(content) // 400 | 1):
            damaged = bytearray(content)
            damaged[bit // 8] ^= 1 << bit % 8
            (tmp_path / file).write_bytes(damaged)
            tried += 1
            try:
                caught += SAFETENSORS.inspect(tmp_path, name).digest != digest
            except CheckpointError:
                caught += 1
        (tmp_path / file).write_bytes(content)
    tally.add("bits flipped in files of safetensors", tried, caught)
    if kind == "safetensors":
        assert caught == tried
    else:
        assert caught > tried * 2 / 3, "the index counts by the shards that it names"


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", IncompleteError),
        (b"\1\0\0\0\0\0\0", IncompleteError),
        (bytes(8), CorruptError),
        (b"\xff" * 8, CorruptError),
        (file_of(b"{}  "), None),
        (file_of(b"  {}"), None),
        (file_of({}, b"x"), CorruptError),
        (file_of([]), CorruptError),
        (file_of(b"{} {}"), CorruptError),
        (file_of({"a": tensor(0, 2), "b": tensor(2, 5)}, b"abcde"), None),
        (file_of({"b": tensor(2, 5), "a": tensor(0, 2), "nothing": tensor(2, 2)}, b"abcde"), None),
        (file_of({"a": tensor(0, 2), "b": tensor(2, 5)}, b"abcd"), IncompleteError),
        (file_of({"a": tensor(0, 2), "b": tensor(2, 5)}, b"abcdef"), CorruptError),
        (file_of({"a": tensor(0, 2), "b": tensor(3, 5)}, b"abcde"), CorruptError),
        (file_of({"a": tensor(0, 3), "b": tensor(2, 5)}, b"abcde"), CorruptError),
        (file_of({"a": tensor(2, 0)}, b"ab"), CorruptError),
        (file_of({"a": tensor(0, -2)}), CorruptError),
        (file_of({"a": tensor(0, 1 << 64)}), CorruptError),
        (file_of({"a": tensor(0, (1 << 64) - 1)}), IncompleteError),
        (file_of({"a": {"data_offsets": [0]}}), CorruptError),
        (file_of({"a": {"data_offsets": ["0", "1"]}}), CorruptError),
        (file_of({"a": {}}), CorruptError),
        (file_of({"a": 5}), CorruptError),
        (file_of({"__metadata__": {"a": 5}}), CorruptError),
        (file_of({"__metadata__": ["a"]}), CorruptError),
        (file_of(b'{"\xff": 1}'), CorruptError),
        (file_of(b'{"a": ' + b"[" * 3000 + b"]" * 3000 + b"}"), CorruptError),
    ],
)
def test_headers(tmp_path, content, error):
    """The tensors that the header lists must fill the file exactly, without gaps and overlaps."""
    (tmp_path / "m.safetensors").write_bytes(content)
    if error is None:
        SAFETENSORS.inspect(tmp_path, "m.safetensors")
    else:
        with pytest.raises(error) as caught:
            SAFETENSORS.inspect(tmp_path, "m.safetensors")
        assert "m.safetensors" in str(caught.value)


@pytest.mark.torch
@pytest.mark.parametrize("content", [file_of({"a": tensor(0, 2), "b": tensor(3, 5)}, b"abcde"), bytes(8)])
def test_the_library_refuses_what_is_refused_here(tmp_path, content):
    """A gap, for example."""
    from safetensors import SafetensorError, safe_open

    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    with pytest.raises(SafetensorError), safe_open(path, "np"):
        pass


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_files_of_another_user_have_a_remedy(written, root, new_catalog):
    """Safetensors 0.8 saves with mode 0600."""
    shutil.copy(written / "safetensors" / "m-5.safetensors", root)
    (root / "m-5.safetensors").chmod(0)
    ((_, reason),) = new_catalog().scan().waiting
    assert "0600" in reason


def test_the_largest_models_fit(tmp_path):
    """A header of 100,000 tensors is read."""
    header = {f"model.layers.{i}.mlp.experts.{i}.down_proj.weight": tensor(i, i + 1) for i in range(100_000)}
    (tmp_path / "m.safetensors").write_bytes(file_of(header, bytes(100_000)))
    SAFETENSORS.inspect(tmp_path, "m.safetensors")


def test_nothing_is_left_out_of_the_digest(tmp_path):
    """Names, metadata and values."""
    digests = set()
    for name, metadata, values in (("a", "x", b"ab"), ("b", "x", b"ab"), ("a", "y", b"ab"), ("a", "x", b"ac")):
        header = {"__metadata__": {"k": metadata}, name: tensor(0, 2)}
        (tmp_path / "m.safetensors").write_bytes(file_of(header, values))
        digests.add(SAFETENSORS.inspect(tmp_path, "m.safetensors").digest)
    assert len(digests) == 4
