"""Which failures are said to last: those that follow from code and shapes, in which no machine takes part."""

import numpy as np
import pytest

from sidecar.errors import TaskError
from sidecar.evaluation.failures import EvaluationError, as_failed, following_from_code
from sidecar.evaluation.states import ExactSum
from sidecar.protocol.states import WorkerPhase


def lasting(error, phase="build", also=()):
    """What the report of an error says that is raised while the task is built."""
    with pytest.raises(type(error)) as caught, following_from_code(*also):
        raise error
    return as_failed(caught.value, phase=phase, plan=1, rank=0).lasting


@pytest.mark.parametrize(
    "error",
    [
        EvaluationError("task_error", "metrics need different names"),
        TaskError("its function does not fit"),
        TypeError("unsupported operand"),
        AttributeError("'Dense' object has no attribute 'unit'"),
        NameError("name 'kears' is not defined"),
    ],
)
def test_mistakes_in_code_last(error):
    """Another process, on any node, would make them again."""
    assert lasting(error) == "task"


@pytest.mark.parametrize(
    "error",
    [
        OSError("cannot read vocabulary.txt"),
        ImportError("libcudnn.so.9: cannot open shared object file"),
        MemoryError(),
        RuntimeError("the data server does not answer"),
        ValueError("the vocabulary is empty"),
        EvaluationError("storage", "cannot be read"),
    ],
)
def test_what_a_machine_may_have_a_part_in_does_not_last(error):
    """Files, packages, memory and networks differ from node to node and from time to time."""
    assert lasting(error) is None


def test_values_count_where_no_file_is_read():
    """The model called on a first batch, a metric that is tried: Keras says with ValueError that shapes do not fit."""
    assert lasting(ValueError("expected axis -1 to have value 81"), also=(ValueError,)) == "task"


def test_a_file_that_does_not_fit_the_model_lasts_for_itself():
    """Ranks that disagree, or a data set that changed, may agree the next time."""

    def told(kind, phase):
        return as_failed(EvaluationError(kind, "…"), phase=phase, plan=1, rank=0).lasting

    assert told("mismatch", "restore") == "checkpoint"
    assert [told("mismatch", "hello"), told("corrupt", "restore"), told("task_error", "restore")] == [None] * 3


def test_a_sentence_stands_above_a_traceback():
    """What was raised, while what was done; what Keras says may hold a whole batch, and is cut."""
    message = as_failed(ValueError("shapes\n" + "0.5 " * 500), phase="read", plan=1, rank=0).message
    sentence, _, rest = message.partition("\n")
    assert sentence.startswith("ValueError: shapes 0.5 0.5")
    assert "… (raised while the data were read)." in sentence
    assert len(sentence) < 500
    assert "ValueError: shapes" in rest


def test_a_module_that_is_missing_names_the_interpreter():
    """Most often the daemon's environment is not the one that trains."""
    message = as_failed(ModuleNotFoundError("No module named 'flax'"), phase="import", plan=None, rank=None).message
    assert 'worker_python = "/' in message
    assert "install it" not in message.partition("worker_python")[0]


def test_whole_numbers_that_are_too_large_are_told_in_a_sentence():
    """A confusion matrix with weights of 1e30, say: no traceback of ours."""
    state = ExactSum((), "int64")
    state.add(np.int64(2**61))
    with pytest.raises(OverflowError) as caught:
        state.add(np.int64(2**62))
    failed = as_failed(caught.value, phase="evaluate", plan=1, rank=0)
    assert (failed.kind, "Traceback" in failed.message) == ("task_error", False)
    assert "labels and weights for values such as 1e30" in failed.message


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (
            "Got invalid dimensions for input: x for the following indices\n index: 0 Got: 7 Expected: 16\n Please fix",
            'dynamic_axes={"input": {0: "n"}}, or write Task(batch_size=16)',
        ),
        ("Cannot set tensor: Dimension mismatch. Got 7 but expected 1 for dimension 0 of input 0.", "batch_size=1)"),
        (
            "Detected the following values in `target`: tensor([-100, 0, 1]) but expected only the following values",
            "ignore_index=-100",
        ),
    ],
)
def test_errors_of_libraries_get_the_line_to_write(told, words):
    assert words in as_failed(RuntimeError(told), phase="evaluate", plan=1, rank=0).message.splitlines()[0]


OF_TORCH = (
    "Weights only load failed. This file can still be loaded, to do so you have two options.\n\t(1) Re-running "
    "`torch.load` with `weights_only` set to `False` will likely succeed, but it can result in arbitrary code "
    "execution. Do it only if you got the file from a trusted source.\n\tUnsupported global: GLOBAL my.Net"
)
OF_KERAS = "Lambda layer my.Net. You may pass `safe_mode=False`, or call keras.config.enable_unsafe_deserialization()."


@pytest.mark.parametrize("text", [OF_TORCH, OF_KERAS])
def test_advice_to_run_the_code_of_a_file_is_not_repeated(text):
    """Neither above the traceback nor in it, nor of the error that led to another one; the rest of the text stays."""
    error = ValueError(f"cannot load: {text}")
    error.__cause__ = RuntimeError(text)
    message = as_failed(error, phase=WorkerPhase.RESTORE, plan=1, rank=0).message
    for advice in ("weights_only", "arbitrary", "safe_mode", "enable_unsafe"):
        assert advice not in message
    assert message.count("my.Net") == 3
