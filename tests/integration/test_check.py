"""`sidecar check`: a real worker restores the newest checkpoint, and evaluates a batch with every check of a daemon."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from integration.torch_trainer import TORCH
from numpy_trainer import NUMPY

FAILED, INTERRUPTED = 1, 130

TORCH_TASK = """
import torch
from torch import nn
from sidecar import Task
from sidecar.metrics import Accuracy

def task():
    x, y = torch.zeros(40, 4), torch.zeros(40, dtype=torch.int64)
    return Task(build_model=lambda: nn.Linear(4, 3), eval_sets={"test": lambda: torch.utils.data.TensorDataset(x, y)},
        metrics=lambda: [Accuracy()], batch_size=8)
"""

ONE_LATE = """
import sys
sys.path.insert(0, {tasks!r})
import numpy_plain
from sidecar import EvalSet

def endless():
    for number in range(10**9):
        if number > 100:
            raise ValueError("read on")
        yield numpy_plain.X[number], numpy_plain.Y[number]

def task():
    return numpy_plain.task_on(EvalSet(endless, examples=10**6))
"""

HANGING = """
import sys, threading
sys.path.insert(0, {tasks!r})
import numpy_plain

def task():
    numpy_plain.predict = lambda model, x: threading.Event().wait()
    return numpy_plain.task()
