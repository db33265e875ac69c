"""Find mistakes in the text of a task before anything is imported."""

from pathlib import Path

import pytest

from sidecar.commands.task_file import check_task
from sidecar.errors import TaskError

TASK = "from sidecar import Task\n\ndef task():\n    return Task(None, {})\n"


@pytest.fixture
def here(tmp_path):
    """A directory with a task in it."""
    (tmp_path / "my_eval.py").write_text(TASK)
    return tmp_path


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        ("my_evil.py:task", ("there is no file", "did you mean my_eval.py?")),
        ("nowhere/my_eval.py:task", ("there is no file", "there is no directory")),
        ("my_eval.py:tusk", ("has no 'tusk'", "did you mean task?")),
        ("my_eval.py:quite_another", ("has no 'quite_another'", "it defines task")),
        ("my_evil:task", ("there is no module 'my_evil'",)),
        ("my_eval:tusk", ("has no 'tusk'",)),
    ],
)
def test_a_typo_is_found_in_the_text(here, reference, told):
    """The file, the name in it and the module are looked for; nothing is imported."""
    with pytest.raises(TaskError) as caught:
        check_task(reference, here, same_python=True)
    assert all(part in str(caught.value) for part in (reference, *told))


def test_a_syntax_error_is_told_with_its_line(here):
    """Another Python may know another syntax, so it is the worker's to judge then."""
    (here / "my_eval.py").write_text("def task(:\n    pass\n")
    with pytest.raises(TaskError, match=r"my_eval\.py, line 1\b.*def task\(:"):
        check_task("my_eval.py:task", here, same_python=True)
    check_task("my_eval.py:task", here, same_python=False)


@pytest.mark.parametrize(
    "text",
    [
        "from other import *\n",
        "globals()['task'] = 1\n",
        "import sys\nsys.modules[__name__].task = 1\n",
        "def __getattr__(name):\n    return 1\n",
        "if True:\n    from other import make as task\n",
        "for task in (1, 2):\n    pass\n",
        "def make():\n    global task\n    task = 1\n",
        "(task := 1)\n",
        "with open('x') as task:\n    pass\n",
        "import task.inner\n",
        "\x00",
    ],
)
def test_what_the_text_does_not_tell_is_left_to_the_worker(here, text):
    """A name that could be bound in any way is no typo."""
    (here / "my_eval.py").write_text(text)
    check_task("my_eval.py:task", here, same_python=False)


def test_installed_and_nested_modules_are_found(here):
    """A module of the environment, of another interpreter, or of a package in the directory."""
    package = here / "evals" / "deep"
    package.mkdir(parents=True)
    (package / "one.py").write_text(TASK)
    check_task("evals.deep.one:task", here, same_python=True)
    check_task("json:anything", here, same_python=True)
    check_task("of_another_python:task", here, same_python=False)
    with pytest.raises(TaskError, match=r"one\.py.*'tusk'"):
        check_task("evals.deep.one:tusk", here, same_python=True)


def test_a_path_may_begin_at_home(here, monkeypatch):
    """As the worker process reads it."""
    monkeypatch.setenv("HOME", str(here))
    check_task("~/my_eval.py:task", Path("/"), same_python=True)
