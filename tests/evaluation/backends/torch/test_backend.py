"""Say before an evaluation what a task of PyTorch lacks."""

import pytest
from evaluation.backends.torch.small_nets import task
from tests_torch import torch_evaluator

from sidecar.errors import TaskError
from sidecar.evaluation.failures import EvaluationError
from sidecar.evaluation.framework_traits import traits_of

pytestmark = pytest.mark.torch


def test_a_task_without_a_model_cannot_be_evaluated_with_torch():
    with pytest.raises(TaskError, match="framework") as refused:
        traits_of("torch").require(task(build_model=None))
    assert "Task(build_model=…)" in str(refused.value)


def test_a_step_needs_torch():
    with pytest.raises(TaskError, match="step"):
        traits_of("tensorflow").require(task(step=lambda model, batch: (batch[1], model(batch[0]))))


def test_a_model_that_is_no_module():
    with pytest.raises(EvaluationError, match=r"torch\.nn\.Module"):
        torch_evaluator(task(build_model=lambda: "net"))