"""


@pytest.fixture(scope="module")
def numpy_folder(numpy_trainer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("numpy") / "ckpts"
    numpy_trainer.save(folder, 5, 10)
    return folder


@pytest.fixture(scope="module")
def torch_folder(torch_trainer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("torch") / "ckpts"
    torch_trainer.save(folder, 5)
    return folder


@pytest.fixture
def check(sidecar, tmp_path):
    """Runs `sidecar check` for a worker, whose temporary files go to a folder of their own."""
    (tmp_path / "tmp").mkdir()

    def start(folder, task, *options, **environ):
        words = ("check", folder, "--role", "worker", "--task", f"{task}:task", *options)
        return sidecar.start(*words, TMPDIR=str(tmp_path / "tmp"), **environ)

    return start


def found(done):
    """Return the line about the task, and the last line."""
    *lines, last = done.out.splitlines()
    (task,) = [line for line in lines if line[5:].startswith("task ")]
    return " ".join(task.split()), last


def test_the_newest_checkpoint_is_restored_and_a_batch_evaluated(check, numpy_folder, tasks, tmp_path):
    """Only then the task is fine; no file stays, and no state directory is made."""
    done = check(numpy_folder, tasks / "numpy_plain.py", "--replicas", "3", **NUMPY).wait()
    assert done.code == 0, done.out
    task, last = found(done)
    assert task.startswith("ok task")
    assert "model-10.npz (step 10) was restored" in task
    assert "8 examples of test" in task
    assert last == "No problem found."
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not list(numpy_folder.glob(".sidecar/*/*"))


def test_only_the_first_batch_is_read(check, numpy_folder, tasks, tmp_path):
    """Data that fail later, or never end, cost no time; their number of examples is not compared."""
    (tmp_path / "late.py").write_text(ONE_LATE.format(tasks=str(tasks)))
    done = check(numpy_folder, tmp_path / "late.py", **NUMPY).wait()
    assert done.code == 0, done.out
    assert "8 examples of test" in found(done)[0]


def test_a_checkpoint_that_does_not_fit_fails(check, torch_folder, tasks, tmp_path):
    """With the reason that a daemon logs; the same checkpoint and its own task are fine."""
    (tmp_path / "other.py").write_text(TORCH_TASK)
    done = check(torch_folder, tmp_path / "other.py", **TORCH).wait()
    assert done.code == FAILED
    task, last = found(done)
    assert task.startswith("FAIL task model-5.pt: mismatch: ")
    assert "weight" in task
    assert last == "1 problem found."
    done = check(torch_folder, tasks / "torch_plain.py", **TORCH).wait()
    assert done.code == 0, done.out
    assert "model-5.pt (step 5) was restored" in found(done)[0]


@pytest.mark.nightly
@pytest.mark.tensorflow
def test_a_model_of_keras_that_does_not_fit_fails(check, writer, tasks, tmp_path):
    """The check fails for a Keras model that does not fit the checkpoint, as for a PyTorch model."""
    (saved,) = writer.save(tmp_path / "ckpts", 5)
    done = check(tmp_path / "ckpts", tasks / "other_model.py").wait()
    assert done.code == FAILED
    assert f"FAIL task {saved['name']}: mismatch: " in found(done)[0]


@pytest.mark.nightly
@pytest.mark.tensorflow
def test_a_model_of_keras_that_fits(check, writer, tasks, tmp_path):
    """The check restores the newest checkpoint into a Keras model that fits, as into a PyTorch model."""
    (saved,) = writer.save(tmp_path / "ckpts", 5)
    done = check(tmp_path / "ckpts", tasks / "plain.py").wait()
    assert done.code == 0, done.out
    assert f"{saved['name']} (step 5) was restored" in found(done)[0]


def test_a_task_that_was_not_filled_in_fails(sidecar, tmp_path):
    """With the line to fill in, though nothing was saved yet."""
    program = Path(sys.executable).with_name("sidecar")
    (tmp_path / "ckpts").mkdir()
    subprocess.run([program, "init", "ckpts", "--framework", "torch"], cwd=tmp_path, check=True, capture_output=True)
    task = tmp_path / "sidecar_task.py"
    words = ("check", tmp_path / "ckpts", "--role", "worker", "--task", f"{task}:task")
    done = sidecar.start(*words, **TORCH).wait()
    assert done.code == FAILED
    assert "return your test set in test_set()" in done.out


def test_without_a_checkpoint_it_says_what_was_not_tried(check, tasks, tmp_path):
    """That is no failure, but not fine either."""
    (tmp_path / "ckpts").mkdir()
    done = check(tmp_path / "ckpts", tasks / "numpy_plain.py", **NUMPY).wait()
    assert done.code == 0, done.out
    task, last = found(done)
    assert task.startswith("-- task")
    for line in (task, last):
        assert "Not tried: to restore a checkpoint" in line
        assert "no failure" in line


def test_quick_says_that_nothing_was_evaluated(check, torch_folder, tmp_path):
    """In its last line; the task that does not fit is not found to be fine."""
    (tmp_path / "other.py").write_text(TORCH_TASK)
    done = check(torch_folder, tmp_path / "other.py", "--quick", **TORCH).wait()
    assert done.code == 0
    task, last = found(done)
    assert task.startswith("-- task")
    assert last.startswith("No problem found. Not tried (--quick): ")


@pytest.mark.parametrize("task", ["numpy_plain.py", "raises.py"])
def test_json_has_all_findings(check, numpy_folder, tasks, task):
    """The same texts, and whether each of them is a failure."""
    done = check(numpy_folder, tasks / task, "--json", **NUMPY).wait()
    body = json.loads(done.out)
    assert body["ok"] is (done.code == 0)
    (finding,) = [each for each in body["findings"] if each["what"] == "task"]
    assert finding["ok"] is (task == "numpy_plain.py")
    assert body["summary"] == ("No problem found." if body["ok"] else "1 problem found.")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, INTERRUPTED), (signal.SIGTERM, -signal.SIGTERM)])
def test_a_signal_ends_it_at_once(check, numpy_folder, tasks, tmp_path, alive, until, number, code):
    """No process and no file is left."""
    (tmp_path / "hanging.py").write_text(HANGING.format(tasks=str(tasks)))
    program = check(numpy_folder, tmp_path / "hanging.py", **NUMPY)
    logs = program.folder / "logs"
    until(lambda: any("MODEL LOADED" in path.read_text() for path in logs.glob("*.log")), "a restored model")
    pids = program.children()
    done = program.end(number, seconds=20)
    assert done.code == code
    assert "Traceback" not in done.err
    until(lambda: not alive(pids), "the worker's end", 10)
    assert list((tmp_path / "tmp").iterdir()) == []
