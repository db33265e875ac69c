"""Try a task in `sidecar check` while training goes on and a worker process restores the newest checkpoint."""

from dataclasses import replace

import pytest
from fakes import save
from records import make_result

from sidecar.commands.check import trial
from sidecar.errors import EvaluationFailedError, StorageError
from sidecar.protocol.messages import Failed
from sidecar.protocol.records import MOST_METRICS, Value


def result():
    measured = {"examples": {"test": 8}, "metrics": {"test": {"a": Value(value=0.5, hex=(0.5).hex())}}}
    return make_result(notes=("the model draws random numbers",), **measured)


def test_files_of_several_models_get_the_line_that_chooses_one(try_task, place, monkeypatch):
    """A checkpoint that does not match may be that of the other model in the folder."""
    save(place, 1)
    monkeypatch.setattr(trial, "names_in", lambda _: ["ckpt-1", "other-1"])

    def evaluate(_, seen):
        seen.note(Failed(kind="mismatch", message="because", phase="restore"))
        raise EvaluationFailedError("mismatch: because")

    (found,) = try_task(evaluate)
    assert found.text.startswith("ckpt-1: mismatch: because. ")
    assert 'checkpoint_glob = "other-*"' in found.text


def test_a_result_that_no_record_holds_is_told_before_the_run(place, try_task):
    """With the limit and what to write; every evaluation would fail."""
    save(place, 1)
    value = Value(value=0.5, hex=(0.5).hex())
    many = {str(number): value for number in range(MOST_METRICS // 2 + 1)}
    found = try_task(lambda *_: replace(result(), examples={"a": 8, "b": 8}, metrics={"a": many, "b": many}))
    assert [finding.ok for finding in found] == [False, True, True, True, True]
    assert f"more than {MOST_METRICS} metrics" in found[0].text
    assert "Task(metrics=…)" in found[0].text


@pytest.mark.parametrize(
    ("rule", "who"), [("auto", "no worker"), ("all", "each worker"), ("first", "one worker"), ("none", "no worker")]
)
def test_the_space_and_the_memory_of_an_evaluation_are_told(place, try_task, rule, who):
    """By the rule of the settings, which leaves large weights alone by default."""
    save(place, 1)
    *_, saves, memory = try_task(lambda *_: result(), save_weights=rule)
    assert (saves.what, saves.ok, memory.what, memory.ok) == ("saves", True, "memory", True)
    assert saves.text.startswith(f"{who} writes the weights of each checkpoint, 2.0 GB (save_weights = {rule!r})")
    assert "812.3 MB of memory and 3.0 GB of the GPU's" in memory.text


def test_a_failure_with_an_unchanged_checkpoint_is_the_tasks(place, try_task):
    """It is told once, and in the words of the worker."""
    save(place, 1)

    def evaluate(checkpoint, _):
        raise EvaluationFailedError(f"mismatch: {checkpoint.name} does not fit")

    (finding,) = try_task(evaluate)
    assert (finding.ok, finding.text) == (False, "ckpt-1: mismatch: ckpt-1 does not fit")


def test_a_task_that_cannot_be_imported_is_told_as_a_daemon_tells_it(place, try_task):
    """The checkpoint has no part in it."""
    save(place, 1)

    def evaluate(_, seen):
        seen.note(Failed(kind="task_error", message="KeyError: 'heavy'", phase="import"))
        raise EvaluationFailedError("task_error: KeyError: 'heavy'")

    (finding,) = try_task(evaluate)
    assert finding.text == "task 'my_eval.py:task' cannot be used: KeyError: 'heavy'"


def test_storage_that_fails_is_told(try_task):
    """No worker is started then."""

    def fail():
        raise StorageError("the checkpoint directory cannot be read")

    (finding,) = try_task(lambda *_: pytest.fail("a worker was started"), fail)
    assert (finding.ok, finding.text) == (False, "my_eval.py:task: the checkpoint directory cannot be read")
