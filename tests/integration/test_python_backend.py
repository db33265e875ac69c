"""`framework = "python"`: real scikit-learn models, saved while a real daemon watches."""

import copy
import json
import math
import os
import signal
import threading
import time
from pathlib import Path

import joblib
import numpy as np
import pytest
from numpy_trainer import NUMPY
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

from sidecar import results

SETTINGS = {"SIDECAR_FRAMEWORK": "python", "SIDECAR_CHECKPOINT_PATTERN": "model-*.joblib"}
FIRST, EXAMPLES = 1200, 597
TASK = "sklearn_digits.py"
FOLDER = Path(__file__).parent


@pytest.fixture(scope="module")
def models():
    """One model after each of three passes over the data."""
    digits, model, found = load_digits(), SGDClassifier(loss="log_loss", random_state=1), []
    for _ in range(3):
        model.partial_fit(digits.data[:FIRST] / 16, digits.target[:FIRST], classes=range(10))
        found.append(copy.deepcopy(model))
    return found


def save(model, folder, step):
    """As a careful trainer does it: under another name, then renamed."""
    folder.mkdir(exist_ok=True)
    joblib.dump(model, folder / f".model-{step}.part")
    (folder / f".model-{step}.part").rename(folder / f"model-{step}.joblib")
    return {"name": f"model-{step}.joblib"}


def expected(model):
    """Return what a plain loop finds."""
    digits = load_digits()
    x, y = digits.data[FIRST:] / 16, digits.target[FIRST:]
    right = top = 0
    loss, confidence = [], []
    for start in range(0, len(x), 64):
        for label, row in zip(y[start : start + 64], model.predict_proba(x[start : start + 64]), strict=True):
            right += int(row.argmax() == label)
            top += int(label in np.argsort(row, kind="stable")[-3:])
            loss.append(-math.log(max(row[label], np.finfo(np.float64).eps)))
            confidence.append(row.max())
    return {
        "accuracy": right / len(y),
        "top_3_accuracy": top / len(y),
        "log_loss": math.fsum(loss) / len(y),
        "confidence": math.fsum(confidence) / len(y),
    }


def metrics(row):
    return {name: {metric: each["value"] for metric, each in found.items()} for name, found in row["metrics"].items()}


@pytest.fixture(scope="module")
def watching(sidecar, tmp_path_factory):
    """A daemon that is ready, and the folder that it watches."""
    folder = tmp_path_factory.mktemp("watched") / "ckpts"
    folder.mkdir()
    daemon = sidecar.run(folder, task=TASK, SIDECAR_MAX_ATTEMPTS="1", **SETTINGS)
    daemon.logged("task_checked")
    yield daemon, folder
    daemon.process.kill()


def test_models_are_evaluated_as_they_are_saved(watching, models):
    """Published numbers are those of a plain loop; steps come from the names; what is unfinished is left alone."""
    daemon, folder = watching
    (folder / "notes.txt").write_text("no checkpoint")
    saved = [save(model, folder, 10 * number) for number, model in enumerate(models, 1)]
    found = daemon.evaluated(*saved)
    for number, (model, each) in enumerate(zip(models, saved, strict=True), 1):
        row = found[each["name"]]
        assert row["step"] == 10 * number
        assert row["examples"] == {"test": EXAMPLES, "stream": EXAMPLES}
        for eval_set in ("test", "stream"):
            assert metrics(row)[eval_set] == pytest.approx(expected(model), rel=1e-12)
    samples = daemon.samples("sidecar_eval_metric")
    assert pytest.approx(expected(models[-1])["accuracy"]) in samples.values()
    assert {row["checkpoint"] for row in daemon.history()} == {each["name"] for each in saved}


def test_a_model_that_is_no_pickle_fails_alone(watching, models):
    """The next one is evaluated."""
    daemon, folder = watching
    (folder / "model-101.joblib").write_bytes(b"no pickle at all")
    daemon.evaluated(save(models[0], folder, 102))
    (failed,) = daemon.logged("plan_failed")
    assert failed["checkpoint"] == "model-101.joblib"
    assert "raised while the checkpoint was restored" in failed["message"]


def test_a_model_that_is_renamed_is_not_evaluated_again(watching, models):
    """Its name was another one when it was evaluated; the next model is evaluated after it would have been."""
    daemon, folder = watching
    daemon.evaluated(save(models[1], folder, 201))
    (folder / "model-201.joblib").rename(folder / "model-best.joblib")
    daemon.evaluated(save(models[2], folder, 202))
    assert "model-best.joblib" not in [row["checkpoint"] for row in daemon.history()]


