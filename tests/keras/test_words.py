"""Messages of an evaluation name only what the user of `SidecarEvaluator` can write."""

import ast
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from sidecar.evaluation import remedy
from sidecar.evaluation.failures import EvaluationError

TASK_WORDS: Final = ("Task(", "build_model", "sidecar.toml", "worker_env")

BACKEND: Final = Path(remedy.__file__).parent / "backends" / "tensorflow"

OF_TASKS: Final = (
    "model.py",  # calls what the task gives, and opens graphs that are stored instead of a model
    "saved_graph.py",
)

FILES: Final = [path for path in sorted(BACKEND.rglob("*.py")) if path.name not in OF_TASKS]


def texts_in(node):
    """Return the text of all literals below a node."""
    found = (part.value for part in ast.walk(node) if isinstance(part, ast.Constant))
    return " ".join(text for text in found if isinstance(text, str))


@cache
def calls_in(path, name):
    """Return the calls of a name in a file."""
    tree = ast.walk(ast.parse(path.read_text()))
    return [node for node in tree if isinstance(node, ast.Call) and ast.unparse(node.func) == name]


def test_each_front_end_has_its_own_words():
    """The text is that for a task; the other one differs in the remedy alone, also after a path was replaced."""
    error = EvaluationError("mismatch", "/pins/a does not fit: ", remedy=remedy.GIVE_SAVED_MODEL + " at /pins/a.")
    for each, name in ((error, "/pins/a"), (error.with_path("/pins/a", "ckpt-5"), "ckpt-5")):
        assert str(each) == f"{name} does not fit: let build_model return the model that was saved at {name}."
        assert each.for_model == f"{name} does not fit: give SidecarEvaluator the model that was saved at {name}."


def test_no_remedy_for_a_model_speaks_of_tasks():
    """Every remedy of the backend has a second text for a program with its own model."""
    remedies = [call for path in (*FILES, Path(remedy.__file__)) for call in calls_in(path, "Remedy")]
    assert len(remedies) > 10
    told = [texts_in(call.args[1]) for call in remedies]
    assert not [text for text in told if any(word in text for word in TASK_WORDS)]


@pytest.mark.parametrize("name", ["build_model return", "build_model use", "build_model make", " in build_model"])
def test_advice_on_models_is_a_remedy(name):
    """A message that both front ends show tells nobody what `build_model` should do."""
    messages = [
        call.args[place]
        for name_of_error, place in (("EvaluationError", 1), ("task_error", 0), ("mismatch", 0))
        for path in FILES
        for call in calls_in(path, name_of_error)
        if len(call.args) > place
    ]
    assert len(messages) > 50
    assert not [text for text in map(texts_in, messages) if name in text]


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("values", "call"),
    [
        ([("hidden/lora_kernel_a", (8, 2))], "enable_lora(2) before"),
        ([("hidden/kernel_scale", (3,))], 'model.quantize("int8") before'),
        ([("hidden/quantized_kernel", (3, 3))], "GPTQ"),
    ],
)
def test_advice_on_switches_of_training(values, call):
    """The call has its place before the model is given to the evaluator."""
    from sidecar.evaluation.backends.tensorflow.saved_switches import advice_for

    told = advice_for(values)
    assert call in told.for_model
    assert not any(word in told.for_model for word in TASK_WORDS)
