"""`sidecar eval`: one checkpoint, once, here, and what it says when that cannot be."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import urllib.request
import venv
from pathlib import Path

import pytest
from numpy_trainer import NUMPY

import sidecar
import sidecar.results
from sidecar.errors import SettingsError

FAILED, MISUSED, TASK, INTERRUPTED = 1, 2, 3, 130


@pytest.fixture(scope="module")
def keras_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("keras") / "ckpts"


@pytest.fixture(scope="module")
def keras_saved(writer, keras_folder):
    return writer.save(keras_folder, 5, 10)


@pytest.fixture(scope="module")
def once_keras(sidecar, keras_saved, keras_folder, tasks):
    """Starts an evaluation of the newest checkpoint of Keras."""
    path = keras_folder / keras_saved[-1]["name"]

    def start(task, *options, **environ):
        return sidecar.start("eval", path, "--task", f"{tasks}/{task}", *options, **environ)

    return start


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("numpy") / "ckpts"


@pytest.fixture(scope="module")
def saved(numpy_trainer, folder):
    return numpy_trainer.save(folder, 5, 10)


@pytest.fixture(scope="module")
def once(sidecar, saved, folder, tasks):
    """Starts an evaluation of the newest checkpoint of numpy."""
    path = folder / saved[-1]["name"]

    def start(task, *options, **environ):
        return sidecar.start("eval", path, "--task", f"{tasks}/{task}", *options, **NUMPY, **environ)

    return start


@pytest.mark.parametrize(
    ("start", "made", "task"),
    [
        ("once", "saved", "numpy_plain.py:task"),
        pytest.param(
            *("once_keras", "keras_saved", "plain.py:task"), marks=[pytest.mark.tensorflow, pytest.mark.nightly]
        ),
    ],
    ids=["numpy", "keras"],
)
def test_people_get_a_table(request, start, made, task):
    """Numbers, how many examples, who saved where; nothing on standard error, and no journal."""
    newest = request.getfixturevalue(made)[-1]
    program = request.getfixturevalue(start)(task)
    done = program.wait()
    assert (done.code, done.said) == (0, "")
    accuracy = newest["correct"] / newest["examples"]
    assert re.search(rf"accuracy\s+│\s+{accuracy:.5g}", done.out)
    assert "103 examples of test; 1 worker" in done.out
    assert program.children() == []


def test_no_such_checkpoint(sidecar, saved, folder, tasks):
    """Those that are there are listed, and nothing is started."""
    done = sidecar.command("eval", folder / "model-77.npz", "--task", f"{tasks}/numpy_plain.py:task", **NUMPY)
    assert done.code == MISUSED
    assert done.sentence == f"sidecar: there is no checkpoint model-77.npz in {folder}; found: " + ", ".join(
        sorted(each["name"] for each in saved)
    )


def test_a_directory_means_its_newest(sidecar, saved, folder, tasks):
    """The checkpoint is named, on standard error."""
    done = sidecar.start("eval", folder, "--task", f"{tasks}/numpy_plain.py:task", "--json", **NUMPY).wait()
    assert done.code == 0, done.err
    assert json.loads(done.out)["checkpoint"] == saved[-1]["name"]
    assert done.sentence == f"sidecar: {saved[-1]['name']} is evaluated, the newest of {len(saved)} in {folder}"


def test_a_program_gets_the_result_as_plain_values(sidecar, saved, folder, tasks, tmp_path):
    """`sidecar.evaluate` returns what the command prints, of as many workers as it is asked for."""
    task = f"{tasks}/numpy_plain.py:task"
    code = (
        "import json, sys, sidecar\n"
        "given = dict(save_dir=sys.argv[3], replicas=2, framework='python', checkpoint_pattern='model-*.npz')\n"
        "print(json.dumps(sidecar.evaluate(sys.argv[1], sys.argv[2], **given)))"
    )
    words = [sys.executable, "-c", code, task, folder, tmp_path / "saves"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=True)
    found = json.loads(done.stdout)
    printed = json.loads(sidecar.command("eval", folder, "--task", task, "--json", **NUMPY).out)
    assert found["metrics"] == printed["metrics"]
    assert (found["workers"], found["checkpoint"]) == (2, saved[-1]["name"])
    assert [Path(each).parent for each in found["saves"]] == [tmp_path / "saves"] * 2
    words[3] = "no_such.py:task"
    failed = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    assert failed.stderr.splitlines()[-1].startswith("sidecar.errors.TaskError: ")


def test_a_daemon_beside_a_program(numpy_trainer, tasks, tmp_path):
    """`sidecar.Daemon` evaluates what the block saves, and all of it is evaluated when the block ends."""
    folder = tmp_path / "ckpts"
    settings = {"framework": "python", "checkpoint_pattern": "model-*.npz", "role": "worker"}
    settings |= {"task": f"{tasks}/numpy_plain.py:task"}
    with sidecar.Daemon(folder, **settings) as daemon:
        saved = [each["name"] for each in numpy_trainer.save(folder, 5, 10)]
        assert daemon.url.startswith("http://127.0.0.1:")
        assert daemon.status()["run"] == "ckpts"
    assert [*dict.fromkeys(each["checkpoint"] for each in sidecar.results.history(folder))] == saved
    assert [path.name for path in folder.glob(".sidecar-done-*")] == []
    urls = []
    with contextlib.suppress(ZeroDivisionError), sidecar.Daemon(folder, **settings) as daemon:
        urls.append(daemon.url)
        raise ZeroDivisionError
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(urls[0], timeout=60)


@pytest.mark.parametrize(
    ("given", "shown"), [({"replicas": 0}, "replicas"), ({"no_such_setting": 1}, "no.such.setting")]
)
def test_a_daemon_that_cannot_start(tmp_path, given, shown):
    """The error is the sentence that the command prints."""
    with pytest.raises(SettingsError, match=shown), sidecar.Daemon(tmp_path, **given):
        pass


BESIDE = """
from pathlib import Path

