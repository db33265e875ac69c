"""Show what the user may write, how it is found, and how mistakes in it are told; without any framework."""

import sys
from dataclasses import dataclass

import numpy as np
import pytest

from sidecar import EvalSet, Task
from sidecar.errors import TaskError
from sidecar.evaluation.task import MAX_EVAL_SETS, call


def good(**changes):
    return Task(**{"build_model": print, "eval_sets": {"test": print}} | changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"build_model": None}, "Task(build_model=None) needs metrics or loss, since a stored graph has none"),
        (
            {"build_model": None, "loss": 1, "restore": print},
            "Task(restore=…) is for the model of build_model",
        ),
        ({"build_model": None, "loss": 1, "checkpoint": print}, "Task(checkpoint=…) is for the model of build_model"),
        ({"signature": ""}, "Task(signature='') must be the name of a SavedModel's signature"),
        ({"signature": None}, "Task(signature=None)"),
        ({"build_model": 3}, "Task(build_model=…) must be a function, found 3"),
        ({"metrics": ["accuracy"]}, "Task(metrics=…) must be a function, found ['accuracy']: write lambda: …"),
        ({"checkpoint": 5}, "Task(checkpoint=…) must be a function, found 5"),
        ({"restore": 1}, "Task(restore=…) must be a function, found 1"),
        ({"ignore": "lora_"}, "Task(ignore='lora_') must be a list: write ignore=['lora_']"),
        ({"ignore": [""]}, "Task(ignore=['']) must be a list of names"),
        ({"from_build_model": 3}, "Task(from_build_model=3) must be a list of names"),
        ({"build_model": None, "loss": 1, "ignore": ["a"]}, "Task(ignore=…) is for the model of build_model"),
        ({"eval_sets": {}}, "Task(eval_sets=…) must map 1 to 64 names to data, found {}"),
        ({"eval_sets": print}, "must map 1 to 64 names to data"),
        ({"eval_sets": {f"{n}": print for n in range(MAX_EVAL_SETS + 1)}}, "must map 1 to 64 names to data"),
        ({"eval_sets": {"": print}}, "a name must be a text of at least one character, found ''"),
        ({"eval_sets": {7: print}}, "a name must be a text of at least one character, found 7"),
        ({"eval_sets": {"test": [1]}}, "must be a function or an EvalSet, found list: write lambda: data"),
        (
            {"eval_sets": {"full": EvalSet(print, every_nth=2), "other": EvalSet(print, every_nth=3)}},
            "every set has every_nth above 1, so nothing would be measured for some checkpoints: leave every_nth out",
        ),
        ({"batch_size": 0}, "Task(batch_size=0) must be a number from 1, or None for batched data"),
        ({"batch_size": "8"}, "Task(batch_size='8')"),
        ({"batch_size": True}, "Task(batch_size=True)"),
    ],
)
def test_mistakes_in_a_task(changes, words):
    """Each names the argument, the value and what to write."""
    with pytest.raises(TaskError) as caught:
        good(**changes)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"source": [1]}, "EvalSet(source=…) must be a function, found [1]"),
        ({"source": print, "prepare": 1}, "EvalSet(prepare=…) must be a function of one element, found 1"),
        ({"source": print, "examples": 0}, "EvalSet(examples=0) must be a number from 1"),
        ({"source": print, "examples": 1.5}, "EvalSet(examples=1.5)"),
        ({"source": print, "every_nth": 0}, "EvalSet(every_nth=0) must be a number from 1; 1 means every evaluation"),
        ({"source": print, "every_nth": None}, "EvalSet(every_nth=None)"),
        ({"source": print, "every_nth": True}, "EvalSet(every_nth=True)"),
        ({"source": print, "nonfinite": True}, "EvalSet(nonfinite=True) must be 'count', 'refuse' or 'allow'"),
        ({"source": print, "metrics": [1]}, "EvalSet(metrics=…) must be a function, found [1]: write lambda: …"),
        ({"source": print, "step": 1}, "EvalSet(step=…) must be a function, found 1"),
    ],
)
def test_mistakes_in_an_eval_set(arguments, words):
    """The same for its parts."""
    with pytest.raises(TaskError) as caught:
        EvalSet(**arguments)
    assert words in str(caught.value)


