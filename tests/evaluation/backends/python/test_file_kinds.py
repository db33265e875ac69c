"""Name the library of a file that the task's own does not load."""

import importlib
import pickle
import zlib

import pytest
from evaluation.backends.python.tasks import (
    task,
)

from sidecar.evaluation.backends.python.evaluator import PythonEvaluator
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.failures import as_failed


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (pickle.dumps({"trees": 3}), "a pickle: write Task(load=joblib.load"),
        (zlib.compress(b"any"), "compressed file"),
        (b"PK\x03\x04rest", "a zip archive"),
        (b"\x93NUMPY\x01", "numpy.load"),
        (b"tree\nversion=v4", "lightgbm.Booster(model_file=path)"),
        (b'{"learner":{}}', "xgboost.Booster(model_file=path)"),
        (b"anything", ""),
    ],
)
def test_a_file_of_another_library_is_named_with_its_loader(tmp_path, monkeypatch, content, words):
    """A loader of one library gets what another one wrote."""
    (tmp_path / "trees.py").write_text("def load_model(path):\n    raise RuntimeError('Check failed: not a model')\n")
    monkeypatch.syspath_prepend(tmp_path)
    trees = importlib.import_module("trees")
    path = tmp_path / "model-1.bin"
    path.write_bytes(content)
    evaluator = PythonEvaluator.build(task(load=trees.load_model), Shard(0, 1), cache_bytes=1 << 20)
    with pytest.raises(RuntimeError) as caught:
        evaluator.restore(str(path))()
    sentence = as_failed(caught.value, phase="restore", plan=1, rank=0).message.splitlines()[0]
    assert words in sentence
    assert ("The file is" in sentence) == bool(words)
