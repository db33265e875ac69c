"""Prove that the hashed files are those that the task loaded."""

import numpy as np
from evaluation.backends.python.tasks import (
    replace_file,
    run,
    task,
)

from sidecar.evaluation.backends.python.evaluator import PythonEvaluator
from sidecar.evaluation.data.shard import Shard


def test_a_checkpoint_that_is_gone_has_vanished(checkpoint, tmp_path):
    """So that it is not the task's fault."""
    checkpoint.unlink()
    (end,) = run(task(), checkpoint, tmp_path / "a")
    assert end.kind == "vanished"


def test_a_checkpoint_that_is_replaced_before_it_is_hashed_is_refused(checkpoint, tmp_path):
    """Otherwise two ranks could agree on the digest of the new one, though one of them has loaded the old one."""

    def load(path):
        model = np.load(path)
        replace_file(path, model)
        return model

    def predict_and_write(model, x):
        np.save(checkpoint, model)
        return x @ model

    (end,) = run(task(load=load), checkpoint, tmp_path / "a")
    assert end.kind == "mismatch"
    assert str(checkpoint) in str(end)
    (end,) = run(task(predict=predict_and_write), checkpoint, tmp_path / "b")
    assert end.kind == "mismatch"


def test_a_file_that_load_adds_to_a_folder_changes_nothing(tmp_path):
    """Such as a cache; nor does it matter whether a checkpoint that was read is deleted."""
    folder = tmp_path / "model-1"
    folder.mkdir()
    np.save(folder / "weights.npy", np.ones((5, 3)))

    def load(path):
        if not (folder / "cache").exists():
            (folder / "cache").touch()
        return np.load(f"{path}/weights.npy")

    (plain,) = run(task(load=lambda path: np.load(f"{path}/weights.npy")), folder, tmp_path / "a")
    (end,) = run(task(load=load), folder, tmp_path / "b")
    assert end.result.variables == plain.result.variables
    assert plain.weights_bytes == (folder / "weights.npy").stat().st_size

    def predict_and_delete(model, x):
        (folder / "weights.npy").unlink(missing_ok=True)
        return x @ model

    evaluator = PythonEvaluator.build(task(load=load, predict=predict_and_delete), Shard(0, 1), cache_bytes=1 << 20)
    evaluator.read(lambda: None)
    evaluator.restore(str(folder))()
    hashed = evaluator.digest()
    digest = hashed()
    evaluator.evaluate(lambda: None)
    assert hashed() == digest
