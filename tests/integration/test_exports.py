"""Load each exported checkpoint by its framework's own reader, from the path that is printed."""

import shutil
from pathlib import Path

import pytest
from fakes import FakeClock, Node, pass_time

from sidecar.checkpoints.formats import FORMATS
from sidecar.commands.best import copy_best, find_best
from sidecar.protocol.export_rule import ExportRule
from sidecar.protocol.records import Value
from sidecar.settings import Settings

RECORDED = Path(__file__).parents[1] / "checkpoints" / "recorded" / "kinds"


@pytest.fixture
def export(tmp_path):
    """Let a daemon export what was recorded of a writer, and return a path to load: in the exports, or in a copy."""

    def export(kind: str, *, copy: bool) -> Path:
        node = Node(tmp_path, FakeClock(), exports=ExportRule(metric="test/accuracy", count=1))
        shutil.copytree(RECORDED / kind, node.checkpoint_dir)
        node.numbers = _Same(Value(value=0.5, hex=(0.5).hex(), goal="max"))
        pass_time(120, node)
        for path in node.checkpoint_dir.iterdir():  # training deletes all
            if path.name != ".sidecar":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        best = find_best(Settings(checkpoint_dir=node.checkpoint_dir, run="run"), node.storage.storage)
        FORMATS[best.checkpoint.format].check(best.folder, best.path.name)
        folder = copy_best(best, tmp_path / "copied", lambda: None) if copy else best.folder
        return folder / best.path.name

    return export


class _Same(dict):
    """The same number for every checkpoint."""

    def __init__(self, value) -> None:
        super().__init__()
        self._value = value

    def get(self, *_):
        """Return the same value for every key, in place of `dict.get`."""
        return self._value


@pytest.mark.tensorflow
@pytest.mark.parametrize("kind", ["tf_object", "tf_object_sharded"])
def test_tensorflow_reads_an_exported_prefix(export, kind):
    """By its object graph and its shards."""
    import tensorflow as tf

    path = export(kind, copy=False)
    assert tf.train.load_checkpoint(str(path)).get_variable_to_shape_map()
    assert tf.train.list_variables(str(path))


@pytest.mark.tensorflow
def test_keras_loads_an_exported_file(export):
    """The whole model, from a copy."""
    import keras

    assert keras.models.load_model(export("keras", copy=True)).count_params() > 0


@pytest.mark.tensorflow
def test_tensorflow_loads_an_exported_model(export):
    """A folder of folders."""
    import tensorflow as tf

    assert tf.saved_model.load(str(export("saved_model", copy=True))).signatures


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["torch_state", "torch_training"])
def test_torch_loads_an_exported_file(export, kind):
    """Without code in it."""
    import torch

    assert torch.load(export(kind, copy=False), weights_only=True)


@pytest.mark.torch
def test_torch_reads_an_exported_distributed_checkpoint(export):
    """FileSystemReader of PyTorch finds the metadata of an exported distributed checkpoint."""
    from torch.distributed.checkpoint import FileSystemReader

    assert FileSystemReader(export("dcp", copy=True)).read_metadata().state_dict_metadata


@pytest.mark.torch
def test_transformers_read_an_exported_folder(export):
    """Configuration and weights lie where `from_pretrained` looks for them."""
    import json

    from safetensors.torch import load_file

    path = export("pretrained", copy=True)
    assert json.loads((path / "config.json").read_text())
    assert load_file(path / "model.safetensors")
