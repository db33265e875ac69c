"""Read the map of sharded Keras weights, and refuse one that contradicts its files."""

import json
import os
from pathlib import Path

import pytest
from checkpoints.conftest import only

from sidecar.checkpoints.formats import FORMATS
from sidecar.errors import CorruptError, IncompleteError


def put(root: Path, name: str, content: bytes) -> None:
    if name == "m":
        (root / "m").mkdir(exist_ok=True)
        name = "m/saved_model.pb"
    (root / name).write_bytes(content)


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"", IncompleteError, "is cut off"),
        (b"[" * 100_000, IncompleteError, "is cut off"),
        (b"[]", CorruptError, "not a map"),
        (b"{}", CorruptError, "not a map"),
        (b'{"metadata": {"total_size": 1}, "weight_map": {}}', IncompleteError, "names no shards"),
        (b'{"metadata": {"total_size": NaN}, "weight_map": {"a": "m_00000.weights.h5"}}', CorruptError, "states nan"),
        (b'{"metadata": {"total_size": -1}, "weight_map": {"a": "m_00000.weights.h5"}}', CorruptError, "states -1"),
        (b'{"metadata": {"total_size": 1}, "weight_map": {"a": "m_00000.weights.h5"}}', IncompleteError, "missing"),
        *(
            (
                json.dumps({"metadata": {"total_size": 1}, "weight_map": {"a": [name]}}).encode(),
                CorruptError,
                "named like its shards",
            )
            for name in (
                "/m_00000.weights.h5",
                "../m_00000.weights.h5",
                "m_00000.weights.h5/x",
                "",
                "..",
                "m_0000\0.weights.h5",
                "m_000000.weights.h5",
                5,
            )
        ),
    ],
)
def test_maps_of_shards(tmp_path, content, error, message):
    """A map may name files beside it, and no others."""
    put(tmp_path, "m.weights.json", content)
    with pytest.raises(error, match=message):
        FORMATS["keras_shards"].inspect(tmp_path, "m.weights.json")


def test_a_map_of_more_than_there_is(checkpoint, root):
    """After each shard Keras writes the map anew, with the size of the value that comes next."""
    format_, name, _ = checkpoint("shards")
    (root / name).write_text((root / name).read_text().replace("60852.0", "6085200.0"))
    with pytest.raises(IncompleteError, match=r"\b6085200\b"):
        format_.inspect(root, name)


def test_a_shard_that_the_map_does_not_know(checkpoint, root):
    """A newer one is being written; an older one was left by a larger model."""
    format_, name, _ = checkpoint("shards")
    extra = root / f"m-5_{len(list(root.glob('m-5_*'))):05d}.weights.h5"
    extra.write_bytes(b"")
    with pytest.raises(IncompleteError, match=rf"{extra.name}\b.*being written"):
        format_.inspect(root, name)
    os.utime(extra, (1, 1))
    format_.inspect(root, name)


def test_numbered_weights_are_no_shards(checkpoint, root):
    """`ckpt_00010.weights.h5` is a checkpoint of its own, unless there is a map of that name."""
    checkpoint("weights")
    (root / "m-5.weights.h5").rename(root / "ckpt_00010.weights.h5")
    assert only(root)[1].name == "ckpt_00010.weights.h5"