@pytest.mark.parametrize("counts", [(1, 3), pytest.param((1, 2, 3), marks=pytest.mark.nightly)], ids=str)
def test_bits_are_equal_for_any_number_of_ranks(sidecar, models, tmp_path, counts):
    """Every number, and the predictions that the workers saved; nothing of the ranks' meeting is left behind."""
    save(models[1], tmp_path / "ckpts", 1)
    found, predictions = [], []
    for ranks in counts:
        folder = tmp_path / f"saved-{ranks}"
        done = sidecar.command(
            *("eval", tmp_path / "ckpts" / "model-1.joblib", "--json", "--save-dir", folder),
            *("--task", f"{FOLDER}/tasks/{TASK}:task", "--replicas", str(ranks)),
            **SETTINGS,
        )
        assert done.code == 0, done.err
        said = json.loads(done.out)
        assert said["workers"] == ranks
        found.append(said["metrics"])
        predictions.append(results.read(folder).predictions["test"]["predictions"])
        assert {path.name for path in folder.iterdir()} == {f"worker-{rank}-of-{ranks}" for rank in range(ranks)}
    assert [each == found[0] for each in found] == [True] * len(counts)
    assert [each.tobytes() for each in predictions] == [predictions[0].tobytes()] * len(counts)


@pytest.mark.nightly
def test_a_rank_that_is_killed_is_replaced(sidecar, models, tmp_path):
    """Its daemon notices, the others stop waiting for it, and the checkpoint is evaluated again."""
    gate, folder = tmp_path / "gate", tmp_path / "ckpts"
    gate.mkdir()
    folder.mkdir()
    (gate / "hold").touch()
    daemon = sidecar.run(folder, "--replicas", "2", task=TASK, GATE=str(gate), **SETTINGS)
    daemon.logged("task_checked")
    saved = save(models[0], folder, 1)
    first = daemon.until(lambda: sorted(gate.glob("at-*"))[1:] and sorted(gate.glob("at-*")), "both ranks at the gate")
    os.kill(int(first[0].name.removeprefix("at-")), signal.SIGKILL)
    lost = daemon.logged("plan_failed")[0]
    assert lost["kind"] == "worker_died"
    (gate / "hold").unlink()
    row = daemon.evaluated(saved)[saved["name"]]
    assert metrics(row)["test"] == pytest.approx(expected(models[0]), rel=1e-12)
    assert row["workers"] == 2


@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        ("load", "KeyError: 'no such layer' (raised while the checkpoint was restored)"),
        pytest.param("nothing", "Task(load=…) must return a model, found None", marks=pytest.mark.nightly),
        pytest.param(
            "predict", "AttributeError: 'dict' object has no attribute 'transform'", marks=pytest.mark.nightly
        ),
        ("rows", "one row for each of 8 examples, found float64 (1, 3)"),
    ],
)
def test_a_mistake_in_the_task_is_one_clear_sentence(sidecar, numpy_trainer, tmp_path, mistake, sentence):
    """The user's own words, and what was done meanwhile; no frame of this program."""
    numpy_trainer.save(tmp_path / "ckpts", 1)
    done = sidecar.command(
        *("eval", tmp_path / "ckpts", "--task", f"{FOLDER}/tasks/numpy_mistaken.py:task", "--replicas", "2"),
        MISTAKE=mistake,
        **NUMPY,
    )
    assert done.code == 1
    assert sentence in done.said
    assert "sidecar/evaluation" not in done.said


def test_a_checkpoint_that_is_replaced_during_its_evaluation_is_refused(sidecar, numpy_trainer, tmp_path):
    """`sidecar eval` reads it where training wrote it: the numbers could be of either, or of both."""
    gate, folder = tmp_path / "gate", tmp_path / "ckpts"
    gate.mkdir()
    (gate / "hold-evaluate").touch()
    path = folder / numpy_trainer.save(folder, 1)[0]["name"]
    (other,) = numpy_trainer.save(tmp_path / "elsewhere", 2)

    def replace():
        while not list(gate.glob("at-evaluate-*")):
            time.sleep(0.02)
        (tmp_path / "elsewhere" / other["name"]).rename(path)
        (gate / "hold-evaluate").unlink()

    writer = threading.Thread(target=replace)
    writer.start()
    done = sidecar.command(
        "eval", path, "--task", f"{FOLDER}/tasks/numpy_gated.py:task", GATE=str(gate), SIDECAR_CACHE_BYTES="0", **NUMPY
    )
    writer.join()
    assert done.code == 1
    assert "mismatch" in done.said
