"""What the user may write, how it is found, and how mistakes in it are told; without any framework."""

import functools
import sys
from dataclasses import dataclass

import pytest

from sidecar import EvalSet, Shard, Task
from sidecar.errors import TaskError
from sidecar.evaluation.task import MAX_EVAL_SETS, call
from sidecar.evaluation.task_loader import load

TASK = "from sidecar import Task\nimport neighbour\ndef task():\n    return Task(lambda: 1, {'test': lambda: 2})\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with my_eval.py and neighbour.py; what is imported from it is forgotten afterwards."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    (tmp_path / "my_eval.py").write_text(TASK)
    (tmp_path / "neighbour.py").write_text("number = 1\n")
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def forget(*names):
    for name in names:
        sys.modules.pop(name, None)


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
    ],
)
def test_mistakes_in_an_eval_set(arguments, words):
    """The same for its parts."""
    with pytest.raises(TaskError) as caught:
        EvalSet(**arguments)
    assert words in str(caught.value)


def test_every_set_in_its_long_form():
    """Functions become EvalSets, in the order given."""
    longer = EvalSet(print, examples=3)
    sets = good(eval_sets={"b": print, "a": longer}).sets()
    assert list(sets) == ["b", "a"]
    assert sets["b"] == EvalSet(print)
    assert sets["a"] is longer


def test_each_set_takes_part_in_its_own_rhythm():
    """All of them in the first evaluation, then each in every nth."""
    task = good(eval_sets={"big": EvalSet(print, every_nth=3), "test": print, "half": EvalSet(print, every_nth=2)})
    assert [list(task.sets(evaluated)) for evaluated in range(7)] == [
        *(["big", "test", "half"], ["test"], ["test", "half"], ["big", "test"], ["test", "half"], ["test"]),
        ["big", "test", "half"],
    ]


def read(split):
    return split


@pytest.mark.parametrize(
    ("source", "shards_itself"),
    [
        (lambda: 1, False),
        (lambda shard: shard, True),
        (lambda anything: anything, True),
        (lambda split="test": split, False),
        (lambda split="test", *, shard=None: (split, shard), True),
        (lambda *_, **__: 1, False),
        (functools.partial(read, "test"), False),
        (functools.partial(read, split="test"), False),
        (dict, False),
    ],
)
def test_who_wants_to_know_the_shard(source, shards_itself):
    """A source with a parameter that must be given, or one named `shard`; defaults and partials are no such wish."""
    assert EvalSet(source).shards_itself == shards_itself


def test_shard():
    """Batch b belongs to rank b mod n."""
    assert [batch for batch in range(7) if Shard(1, 3).owns(batch)] == [1, 4]


def test_module_and_file(folder):
    """`module:attr` is found in the folder, `path/file.py:attr` relative to it; neighbours can be imported."""
    by_module = load("my_eval:task", str(folder))
    forget("my_eval", "neighbour")
    by_file = load("my_eval.py:task", str(folder))
    assert isinstance(by_module.task, Task)
    assert by_module.digest == by_file.digest
    forget("my_eval", "neighbour")
    assert load(f"{folder}/my_eval.py:task", "/").digest == by_file.digest


def test_a_task_itself_will_do(folder):
    """The attribute may be a Task instead of a function that returns one."""
    (folder / "my_eval.py").write_text(TASK + "made = task()\n")
    assert load("my_eval.py:made", str(folder)).task.batch_size is None


def test_digest_is_of_the_code(folder):
    """It changes with the task's file, a neighbour that it imports, and the attribute; not with other files."""

    def digest(attribute="task"):
        forget("my_eval", "neighbour")
        return load(f"my_eval.py:{attribute}", str(folder)).digest

    first = digest()
    (folder / "unrelated.py").write_text("x = 1\n")
    assert digest() == first
    (folder / "neighbour.py").write_text("number = 22\n")
    second = digest()
    (folder / "my_eval.py").write_text(TASK + "other = task\n")
    third = digest()
    assert len({first, second, third, digest("other")}) == 4


def test_digest_sees_through_links(folder):
    """A ConfigMap is a folder of links to the files of its newest version, which lie in a folder of their own."""
    mounted = folder / "mounted"
    (mounted / "..1").mkdir(parents=True)
    (mounted / "..data").symlink_to("..1")
    for name in ("my_eval.py", "neighbour.py"):
        (folder / name).rename(mounted / "..1" / name)
        (mounted / name).symlink_to(f"..data/{name}")

    def digest():
        forget("my_eval", "neighbour")
        return load("my_eval.py:task", str(mounted)).digest

    first = digest()
    (mounted / "..1" / "neighbour.py").write_text("number = 22\n")
    assert digest() != first


def test_task_file_named_like_a_library(folder):
    """A task file `json.py` is loaded, and does not replace what others know by that name."""
    import json

    (folder / "json.py").write_text(TASK)
    assert isinstance(load("json.py:task", str(folder)).task, Task)
    assert sys.modules["json"] is json


@pytest.mark.parametrize("reference", ["my_eval.py", "task", ":task", "my_eval:", ""])
def test_reference_of_another_form(folder, reference):
    """What to write."""
    with pytest.raises(TaskError, match=rf"'{reference}'.*module:attr or path/file\.py:attr"):
        load(reference, str(folder))


def test_missing_file_module_and_attribute(folder):
    """Where it was looked for, and what is there instead."""
    with pytest.raises(TaskError, match=rf"\bfile {folder}/nothing\.py"):
        load("nothing.py:task", str(folder))
    with pytest.raises(TaskError, match=rf"module 'nothing'.*{folder}.*{sys.executable}"):
        load("nothing:task", str(folder))
    with pytest.raises(TaskError, match=r"module 'my_eval\.deeper'"):
        load("my_eval.deeper:task", str(folder))
    with pytest.raises(TaskError, match=r"my_eval\.py .*'tusk'.*Task, neighbour, task\b"):
        load("my_eval.py:tusk", str(folder))


@pytest.mark.parametrize(("code", "found"), [("task = 7", "int 7"), ("def task(): return None", "NoneType None")])
def test_something_else(folder, code, found):
    """What was found instead of a Task."""
    (folder / "my_eval.py").write_text(code)
    with pytest.raises(TaskError) as caught:
        load("my_eval.py:task", str(folder))
    assert f"expected a sidecar.Task or a function that returns one, found {found!r}".replace("'", "") in str(
        caught.value
    ).replace("'", "")


def test_users_exceptions_are_let_through(folder):
    """Raised at import, by a missing module of the task's own imports, or by the function: the user's, not ours."""
    (folder / "my_eval.py").write_text("raise OSError('no data here')")
    for reference in ("my_eval.py:task", "my_eval:task", "my_eval.py:task"):
        with pytest.raises(OSError, match="no data here"):
            load(reference, str(folder))
        assert "my_eval" not in sys.modules
    (folder / "my_eval.py").write_text("import not_installed")
    with pytest.raises(ModuleNotFoundError, match="not_installed"):
        load("my_eval:task", str(folder))
    (folder / "my_eval.py").write_text("def task(): return {}['key']")
    with pytest.raises(KeyError, match="key"):
        load("my_eval.py:task", str(folder))


def test_no_framework_is_imported():
    """`from sidecar import Task` is light; the worker's framework-free modules are, too."""
    import subprocess

    modules = "sidecar, sidecar.evaluation.task, sidecar.daemon.workers.pool, sidecar.commands.one_shot"
    code = f"import {modules}, sys; print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
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
