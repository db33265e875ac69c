"""Which failures are said to last: those that follow from code and shapes, in which no machine takes part."""

from pathlib import Path

import numpy as np
import pytest
from evaluation.fake_framework import (
    STREAM,
    FakeEvaluator,
    run,
)

from sidecar.errors import TaskError
from sidecar.evaluation import failures
from sidecar.evaluation.failures import EvaluationError, as_failed, following_from_code
from sidecar.evaluation.states import ExactSum
from sidecar.protocol.states import FAILURE_CLASSES, WorkerPhase


def lasting(error, phase="build", also=()):
    """Return what the report of an error says that is raised while the task is built."""
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
    """Tell the error and the operation; cut messages of Keras that hold a whole batch."""
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
        (KeyError("RANK"), 'os.environ.get("RANK", "0")'),
        (
            ValueError("Default process group has not been initialized"),
            "distributed.is_initialized()",
        ),
        ("Cannot copy out of meta tensor; no data! Please use torch.nn.Module.to_empty()", "torch.device('meta')"),
        (NotImplementedError("Calling eval() is not supported yet."), "return the module that was exported"),
    ],
)
def test_errors_of_libraries_get_the_line_to_write(told, words):
    error = RuntimeError(told) if isinstance(told, str) else told
    assert words in as_failed(error, phase="evaluate", plan=1, rank=0).message.splitlines()[0]


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


@pytest.mark.parametrize(
    ("phase", "kind"),
    [
        ("read", "task_error"),
        ("restore", "task_error"),
        ("evaluate", "task_error"),
        ("save", "storage"),
        ("conclude", "task_error"),
    ],
)
def test_kind_of_an_exception(tmp_path, phase, kind):
    """Blame the code where an unknown error was raised."""
    evaluator = FakeEvaluator((STREAM,), [1.0] * 5, raises={phase: OSError("no space left on device")})
    ((end, phases, _),) = run(tmp_path, [evaluator])
    failed = as_failed(end, phase=phases[-1], plan=7, rank=0)
    assert phases[-1] == phase
    assert failed.kind == kind
    assert "OSError: no space left on device" in failed.message


def test_every_kind_is_on_the_list():
    """The names of failures in the worker are names that the records accept."""
    assert set(failures._KIND_BY_PHASE.values()) <= set(FAILURE_CLASSES)


def test_endless_messages_are_cut():
    """The end of a traceback says most."""
    failed = as_failed(ValueError("x" * 100_000 + "the end"), phase="read", plan=None, rank=None)
    assert len(failed.message) == 20_000
    assert failed.message.endswith("the end")


def test_causes_lose_our_frames_too():
    """An exception with a cause shows both, each from the user's first frame on."""
    script = "def user():\n  try:\n    1 / 0\n  except ZeroDivisionError as e:\n    raise ValueError('v') from e\n"
    names = {}
    exec(compile(script, "/home/me/my_eval.py", "exec"), names)

    def ours():
        names["user"]()

    ours_in_worker = ours.__code__.replace(co_filename=str(Path(failures.__file__).with_name("flow.py")))
    try:
        type(ours)(ours_in_worker, globals(), closure=ours.__closure__)()
    except ValueError as error:
        message = as_failed(error, phase="read", plan=None, rank=None).message
    assert 'File "/home/me/my_eval.py", line 5, in user' in message
    assert 'File "/home/me/my_eval.py", line 3, in user' in message
    assert "sidecar/evaluation" not in message


def test_the_demos_frames_are_the_users():
    """The demo is a task like any other: its frames are shown."""
    names = {}
    demo = Path(failures.__file__).parents[1] / "demo" / "digits.py"
    exec(compile("def build(): raise ValueError('v')", str(demo), "exec"), names)
    with pytest.raises(ValueError, match="v") as caught:
        names["build"]()
    assert str(demo) in as_failed(caught.value, phase="build", plan=None, rank=None).message


def test_graph_text_loses_our_frames():
    """AutoGraph and graph errors list frames in words."""
    ours = Path(failures.__file__).parent / "tensorflow" / "measure.py"
    text = (
        "in user code:\n\n"
        f'    File "{ours}", line 85, in step  *\n        predictions = self._model(x)\n'
        '    File "/home/me/my_eval.py", line 3, in call  *\n        return x + "a"\n\n'
        "Detected at node 'x' defined at (most recent call last):\n"
        f'  File "{ours}", line 85, in step\n\n  File "/home/me/my_eval.py", line 3, in call\n\n'
    )
    message = as_failed(TypeError(text), phase="read", plan=None, rank=None).message
    assert "measure.py" not in message
    assert "predictions" not in message
    assert message.count('File "/home/me/my_eval.py", line 3, in call') == 2
    assert 'return x + "a"' in message
