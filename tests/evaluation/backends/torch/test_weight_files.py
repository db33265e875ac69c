"""Read the tensors of safetensors files of any kind."""

import json
import os

import pytest
from evaluation.backends.torch.weights import (
    net,
    restored,
    save_shards,
)

from sidecar.evaluation.failures import EvaluationError

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    "dtype",
    [
        *("bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16"),
        *("float32", "float64", "complex64", "float8_e4m3fn", "float8_e5m2"),
    ],
)
def test_every_type_of_safetensors(tmp_path, dtype):
    """The library and this program read the same bits; a scalar and an empty tensor too."""
    import torch
    from safetensors.torch import load_file, save_file

    from sidecar.evaluation.backends.torch.weight_files import load

    bits = torch.arange(64, dtype=torch.uint8) % 2 if dtype == "bool" else torch.arange(64, dtype=torch.uint8)
    values = bits.view(getattr(torch, dtype))
    save_file({"a": values.reshape(2, -1), "b": values[0].clone(), "c": values[:0].clone()}, tmp_path / "m.safetensors")
    found, expected = load(str(tmp_path / "m.safetensors")).content, load_file(tmp_path / "m.safetensors")
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape)
        assert torch.equal(found[name].reshape(-1).view(torch.uint8), value.reshape(-1).contiguous().view(torch.uint8))


def test_values_between_two_places_of_their_type(tmp_path):
    """The format allows any offset."""
    import torch

    from sidecar.evaluation.backends.torch.weight_files import load

    header = {
        "a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "b": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]},
    }
    content = json.dumps(header).encode()
    values = b"\7" + torch.tensor([1.5, -2.0]).numpy().tobytes()
    (tmp_path / "m.safetensors").write_bytes(len(content).to_bytes(8, "little") + content + values)
    assert load(str(tmp_path / "m.safetensors")).content["b"].tolist() == [1.5, -2.0]


@pytest.mark.parametrize(
    "stored",
    [
        {"dtype": "F4", "shape": [2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 7]},
        {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": "x", "data_offsets": [0, 8]},
        {"dtype": ["F32"], "shape": [2], "data_offsets": [0, 8]},
        {"shape": [2]},
        5,
    ],
)
def test_headers_that_contradict(tmp_path, stored):
    """One sentence that names the file."""
    from sidecar.evaluation.backends.torch.weight_files import load

    content = json.dumps({"a": stored}).encode()
    (tmp_path / "m.safetensors").write_bytes(len(content).to_bytes(8, "little") + content + bytes(8))
    with pytest.raises(EvaluationError) as caught:
        load(str(tmp_path / "m.safetensors"))
    assert "m.safetensors" in str(caught.value)
    assert "copy or save it again" in str(caught.value)


def test_only_bytes_that_are_used_are_read(tmp_path):
    """The optimizer of a Trainer's folder is larger than the model, and is not opened."""
    folder = save_shards(net(seed=1), tmp_path / "checkpoint-5")
    os.mkfifo(folder / "optimizer.pt")  # opening it would hang
    restored(folder, net())
