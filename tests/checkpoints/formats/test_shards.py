"""Read the index of weights in shards, and wait for the shards that it names."""

import json
import os
import shutil

import pytest

from sidecar.checkpoints.formats import FORMATS, file_group
from sidecar.errors import CorruptError, IncompleteError, VanishedError

SAFETENSORS = FORMATS["safetensors"]

INDEX = "m-5.safetensors.index.json"

SHARD = "m-00001-of-00002.safetensors"


@pytest.mark.parametrize(
    ("index", "error"),
    [
        (b"", IncompleteError),
        (b'{"weight_map": {}}', IncompleteError),
        (b'{"metadata": {"total_size": 5}}', IncompleteError),
        (b"[]", IncompleteError),
        (b"[" * 100_000, IncompleteError),
        (b'{"weight_map": {"a": "m-00001-of-00002.safetensors"}} {}', CorruptError),
        *(
            (json.dumps({"weight_map": {"a": name}}).encode(), CorruptError)
            for name in (f"../{SHARD}", f"/{SHARD}", f"x/{SHARD}", "m.safetensors", "", f"{SHARD}\0", "n" + SHARD)
        ),
        (json.dumps({"weight_map": {"a": 5}}).encode(), IncompleteError),
        (json.dumps({"weight_map": {"a": SHARD}}).encode(), IncompleteError),
    ],
)
def test_indexes(tmp_path, index, error):
    """An index may name files beside it, by names of its shards, and no others."""
    (tmp_path / "m.safetensors.index.json").write_bytes(index)
    with pytest.raises(error):
        SAFETENSORS.inspect(tmp_path, "m.safetensors.index.json")


def test_shards_belong_to_their_index(written, root, new_catalog):
    """One checkpoint, not one for each file; a shard without its index is none."""
    shutil.copytree(written / "safetensors_shards", root, dirs_exist_ok=True)
    (found,) = new_catalog(quiet_seconds=0).scan().found
    assert found.checkpoint.name == INDEX
    assert {file.name for file in found.files} == {path.name for path in root.iterdir()} - {".sidecar"}
    assert {file_group(file.name) for file in found.files} == {INDEX}
    with pytest.raises(VanishedError):
        SAFETENSORS.inspect(root, "m-5-00001-of-00002.safetensors")
    (root / INDEX).unlink()
    assert new_catalog(quiet_seconds=0).scan().found == ()


def test_a_shard_that_is_saved_again(written, root, new_catalog):
    """A temporary file of safetensors beside an older index: the shards may be of two saves. One left behind is old."""
    shutil.copytree(written / "safetensors_shards", root, dirs_exist_ok=True)
    temporary = root / ".tmpB1vQx2"
    temporary.write_bytes(b"")
    assert new_catalog(quiet_seconds=0).scan().found == ()
    with pytest.raises(IncompleteError) as caught:
        SAFETENSORS.inspect(root, INDEX)
    assert temporary.name in str(caught.value)
    os.utime(temporary, (1, 1))
    SAFETENSORS.inspect(root, INDEX)


def test_a_copy_whose_index_came_first(written, root, new_catalog, clock):
    """Tools copy in any order: such times only make it wait longer, as they could mean that it is being saved again."""
    shutil.copytree(written / "safetensors_shards", root, dirs_exist_ok=True)
    os.utime(root / INDEX, (1, 1))
    catalog = new_catalog()
    catalog.scan()
    clock.seconds += 59
    ((name, reason),) = catalog.scan().waiting
    assert name == INDEX
    assert "newer than" in reason
    clock.seconds += 1
    assert [found.checkpoint.name for found in catalog.scan().found] == [INDEX]
