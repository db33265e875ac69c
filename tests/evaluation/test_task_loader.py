"""Import the module of a task, name mistakes in it, and digest its code."""

import sys

import pytest

from sidecar import Task
from sidecar.errors import TaskError
from sidecar.evaluation.task_loader import load

TASK = "from sidecar import Task\nimport neighbour\ndef task():\n    return Task(lambda: 1, {'test': lambda: 2})\n"


@pytest.fixture
def folder(tmp_path):
    """A folder with my_eval.py and neighbour.py; what is imported from it is forgotten afterwards."""
    before = set(sys.modules)
    (tmp_path / "my_eval.py").write_text(TASK)
    (tmp_path / "neighbour.py").write_text("number = 1\n")
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def forget(*names):
    for name in names:
        sys.modules.pop(name, None)


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
    """Name the line to write."""
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
    """Name the object that was found instead of a Task."""
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
