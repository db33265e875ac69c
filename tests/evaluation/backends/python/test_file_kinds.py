"""Name the library of a file that the task's own does not load."""

import importlib
import pickle
import sys
import types
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


@pytest.mark.parametrize("fails_in", ["this_script", "another_module"])
def test_a_pickle_of_classes_that_training_defined_gets_the_line_to_write(tmp_path, monkeypatch, fails_in):
    """`__main__` of training is not that of a worker, and another loader of pickles helps with no missing name."""
    name = "__main__" if fails_in == "this_script" else "train_it"
    module = types.ModuleType(name)
    exec("class Own:\n    factor = 2", vars(module))
    path = tmp_path / "model-1.pkl"
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, name, module)
        path.write_bytes(pickle.dumps(module.Own()))
    (tmp_path / "eval_it.py").write_text(
        "import pathlib, pickle\n\ndef load(path):\n    return pickle.loads(pathlib.Path(path).read_bytes())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    loader = importlib.import_module("eval_it")
    evaluator = PythonEvaluator.build(task(load=loader.load), Shard(0, 1), cache_bytes=1 << 20)
    with pytest.raises((AttributeError, ModuleNotFoundError)) as caught:
        evaluator.restore(str(path))()
    message = as_failed(caught.value, phase="restore", plan=1, rank=0).message
    assert ("import __main__; __main__.Own = Own" in message) == (name == "__main__")
    assert "joblib.load" not in message