import numpy as np

from sidecar import Task
from sidecar.metrics import Accuracy


def load(path):
    return Path(path).with_name("vocab.txt").read_text()


def examples():
    return np.eye(3), np.arange(3)


task = Task(load=load, predict=lambda _, x: x, eval_sets={"test": examples}, metrics=lambda: [Accuracy()], batch_size=3)
"""


@pytest.mark.parametrize("command", ["eval", "check"])
def test_a_task_that_reads_a_file_next_to_the_checkpoint_fails_as_in_a_daemon(
    sidecar, numpy_trainer, tmp_path, command
):
    """A daemon loads from a pin, where there is no such file. The message says what to write."""
    numpy_trainer.save(tmp_path / "ckpts", 5)
    (tmp_path / "ckpts" / "vocab.txt").write_text("a")
    (tmp_path / "beside.py").write_text(BESIDE)
    done = sidecar.command(command, tmp_path / "ckpts", "--task", f"{tmp_path}/beside.py:task", **NUMPY)
    assert done.code == FAILED, done.out
    assert "Path(__file__).parent / 'vocab.json'" in done.out + done.err
    assert list((tmp_path / "ckpts").glob(".sidecar/*/.checkpoint-*")) == []


@pytest.fixture(scope="module")
def with_final(numpy_trainer, tmp_path_factory):
    """A model every five rounds, and the final one, written last and without a number."""
    folder = tmp_path_factory.mktemp("rounds") / "ckpts"
    for step, at in ((5, 1_000), (10, 2_000), (15, 3_000)):
        numpy_trainer.save(folder, step)
        os.utime(folder / f"model-{step}.npz", (at, at))
    (folder / "model-15.npz").rename(folder / "model-final.npz")
    return folder


@pytest.mark.parametrize(
    ("words", "replicas"),
    [(("",), "3"), (("model-final.npz",), "1"), pytest.param(("",), "2", marks=pytest.mark.nightly)],
    ids=["directory", "file", "two workers"],
)
@pytest.mark.drawn(1)
def test_the_file_that_was_written_last_is_the_newest(sidecar, with_final, tasks, words, replicas):
    """If its step cannot be compared. It has a place in the order, no step, as in a run."""
    task = ("--task", f"{tasks}/numpy_plain.py:task", "--replicas", replicas)
    done = sidecar.command("eval", with_final.joinpath(*words), "--json", *task, **NUMPY)
    found = json.loads(done.out)
    assert (found["checkpoint"], found["step"], found["step_source"]) == ("model-final.npz", 1, "order")
    done = sidecar.command("eval", with_final.joinpath(*words), *task, **NUMPY)
    assert "model-final.npz, step #1" in done.out


def test_a_run_shows_the_same_order(sidecar, with_final, tasks):
    """The newest is the last, and its place in the order is not shown as a step."""
    task = ("--task", f"{tasks}/numpy_plain.py:task")
    done = sidecar.command("run", with_final, "--once", *task, **NUMPY | {"SIDECAR_LOG_FORMAT": "console"})
    assert done.code == 0, done.err
    shown = re.findall(r"(model-\S+) \(step (\S+)\): accuracy", done.err)
    assert shown == [("model-5.npz", "5"), ("model-10.npz", "10"), ("model-final.npz", "#1")]


def test_a_step_is_found_by_comparing_names(sidecar, numpy_trainer, tasks, tmp_path):
    """Also if a file is named: `run` calls the number of `rank-15` a step because it differs between names."""
    for step in (5, 15):
        numpy_trainer.save(tmp_path, step)
        (tmp_path / f"model-{step}.npz").rename(tmp_path / f"rank-{step}.npz")
    asked = NUMPY | {"SIDECAR_CHECKPOINT_PATTERN": "rank-*.npz"}
    words = ("--json", "--task", f"{tasks}/numpy_plain.py:task")
    for path in (tmp_path, tmp_path / "rank-15.npz"):
        found = json.loads(sidecar.command("eval", path, *words, **asked).out)
        assert (found["checkpoint"], found["step"], found["step_source"]) == ("rank-15.npz", 15, "name")


@pytest.mark.nightly
@pytest.mark.tensorflow
def test_another_model(once_keras):
    """The error names the part of the model that does not fit the checkpoint."""
    done = once_keras("other_model.py:task").wait()
    assert done.code == FAILED
    assert done.said.startswith("sidecar: mismatch")
    assert "Traceback" not in done.said
    assert re.search(r"logs of the worker processes: .*\.log", done.said)
    assert re.search(r"kernel|dense|\(4, 99\)", done.said)


@pytest.mark.parametrize(
    ("task", "told"),
    [
        ("nowhere.py:task", "there is no file"),
        ("stranger.py:task", "expected a sidecar.Task"),
        ("raises.py:task", "KeyError: 'heavy'"),
    ],
)
def test_an_unusable_task(once, task, told):
    """The same exit code and reason as of `sidecar run`."""
    done = once(task).wait()
    assert done.code == TASK
    assert told in done.said
    assert "sidecar/evaluation" not in done.said


@pytest.mark.tensorflow
def test_an_incomplete_checkpoint(sidecar, keras_saved, keras_folder, tasks, tmp_path):
    """A shard is missing: said at once, without starting anything."""
    index = keras_folder / f"{keras_saved[0]['name']}.index"
    (tmp_path / index.name).write_bytes(index.read_bytes())
    done = sidecar.command("eval", tmp_path / index.stem, "--task", f"{tasks}/plain.py:task")
    assert done.code == FAILED
    assert done.sentence == f"sidecar: {index.stem}.data-00000-of-00001 is missing"


@pytest.mark.nightly
@pytest.mark.tensorflow
def test_a_stored_graph(sidecar, writer, tasks, tmp_path):
    """Without the code of its model, where stored graphs are trusted, with the numbers of Keras."""
    (exported,) = writer.save(tmp_path / "ckpts", 60, form="-exported")
    words = ("eval", tmp_path / "ckpts" / exported["name"], "--task", f"{tasks}/graph_only.py:task", "--json")
    done = sidecar.start(*words, SIDECAR_TRUST_SAVED_GRAPH="true").wait()
    assert done.code == 0, done.err
    found = json.loads(done.out)["metrics"]["test"]
    assert found["accuracy"]["value"] == exported["correct"] / exported["examples"]
    assert found["loss"]["value"] == pytest.approx(exported["loss"], rel=0.01)  # of probabilities, which Keras clips


@pytest.mark.tensorflow
def test_check_of_a_task_without_a_model(sidecar, tasks, tmp_path):
    """It can evaluate stored graphs alone, so these must be trusted."""
    (tmp_path / "ckpts").mkdir()
    words = ("check", "--checkpoint-dir", tmp_path / "ckpts", "--role", "worker", "--task")
    told = " ".join(sidecar.start(*words, f"{tasks}/graph_only.py:task").wait().out.split())
    assert "FAIL task" in told
    assert "Task(build_model=None) can evaluate only stored graphs: set trust_saved_graph = true" in told
    assert "ok graphs" not in told


@pytest.mark.tensorflow
def test_ctrl_c_ends_it_at_once(once_keras, alive, until):
    """Exit code 130, no process left, no traceback."""
    program = once_keras("slow.py:task", "--replicas", 2)
    logs = program.folder / "logs"
    until(lambda: sum("MODEL BUILT" in path.read_text() for path in logs.glob("*.log")) == 2, "two models")
    pids = program.children()
    done = program.end(signal.SIGINT, seconds=5)
    assert done.code == INTERRUPTED
    assert "Traceback" not in done.err
    assert len(pids) == 4  # two workers, and the guard of each
    until(lambda: not alive(pids), "the workers' end", 5)


def test_an_exception_on_one_rank(once):
    """The traceback of the rank that failed is the reason, whatever the other rank loses by it; both are gone."""
    program = once("numpy_faulty.py:task", "--replicas", 2, FAULT="raise")
    done = program.wait()
    assert done.code == FAILED
    assert done.said.startswith("sidecar: task_error (rank 1, ")
    assert "ValueError: example 32 is unreadable" in done.said
    assert "numpy_faulty.py" in done.said
    assert "sidecar/evaluation" not in done.said
    assert re.search(r"logs of the worker processes: .*\.log", done.said)
    assert program.children() == []


def test_data_that_hang(once):
    """Only the time limit tells, since the process itself is well."""
    done = once("numpy_faulty.py:task", FAULT="hang", SIDECAR_STALL_SECONDS="1", SIDECAR_STALL_FACTOR="5").wait()
    assert done.code == FAILED
    assert re.search(r"stalled.*\bevaluate\b", done.said)
    assert "s allowed" in done.said


def test_workers_run_under_another_interpreter(once, saved, tmp_path):
    """`worker_python` needs the libraries of the task alone: this package comes with the daemon."""
    venv.create(tmp_path / "venv", symlinks=True, with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    scheme = {"base": str(tmp_path / "venv"), "platbase": str(tmp_path / "venv")}
    own = sysconfig.get_path("purelib", vars=scheme)
    # A line of a .pth file adds a folder, but not what that folder's own .pth files add: this package is not among it.
    Path(own, "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    without = subprocess.run(
        [python, "-P", "-c", "import sidecar"], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    if "No module named 'sidecar'" not in without.stderr:
        pytest.skip("this package is installed next to numpy, not editable")
    done = once("numpy_plain.py:task", "--json", SIDECAR_WORKER_PYTHON=str(python)).wait()
    assert done.code == 0, done.err
    value = json.loads(done.out)["metrics"]["test"]["accuracy"]["value"]
    assert value == saved[-1]["correct"] / saved[-1]["examples"]
    assert str(python) != sys.executable


@pytest.mark.tensorflow
def test_an_interpreter_without_the_framework(once_keras, tmp_path):
    """The error names the missing module, the interpreter and the setting that chose it."""
    venv.create(tmp_path / "venv", symlinks=True, with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    done = once_keras("plain.py:task", SIDECAR_WORKER_PYTHON=str(python)).wait()
    assert done.code == FAILED
    assert f"{python} has no module" in done.sentence
    assert "worker_python" in done.sentence
