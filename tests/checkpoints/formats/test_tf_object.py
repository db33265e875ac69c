"""Read object checkpoints of TensorFlow that are whole, cut off, damaged or mixed."""

import contextlib
import shutil
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.checkpoints.files import list_files
from sidecar.checkpoints.formats import tf_object as module
from sidecar.checkpoints.formats.tf_object import MAX_INDEX_BYTES, TfObject
from sidecar.checkpoints.work_budget import WorkBudget
from sidecar.errors import CorruptError, IncompleteError, VanishedError

tf_object = TfObject()


@pytest.mark.parametrize("kind", ["keras", "sharded", "step", "wide", "odd_name", "keras2", "types"])
def test_real_checkpoints_are_whole(recorded, kind):
    """Accept all that TensorFlow wrote, with the step it was given; those without get it from the name."""
    for name, expected in recorded.wrote[kind].items():
        inspection = tf_object.inspect(recorded.objects / kind, name)
        step = expected[0] if isinstance(expected, list) else expected
        assert inspection.step == (None if name in ("wide-3", "none-1", "types-1") else step)
        assert len(inspection.digest) == 64


def test_shards_are_listed(recorded):
    """All files of a checkpoint of several shards are named."""
    files = tf_object.inspect(recorded.objects / "sharded", "ckpt-1").files
    assert files == ("ckpt-1.index", *(f"ckpt-1.data-0000{shard}-of-00003" for shard in range(3)))


@pytest.mark.parametrize("key", ["epoch", "epoch/.ATTRIBUTES/VARIABLE_VALUE"])
def test_step_key(recorded, key):
    """A variable that the user names comes before all others."""
    assert tf_object.inspect(recorded.objects / "step", "both-1", step_key=key).step == 5


@pytest.mark.parametrize("key", ["nowhere", "rate", "steps"])
def test_step_key_without_an_integer(recorded, key):
    """If what the user named is no integer scalar, nothing else is guessed in its place."""
    assert tf_object.inspect(recorded.objects / "step", "both-1", step_key=key).step is None


def test_digest_is_of_content(recorded, tmp_path):
    """The digest is the same under another prefix elsewhere, and differs between any two saves."""
    source, digests = recorded.objects / "keras", set()
    for number in (1, 2, 3):
        for suffix in ("index", "data-00000-of-00001"):
            shutil.copy(source / f"ckpt-{number}.{suffix}", tmp_path / f"other-{number}.{suffix}")
        digest = tf_object.inspect(source, f"ckpt-{number}").digest
        assert tf_object.inspect(tmp_path, f"other-{number}").digest == digest
        digests.add(digest)
    assert len(digests) == 3


def test_every_truncation_of_the_index(put):
    """An index cut anywhere, as while it is being written, is never taken for whole."""
    root = put("sharded")
    index = root / "ckpt-1.index"
    whole = index.read_bytes()
    for length in range(len(whole)):
        index.write_bytes(whole[:length])
        with pytest.raises(CorruptError):
            tf_object.inspect(root, "ckpt-1")


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_every_damaged_byte_of_the_index(put, flip):
    """Data, checksums and footer: no byte of the index can change unnoticed."""
    root = put("plain", "weights-9*")
    index = root / "weights-9.index"
    whole = index.read_bytes()
    for position, byte in enumerate(whole):
        index.write_bytes(whole[:position] + bytes([byte ^ flip]) + whole[position + 1 :])
        with pytest.raises(CorruptError):
            tf_object.inspect(root, "weights-9")


def test_appended_bytes(put):
    """An index with something behind its footer is not one."""
    root = put("plain")
    with (root / "weights-9.index").open("ab") as index:
        index.write(b"\0")
    with pytest.raises(CorruptError):
        tf_object.inspect(root, "weights-9")


