"""Carry out commands of a daemon in any order."""

import gc
import threading
from dataclasses import replace

import pytest
from evaluation.fake_framework import (
    STREAM,
    FakeBackend,
    FakeEvaluator,
    evaluation_of,
    join_of,
)

from sidecar.evaluation import failures
from sidecar.evaluation.backend import backend
from sidecar.evaluation.data.opened_files import OpenedFiles
from sidecar.evaluation.dispatcher import Dispatcher
from sidecar.evaluation.failures import EvaluationError
from sidecar.protocol.messages import Check, Done, Failed, Joined, Phase, Progress, Ready
from sidecar.protocol.states import WorkerPhase


def test_a_task_whose_data_changed_is_built_anew(tmp_path, monkeypatch):
    """If a sample of them differs, or a file from which they were read."""
    monkeypatch.setattr(gc, "unfreeze", lambda: None)  # collections would go through the objects of all other tests
    (tmp_path / "a_task.py").write_text("from sidecar import Task\ntask = Task(print, {'test': print})\n")
    read_from = tmp_path / "data"
    read_from.write_text("x")

    class Building(FakeBackend):
        built, changes, refuses = 0, False, False

        def build(self, *_):
            """Read the data file, and return the evaluator, unless the task refuses."""
            self.built += 1
            files.hear("open", (str(read_from), "r", 0))
            self.evaluator.differs = lambda changed: changed or self.changes
            self.changes = False
            with failures.following_from_code():
                if self.refuses:
                    raise TypeError("labels have another shape now")
            return self.evaluator

    reports, files, framework = [], OpenedFiles(), Building(FakeEvaluator((STREAM,), [1.0] * 5))
    commands = Dispatcher(framework, reports.append, files)
    commands.run(join_of(tmp_path))
    command = evaluation_of(tmp_path)
    for number, change in enumerate((None, "sample", None, "file", None)):
        framework.changes = change == "sample"
        if change == "file":
            read_from.write_text("another content")
        reports.clear()
        commands.run(replace(command, save_to=str(tmp_path / f"s{number}")))
        assert (Phase(WorkerPhase.BUILD, command.plan) in reports) == (change is not None)
        assert isinstance(reports[-1], Done)
    assert framework.built == 3
    framework.changes, framework.refuses = True, True
    commands.run(replace(command, save_to=str(tmp_path / "s9")))
    assert isinstance(reports[-1], Failed)
    assert (reports[-1].kind, reports[-1].lasting) == ("task_error", None)


def test_life_of_a_worker(commanded, tmp_path):
    """It joins, builds, and evaluates as often as it is told."""
    *phases, joined = commanded(join_of(tmp_path))
    assert phases == [Phase(WorkerPhase.JOIN), Phase(WorkerPhase.IMPORT), Phase(WorkerPhase.BUILD)]
    assert isinstance(joined, Joined)
    for _ in range(2):
        *rest, done = commanded(evaluation_of(tmp_path))
        assert isinstance(done, Done)
        assert all(isinstance(each, Phase | Progress) for each in rest)
    join = join_of(tmp_path)
    (failed,) = commanded(replace(join, group="h", threads=join.threads + 1))
    assert "cannot join h after g: a worker joins one group" in failed.message
    (failed,) = commanded(replace(join, group="h", members=(*join.members, replace(join.members[0], rank=1))))
    assert "cannot join h after g" in failed.message
    assert commanded(replace(join, group="h")) == [replace(joined, group="h")], "another run has the same task"
    assert isinstance(commanded(evaluation_of(tmp_path))[-1], Done)


@pytest.mark.parametrize("trusts", [False, True])
def test_what_stays_is_set_apart_before_a_stored_graph_comes(commanded, tmp_path, monkeypatch, trusts):
    """After the first evaluation; where graphs are trusted before it: what is frozen then would never be freed."""
    frozen = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(True))
    monkeypatch.setattr(FakeEvaluator, "loads_graphs", trusts)
    commanded(join_of(tmp_path))
    assert len(frozen) == trusts
    for _ in range(2):
        commanded(evaluation_of(tmp_path))
        assert len(frozen) == 1


def test_commands_out_of_order(commanded, tmp_path):
    """Evaluating before joining, and what is no command at all."""
    (failed,) = commanded(evaluation_of(tmp_path))
    assert (failed.kind, failed.plan) == ("join", 3)
    assert "cannot evaluate before the group is formed" in failed.message
    (failed,) = commanded(Ready("x", "1"))
    assert "Ready is not a command" in failed.message


@pytest.mark.parametrize("code", ["raise SystemExit(3)", "import sys; sys.exit('bye')", "raise RuntimeError('bye')"])
def test_task_that_ends_the_process(commanded, tmp_path, code):
    """An error that a task raises at import is reported with its traceback, even if the task calls sys.exit."""
    (tmp_path / "a_task.py").write_text(f"\n{code}\n")
    *_, failed = commanded(Check(task="a_task.py:task", framework="tensorflow", search_path=str(tmp_path), threads=1))
    assert isinstance(failed, Failed)
    assert (failed.kind, failed.phase) == ("task_error", "import")
    assert f'Traceback (most recent call last):\n  File "{tmp_path}/a_task.py", line 2, in <module>' in failed.message


def test_task_that_asks_for_options(commanded, tmp_path):
    """A training script that needs options of its command line: the message has the line that gives them."""
    script = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--data', required=True)\n"
    (tmp_path / "a_task.py").write_text(f"import sys\nsys.argv = ['x']\n{script}parser.parse_args()\n")
    *_, failed = commanded(Check(task="a_task.py:task", framework="tensorflow", search_path=str(tmp_path), threads=1))
    assert isinstance(failed, Failed)
    assert "SystemExit: 2" in failed.message
    assert 'above that import `import sys; sys.argv = ["train.py", "--option", "value"]`' in failed.message


def test_unknown_framework():
    """The table says which there are."""
    with pytest.raises(EvaluationError, match=r"'caffe'.*\btensorflow\b"):
        backend("caffe")


def test_all_evaluations_write_weights_in_one_thread(tmp_path):
    """A C library keeps an arena for each thread that ever wrote, with the buffers it freed there: 8 MB each time."""
    (tmp_path / "a_task.py").write_text("from sidecar import Task\ntask = Task(print, {'test': print})\n")
    evaluator, reports, threads = FakeEvaluator((STREAM,), [1.0] * 5), [], []
    evaluator.save_weights = lambda _: threads.append(threading.get_native_id())
    commands = Dispatcher(FakeBackend(evaluator), reports.append)
    commands.run(join_of(tmp_path))
    for number in range(3):
        save_to = str(tmp_path / f"plan-{number}")
        commands.run(replace(evaluation_of(tmp_path), save_to=save_to, save_weights="all"))
        assert isinstance(reports[-1], Done)
    assert (len(threads), len(set(threads))) == (3, 1)
