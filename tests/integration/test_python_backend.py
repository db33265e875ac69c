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
    """What a plain loop finds."""
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


def test_models_are_evaluated_as_they_are_saved(sidecar, models, tmp_path):
    """Published numbers are those of a plain loop; steps come from the names; what is unfinished is left alone."""
    folder = tmp_path / "ckpts"
    folder.mkdir()
    daemon = sidecar.run(folder, task=TASK, **SETTINGS)
    daemon.logged("task_checked")
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


def test_bits_are_equal_for_one_two_and_three_ranks(sidecar, models, tmp_path):
    """Every number, and the predictions that the workers saved; nothing of the ranks' meeting is left behind."""
    save(models[1], tmp_path / "ckpts", 1)
    found, predictions = [], []
    for ranks in (1, 2, 3):
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
    assert found[0] == found[1] == found[2]
    assert predictions[0].tobytes() == predictions[1].tobytes() == predictions[2].tobytes()


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
        ("nothing", "Task(load=…) must return a model, found None"),
        ("predict", "AttributeError: 'SGDClassifier' object has no attribute 'transform'"),
        ("rows", "one row for each of 64 examples, found float64 (1, 10)"),
    ],
)
def test_a_mistake_in_the_task_is_one_clear_sentence(sidecar, models, tmp_path, mistake, sentence):
    """The user's own words, and what was done meanwhile; no frame of this program."""
    save(models[0], tmp_path / "ckpts", 1)
    done = sidecar.command(
        *("eval", tmp_path / "ckpts", "--task", f"{FOLDER}/tasks/{TASK}:task", "--replicas", "2"),
        MISTAKE=mistake,
        **SETTINGS,
    )
    assert done.code == 1
    assert sentence in done.said
    assert "sidecar/evaluation" not in done.said


def test_a_checkpoint_that_is_replaced_during_its_evaluation_is_refused(sidecar, models, tmp_path):
    """`sidecar eval` reads it where training wrote it: the numbers could be of either, or of both."""
    gate, folder = tmp_path / "gate", tmp_path / "ckpts"
    gate.mkdir()
    (gate / "hold").touch()
    path = folder / save(models[0], folder, 1)["name"]

    def replace():
        while not list(gate.glob("at-*")):
            time.sleep(0.02)
        joblib.dump(models[1], folder / ".new")
        (folder / ".new").rename(path)
        (gate / "hold").unlink()

    writer = threading.Thread(target=replace)
    writer.start()
    done = sidecar.command("eval", path, "--task", f"{FOLDER}/tasks/{TASK}:task", GATE=str(gate), **SETTINGS)
    writer.join()
    assert done.code == 1
    assert "mismatch" in done.said


def test_a_model_that_is_no_pickle_fails_alone(sidecar, models, tmp_path):
    """The next one is evaluated."""
    folder = tmp_path / "ckpts"
    folder.mkdir()
    (folder / "model-1.joblib").write_bytes(b"no pickle at all")
    saved = save(models[0], folder, 2)
    daemon = sidecar.run(folder, task=TASK, SIDECAR_MAX_ATTEMPTS="1", **SETTINGS)
    daemon.evaluated(saved)
    failed = daemon.logged("plan_failed")[0]
    assert failed["checkpoint"] == "model-1.joblib"
    assert "raised while the checkpoint was restored" in failed["message"]