@pytest.mark.parametrize("make", [EvalSet, lambda data: good(eval_sets=data), lambda data: good(predictions=data)])
def test_a_mistake_that_holds_data_is_one_line(make):
    """Data in place of a function are the mistake of every second beginner; the line to write is not below them."""
    with pytest.raises(TaskError) as caught:
        make((np.zeros((400, 5)), np.zeros(400)))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_every_set_in_its_long_form():
    """Functions become EvalSets, in the order given."""
    longer = EvalSet(print, examples=3)
    sets = good(eval_sets={"b": print, "a": longer}).sets()
    assert list(sets) == ["b", "a"]
    assert sets["b"] == EvalSet(print)
    assert sets["a"] is longer


def test_a_set_with_its_own_measurement_needs_none_of_the_task():
    """Each set must have something; a step is for PyTorch, a loss for models that are restored."""
    own = EvalSet(print, metrics=list)
    assert good(build_model=None, eval_sets={"a": own}).of_set("a").metrics is list
    with pytest.raises(TaskError, match="needs metrics or loss"):
        good(build_model=None, eval_sets={"a": own, "b": print})
    with pytest.raises(TaskError, match=r"'b': EvalSet\(loss=….*give metrics"):
        good(build_model=None, load=print, predict=print, eval_sets={"a": own, "b": EvalSet(print, loss=print)})
    task = good(eval_sets={"a": own, "b": EvalSet(print, step=max), "c": print}, loss=print, step=min)
    assert [(one.metrics, one.loss, one.step) for one in map(task.of_set, "abc")] == [
        (list, None, min),
        (None, print, max),
        (None, print, min),
    ]
    assert task.of_set("c") is task
    for name, words in ("keras", r"Task\(step=….*'keras'"), ("python", "'python'"):
        with pytest.raises(TaskError, match=words):
            task.require_no_steps(name)


def test_no_framework_is_imported():
    """`from sidecar import Task` is light; the worker's framework-free modules are, too."""
    import subprocess

    modules = "sidecar, sidecar.evaluation.task, sidecar.daemon.workers.pool, sidecar.commands.one_shot"
    code = f"import {modules}, sys; print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True)
    assert not {"tensorflow", "keras", "torch", "numpy"} & set(eval(done.stdout))


def test_functions_that_cannot_be_hashed_are_called_too():
    """An object of a class with `__eq__` alone, such as many data classes."""

    @dataclass
    class Scale:
        factor: int

        def __call__(self, x):
            return self.factor * x

    assert call("f", Scale(2), 3) == 6
    with pytest.raises(TaskError, match="called with int and int"):
        call("f", Scale(2), 3, 4)


@pytest.mark.parametrize(
    ("goals", "words"),
    [
        (["test/a"], "test/score"),
        ({"test/a": "up"}, "'up'"),
        ({"a": "max"}, "'a'.*'test/score'"),
        ({"other/a": "max"}, "'other/a'.*test, play"),
        ({3: "max"}, "EVAL_SET/METRIC"),
    ],
)
def test_goals_are_those_of_the_tasks_own_sets(goals, words):
    """A wrong name would be silent: the number would have no direction."""
    arguments = {"load": len, "predict": len, "metrics": list, "batch_size": 8, "eval_sets": {"test": len}}
    with pytest.raises(TaskError, match=words):
        Task(**arguments, evaluate={"play": len}, goals=goals)
    assert Task(**arguments, evaluate={"play": len}, goals={"test/a": "max", "play/b/c": "min"})
