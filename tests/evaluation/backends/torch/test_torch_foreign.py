# ruff: noqa: ARG001, ARG005, D102 - functions and classes are written as users write them
"""Functions and foreign metrics in tasks of PyTorch: tensors or arrays, next to other metrics, for 1 to 3 workers."""

from functools import cache, partial

import numpy as np
import pytest
from tests_torch import result_of_ranks

from sidecar import Task
from sidecar.errors import TaskError
from sidecar.evaluation.failures import EvaluationError
from sidecar.metrics import Accuracy, InTurn

pytestmark = pytest.mark.torch


@cache
def made():
    """Inputs and labels. Only processes that run these tests import torch."""
    import torch

    generator = torch.Generator().manual_seed(3)
    return torch.randn(103, 5, generator=generator), torch.randint(0, 3, (103,), generator=generator)


def build_model():
    from torch import nn

    return nn.Linear(5, 3)


def dataset(*arrays):
    from torch.utils.data import TensorDataset

    return TensorDataset(*arrays)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The model of a checkpoint, and the checkpoint."""
    import torch

    torch.manual_seed(5)
    model = build_model()
    path = tmp_path_factory.mktemp("checkpoint") / "step-1.pt"
    torch.save(model.state_dict(), path)
    return model.eval(), path


def task(*metrics, **more):
    return Task(
        build_model=build_model,
        eval_sets={"test": lambda: dataset(*made())},
        metrics=lambda: list(metrics),
        batch_size=16,
        **more,
    )


def hits(preds, target):
    """As people write it with tensors."""
    return (preds.argmax(1) == target).float().mean()


class Listed:
    """An object that works with tensors only."""

    def __init__(self):
        self.hits = []

    def reset(self):
        self.hits.clear()

    def update(self, input, target):  # noqa: A002 - the names of torcheval
        self.hits.append((input.argmax(1) == target).float())

    def compute(self):
        import torch

        return torch.cat(self.hits).mean()


def test_any_number_of_workers_gets_the_number_of_one(saved):
    from sklearn.metrics import cohen_kappa_score
    from torch.nn.functional import cross_entropy
    from torchmetrics.functional import accuracy

    (model, path), (x, y) = saved, made()
    classes = model(x).argmax(1)
    metrics = (
        Accuracy(),
        InTurn(lambda y, predictions: cohen_kappa_score(y, predictions.argmax(1)), name="kappa", goal="max"),
        hits,
        Listed(),
        partial(accuracy, task="multiclass", num_classes=3),
        cross_entropy,
    )
    names = ("accuracy", "kappa", "hits", "listed", "accuracy_2", "cross_entropy")
    with pytest.raises(EvaluationError, match="'accuracy' again"):
        result_of_ranks(task(*metrics), path, 1)
    metrics = (*metrics[:4], InTurn(metrics[4], name="accuracy_2"), metrics[5])
    found = [result_of_ranks(task(*metrics), path, ranks)["test"] for ranks in (1, 2, 3)]
    assert found[0] == found[1] == found[2]
    values = {name: found[0].values[name].value for name in names}
    share = float((classes == y).double().mean())
    assert values["kappa"] == cohen_kappa_score(y, classes)
    assert values["accuracy"] == share
    assert [values[name] for name in ("hits", "listed", "accuracy_2")] == pytest.approx([share] * 3)
    assert values["cross_entropy"] == pytest.approx(cross_entropy(model(x), y).item())
    (note,) = (note for note in found[0].notes if "in turn" in note)
    assert "kappa" in note
    assert "worker 0 evaluates this set alone" in note


def test_arrays_and_tensors_that_give_other_numbers_are_told_apart(saved):
    """`std` of numpy divides by n, and that of torch by n - 1."""

    def spread(y_true, y_pred):
        return y_pred.std()

    with pytest.raises(TaskError, match="tensors of the first"):
        result_of_ranks(task(spread), saved[1], 1)
    right = InTurn(lambda y, predictions: np.asarray(predictions).std(), name="spread")
    assert result_of_ranks(task(right), saved[1], 1)["test"].values["spread"].value > 0


def test_a_model_that_draws_gets_the_same_numbers_with_any_number_of_workers(saved):
    """Metrics in turn seed generators of their own; the model keeps its own."""
    import torch

    drawing = task(hits, step=lambda model, batch: (batch[1], model(batch[0]) + torch.randn(len(batch[0]), 3)))
    found = [result_of_ranks(drawing, saved[1], ranks)["test"] for ranks in (1, 2, 3)]
    assert found[0] == found[1] == found[2]
    assert any("draws random numbers" in note for note in found[0].notes)


def test_ignored_labels_are_weights_that_a_function_has_to_take(saved):
    from torch import nn

    x, labels = made()[0], made()[1].clone()
    labels[::7] = -100
    parts = {"eval_sets": {"test": lambda: dataset(x, labels)}, "batch_size": 16, "loss": nn.CrossEntropyLoss()}
    refused = Task(build_model=build_model, metrics=lambda: [hits], **parts)
    with pytest.raises(TaskError, match="sample_weight"):
        result_of_ranks(refused, saved[1], 2)

    def weighted(y_true, y_pred, sample_weight):
        return ((y_pred.argmax(1) == y_true) * sample_weight).sum() / sample_weight.sum()

    taken = Task(build_model=build_model, metrics=lambda: [weighted], **parts)
    counted = labels != -100
    right = float((saved[0](x).argmax(1) == labels)[counted].double().mean())
    assert result_of_ranks(taken, saved[1], 2)["test"].values["weighted"].value == pytest.approx(right)
