"""Describe plain Python, and refuse tasks of another framework."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from evaluation.backends.python.tasks import (
    task,
)

from sidecar import Task
from sidecar.errors import TaskError
from sidecar.evaluation.backend import backend
from sidecar.evaluation.framework_traits import traits_of
from sidecar.protocol.messages import Check


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"load": None}, "give load"),
        ({"predict": None}, "give predict"),
        ({"metrics": None}, "needs metrics"),
        ({"build_model": print}, "Task(build_model=…)"),
        ({"loss": print}, "Task(loss=…)"),
        ({"load": 5}, "Task(load=…)"),
    ],
)
def test_a_task_says_one_thing(changes, words):
    with pytest.raises(TaskError) as caught:
        task(**changes)
    assert words in str(caught.value)


def test_a_task_is_of_one_framework():
    traits_of("python").require(task())
    traits_of("tensorflow").require(Task(print, {"test": print}))
    for wrong, framework in ((task(), "tensorflow"), (Task(print, {"test": print}), "python")):
        with pytest.raises(TaskError) as caught:
            traits_of(framework).require(wrong)
        assert "framework = 'python'" in str(caught.value)


def test_no_framework_is_imported():
    """Unless the task does: a worker process is ready in a fraction of a second."""
    program = "import sys, sidecar.evaluation.dispatcher as _; from sidecar.evaluation.backend import backend; "
    program += "backend('python'); import sidecar.metrics; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    imported = {name.partition(".")[0] for name in done.stdout.split()}
    assert "numpy" in imported
    assert imported.isdisjoint({"tensorflow", "keras", "tf_keras", "torch", "jax", "sklearn", "h5py", "joblib"})


def test_the_profile_names_the_libraries_that_compute():
    """Equal on every call, whatever was imported meanwhile."""
    made = backend("python")
    check = Check(task="t", framework="python", search_path=".", threads=2)
    profile = made.profile(check)
    assert f"numpy {np.__version__}" in profile["libraries"]
    assert profile["threads"] == "2"
    assert made.profile(check) == profile == backend("python").profile(replace(check, task="u"))