@pytest.mark.parametrize("shard", [0, 1, 2])
def test_a_shard_is_missing_or_short(put, shard):
    """Each shard must be there and as long as its tensors need."""
    root = put("sharded")
    file = root / f"ckpt-1.data-0000{shard}-of-00003"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    with pytest.raises(IncompleteError, match="need"):
        tf_object.inspect(root, "ckpt-1")
    file.unlink()
    with pytest.raises(IncompleteError, match=rf"ckpt-1\.data-0000{shard}-of-00003.*missing"):
        tf_object.inspect(root, "ckpt-1")


def test_no_index(root):
    """Without an index there is nothing (any more)."""
    with pytest.raises(VanishedError):
        tf_object.inspect(root, "ckpt-1")


def test_an_enormous_index(root):
    """A file that no real checkpoint has is not read to its end."""
    with (root / "ckpt-1.index").open("wb") as index:
        index.truncate(MAX_INDEX_BYTES + 1)
    with pytest.raises(CorruptError, match="larger"):
        tf_object.inspect(root, "ckpt-1")


def test_index_and_data_of_two_saves(put, recorded):
    """The new data beside the old index, sizes equal: the step's own checksum tells."""
    root = put("overwritten/before")
    shutil.copy(recorded.objects / "overwritten/after/best.data-00000-of-00001", root)
    with pytest.raises(CorruptError, match="different saves"):
        tf_object.inspect(root, "best")


def test_candidates(put):
    """Prefixes with an index, each with all its files; the state file says which are named."""
    put("plain")
    root = put("keras")
    (root / "ckpt-3.index").unlink()
    found = {one.name: one for one in tf_object.candidates(root, list_files(root))}
    assert {name: one.named for name, one in found.items()} == {
        "ckpt-1": True,
        "ckpt-2": True,
        "weights-9": False,
        "weights-10": False,
    }
    assert [file.name for file in found["ckpt-1"].files] == ["ckpt-1.data-00000-of-00001", "ckpt-1.index"]


HEADER = b"\x08\x01"  # one shard


def read_bundle(*entries):
    with patch.object(module, "read_table", lambda *_: iter(entries)):
        return module._read_bundle(b"", None, WorkBudget())


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([], "header"),
        ([(b"a", b"")], "header"),
        ([(b"", b"")], "0 shards"),
        ([(b"", b"\x08" + b"\xff" * 9 + b"\x01")], "negative"),
        ([(b"", HEADER), (b"a", b"\x08\x04\x28\x01\x18\x01")], "shard number 1"),
        ([(b"", HEADER), (b"a", b"\x28" + b"\xff" * 9 + b"\x01")], "negative"),
    ],
)
def test_contradicting_messages(entries, message):
    """Check the contents of the table too: its checksums prove nothing about bytes that somebody chose."""
    with pytest.raises(CorruptError, match=message):
        read_bundle(*entries)


@settings(deadline=5000)
@given(st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=40)), max_size=4), st.binary(max_size=10))
def test_arbitrary_messages_have_an_answer(entries, header):
    """A sum of the entries or CorruptError, no other error."""
    for first in (HEADER, header):
        with contextlib.suppress(CorruptError):
            assert all(end < 1 << 65 for end in read_bundle((b"", first), *entries).ends.values())


def test_the_nearest_optimizer_counts():
    """`optimizer` itself, then others by their depth; Keras 3's name before Keras 2's; a bare `step` last."""
    keys = [
        "optimizer/_iterations",
        "model/_iterations",
        "a/optimizer/_iterations",
        "optimizer/iter",
        "model/iter",
        "step",
        "global_step",
    ]
    ranks = [module.step_rank(f"{key}/.ATTRIBUTES/VARIABLE_VALUE", None) for key in keys]
    assert ranks == sorted(ranks)
    assert module.step_rank("save_counter/.ATTRIBUTES/VARIABLE_VALUE", None) is None
    assert module.step_rank("model/step/.ATTRIBUTES/VARIABLE_VALUE", None) is None
