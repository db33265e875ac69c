"""Answers of a model are programs that a function of the user's runs; without the harness."""

import itertools
import subprocess
import sys
import threading
from functools import partial

import pytest

from sidecar.errors import TaskError
from sidecar.evaluation.failures import EvaluationError
from sidecar.lm import harness
from sidecar.lm.pass_at_k import estimate, pass_at_k

DOCUMENT = {"prompt": "def add(a, b):\n", "test": "assert add(2, 3) == 5"}


def run_code(answer, document, timeout=30):
    """Run the program in a process of its own, without a sandbox."""
    words = (sys.executable, "-ISc", document["prompt"] + answer + "\n" + document["test"])
    try:
        return subprocess.run(words, capture_output=True, timeout=timeout, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


@pytest.mark.parametrize(("answers", "passed", "k"), list(itertools.product([1, 4, 6], [0, 1, 3, 4, 6], [1, 2, 4, 6])))
def test_the_estimate_is_that_of_all_choices(answers, passed, k):
    """Choices of k answers are counted one by one."""
    if passed > answers or k > answers:
        return
    judged = [True] * passed + [False] * (answers - passed)
    choices = list(itertools.combinations(judged, k))
    assert estimate(answers, passed, k) == sum(map(any, choices)) / len(choices)


def test_large_numbers_of_answers_have_an_estimate():
    """Where the numbers of choices are larger than a float."""
    assert estimate(5000, 1, 2500) == 0.5


@pytest.mark.parametrize(
    ("answer", "passes"),
    [("    return a + b", True), ("    return a * b", False), ("    return (", False), ("    while True: pass", False)],
)
def test_programs_are_run_by_the_function(answer, passes):
    """One that is right, is wrong, has an error, or does not end."""
    run = partial(run_code, timeout=0.5) if "while" in answer else run_code
    assert pass_at_k(run, [1], 60).passes(answer, DOCUMENT, "document 3") is passes


def test_a_function_that_does_not_return_is_refused():
    """With the line to write. The program is its own to end."""
    end = threading.Event()
    judge = pass_at_k(lambda *_: end.wait(60), [1], 0.05)
    with pytest.raises(EvaluationError, match=r"3:.*0\.05 s.*timeout=0\.025.*run_code_seconds=0\.1"):
        judge.passes("", DOCUMENT, "document 3")
    end.set()


def test_what_is_no_judgement_is_refused():
    """A status of a process is 0 if it passed, so it must not count; an error of the function is heard."""
    with pytest.raises(EvaluationError, match=r"document 3: .*returned 0: .*True"):
        pass_at_k(lambda *_: 0, [1], 60).passes("", DOCUMENT, "document 3")
    with pytest.raises(FileNotFoundError, match="no-such-sandbox"):
        pass_at_k(lambda *_: subprocess.run(["no-such-sandbox"], check=False), [1], 60).passes(
            "", DOCUMENT, "document 3"
        )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"pass_at": (1, 10)}, r"pass_at=\(1, 10\).*no sandbox here: write run_code="),
        ({"run_code": "python"}, "run_code='python'.*a function"),
        ({"run_code": run_code, "pass_at": (0, 1)}, r"pass_at=\(0, 1\).*\(1, 10\)"),
        ({"run_code": run_code, "run_code_seconds": 0}, "run_code_seconds=0"),
    ],
)
def test_wrong_arguments_are_refused(given, words):
    """When the task is made, with what to write."""
    with pytest.raises(TaskError, match=words):
        harness("humaneval", **given)
