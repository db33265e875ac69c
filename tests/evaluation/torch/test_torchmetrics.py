"""Metrics of torchmetrics: the numbers of one process, with equal bits for any number of ranks; or a refusal."""

import subprocess
import sys
from dataclasses import replace

import pytest
from tests_torch import result_of_ranks, torch_evaluator

from sidecar import Task
from sidecar.evaluation.failures import EvaluationError
from sidecar.metrics import Accuracy, Sums

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:Metric .* will save all:UserWarning"),
]

EXAMPLES = 103
BATCH = 16


def tensors():
    import torch

    x = torch.randn(EXAMPLES, 3, generator=torch.Generator().manual_seed(2))
    return x, (x.argmax(1) + (x[:, 0] > 0.9).long()) % 3


def task(metrics, predict=lambda x: x.softmax(1), labels=lambda y, _x: y):
    """A task whose model returns its input, with predictions and labels made of it."""
    from torch import nn
    from torch.utils.data import TensorDataset

    return Task(
        build_model=lambda: nn.Sequential(nn.Identity(), nn.Linear(1, 1)),
        eval_sets={"test": lambda: TensorDataset(*tensors())},
        metrics=metrics,
        step=lambda _model, batch: (labels(batch[1], batch[0]), predict(batch[0])),
        batch_size=BATCH,
    )


@pytest.fixture
def checkpoint(tmp_path):
    import torch
    from torch import nn

    torch.save(nn.Sequential(nn.Identity(), nn.Linear(1, 1)).state_dict(), tmp_path / "step-1.pt")
    return tmp_path / "step-1.pt"


def alone(metric, predict=lambda x: x.softmax(1), labels=lambda y, _x: y):
    """What torchmetrics says in one process over all batches."""
    x, y = tensors()
    for of_x, of_y in zip(x.split(BATCH), y.split(BATCH), strict=True):
        metric.update(predict(of_x), labels(of_y, of_x))
    return metric.compute()


def number(value):
    return float.fromhex(value.hex)


def scores(x):
    return x[:, 0].sigmoid()


def positive(y, _x):
    return (y == 0).long()


KINDS = {
    "MulticlassAccuracy": ({"num_classes": 3}, {}),
    "MulticlassF1Score": ({"num_classes": 3}, {}),
    "BinaryAUROC": ({}, {"predict": scores, "labels": positive}),
    "BinaryAveragePrecision": ({"thresholds": 50}, {"predict": scores, "labels": positive}),
    "MeanSquaredError": ({}, {"predict": scores, "labels": lambda _y, x: x[:, 1]}),
    "R2Score": ({}, {"predict": scores, "labels": lambda _y, x: x[:, 0] + x[:, 1]}),
    "PearsonCorrCoef": ({}, {"predict": scores, "labels": lambda _y, x: x[:, 0] + x[:, 1]}),
    "SpearmanCorrCoef": ({}, {"predict": scores, "labels": lambda _y, x: x[:, 0] + x[:, 1]}),
    "MaxMetric": ({}, {"predict": scores}),
    "MeanMetric": ({}, {"predict": scores, "labels": lambda _y, x: 0 * x[:, 0] + 1}),
    "CohenKappa": ({"task": "multiclass", "num_classes": 3}, {}),
    "CosineSimilarity": ({"reduction": "mean"}, {"labels": lambda _y, x: x}),
}


@pytest.mark.parametrize("name", KINDS)
def test_the_number_is_that_of_one_process_for_any_number_of_ranks(checkpoint, name):
    """Kinds of states: counts, sums of floats, largest values, lists, and those with a formula of their own."""
    import torchmetrics
    from torchmetrics import classification

    arguments, data = KINDS[name]
    make = getattr(torchmetrics, name, None) or getattr(classification, name)
    given = task(lambda: [make(**arguments)], **data)
    results = [result_of_ranks(given, checkpoint, ranks)["test"].values for ranks in (1, 2, 3, 4)]
    assert len({str(result) for result in results}) == 1
    (found,) = results[0].values()
    expected = make(**arguments)
    if name in ("MaxMetric", "MeanMetric"):
        for of_x in tensors()[0].split(BATCH):
            expected.update(scores(of_x))
        expected = expected.compute()
    else:
        expected = alone(expected, **data)
    assert number(found) == pytest.approx(float(expected), rel=1e-6)


def test_a_collection_names_its_numbers_and_mixes_with_other_metrics(checkpoint):
    """Prefixes stay; a metric of torchmetrics and one of this package measure the same."""
    import torchmetrics

    def metrics():
        accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=3, average="micro")
        error = torchmetrics.MeanSquaredError()
        collection = torchmetrics.MetricCollection({"share": accuracy}, prefix="test_")
        return [collection, Accuracy(), torchmetrics.MultitaskWrapper({"rows": error})]

    with pytest.raises(EvaluationError, match="rows"):
        torch_evaluator(task(metrics))
    given = task(lambda: metrics()[:2])
    values = result_of_ranks(given, checkpoint, 2)["test"].values
    assert values["test_share"].value == pytest.approx(values["accuracy"].value, rel=1e-7)
    assert values["test_share"].goal == "max"


def test_outputs_and_tasks_have_their_own_metrics(checkpoint):
    """By output of the task, and by task of a MultitaskWrapper."""
    import torchmetrics

    data = {
        "predict": lambda x: {"digit": x.softmax(1), "size": x[:, 0]},
        "labels": lambda y, x: {"digit": y, "size": x[:, 1]},
    }

    def of_digit():
        return torchmetrics.Accuracy(task="multiclass", num_classes=3)

    by_output = task(lambda: {"digit": [of_digit()], "size": [torchmetrics.MeanAbsoluteError()]}, **data)
    by_task = task(
        lambda: torchmetrics.MultitaskWrapper({"digit": of_digit(), "size": torchmetrics.MeanAbsoluteError()}), **data
    )
    first = result_of_ranks(by_output, checkpoint, 2)["test"].values
    second = result_of_ranks(by_task, checkpoint, 3)["test"].values
    assert list(first) == ["digit_multiclassaccuracy", "size_meanabsoluteerror"]
    assert list(second) == ["digit", "size"]
    assert list(first.values()) == list(second.values())
    assert second["size"].goal == "min"


def test_numbers_of_classes_are_published_by_class(checkpoint):
    """Without an average there is a number of each class; ClasswiseWrapper gives them names."""
    import torchmetrics

    def per_class():
        return torchmetrics.F1Score(task="multiclass", num_classes=3, average=None)

    result = result_of_ranks(task(lambda: [per_class()]), checkpoint, 2)["test"]
    expected = [float(one) for one in alone(per_class())]
    assert [number(one) for one in result.classes["multiclassf1score"].values()] == expected
    wrapped = task(lambda: [torchmetrics.ClasswiseWrapper(per_class(), labels=["a", "b", "c"])])
    values = result_of_ranks(wrapped, checkpoint, 3)["test"].values
    assert {name: number(one) for name, one in values.items()} == dict(
        zip(["multiclassf1score_a", "multiclassf1score_b", "multiclassf1score_c"], expected, strict=True)
    )


def add_all(self, preds, _target):
    self.total = self.total + preds.sum()


def keep_the_last(self, preds, _target):
    self.total = preds.sum()


def add_a_variance(self, preds, _target):
    self.total = self.total + preds.var()


def exchanged(self, target, preds):
    self.total = self.total + preds.sum() + 0 * target.sum()


def add_random(self, preds, _target):
    import torch

    self.total = self.total + preds.sum() * torch.rand(())


def own(called=add_all, reduction="sum", first=0.0):
    """A metric of the user's own: the sum of all predictions."""
    import torch
    import torchmetrics

    class Own(torchmetrics.Metric):
        update = called

        def __init__(self):
            super().__init__()
            self.add_state("total", torch.tensor(first), dist_reduce_fx=reduction)

        def compute(self):
            return self.total

    return Own()


REFUSED = {
    "a window": (lambda m: m.aggregation.RunningMean(), "window"),
    "random samples": (lambda m: m.BootStrapper(m.MeanSquaredError()), "random"),
    "random numbers": (lambda _: own(add_random), "random"),
    "a reduction of its own": (lambda _: own(reduction=lambda x: x.sum(0)), "reduction"),
    "a mean over ranks": (lambda _: own(add_a_variance, reduction="mean"), "'total'"),
    "not from zero": (lambda _: own(first=1.0), "zero"),
    "the last batch": (lambda _: own(keep_the_last), "merged"),
    "a number of each batch": (lambda _: own(add_a_variance), "divided into batches"),
    "labels first": (lambda _: own(exchanged), "exchange"),
    "a class": (lambda m: m.MeanSquaredError, "MeanSquaredError("),
    "wrong shapes": (lambda m: m.ConcordanceCorrCoef(), "int64"),
    "lists on the CPU": (lambda m: m.SpearmanCorrCoef(compute_on_cpu=True), "compute_on_cpu"),
    "many numbers": (lambda m: m.ConfusionMatrix(task="multiclass", num_classes=8, validate_args=False), "64 numbers"),
    "queries": (lambda m: m.retrieval.RetrievalMAP(), "'indexes'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_metric_that_may_be_wrong_is_refused_by_name(checkpoint, case):
    """Before the first evaluation, with the reason."""
    import torchmetrics

    make, reason = REFUSED[case]
    data = {"predict": lambda x: x.argmax(1)} if case == "many numbers" else {}
    with pytest.raises(EvaluationError) as error:
        result_of_ranks(task(lambda: [make(torchmetrics)], **data), checkpoint, 1)
    name = getattr(make(torchmetrics), "__name__", type(make(torchmetrics)).__name__)
    assert name in str(error.value)
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


def test_queries_are_given_with_the_labels(checkpoint):
    """A metric with more arguments takes the parts of y by name; each query is whole again after lists are gathered."""
    from torchmetrics import retrieval

    data = {
        "predict": scores,
        "labels": lambda y, x: {"target": (y == 0).long(), "indexes": (x[:, 1] > 0).long()},
    }
    result = [
        result_of_ranks(task(lambda: [retrieval.RetrievalMAP()], **data), checkpoint, ranks)["test"].values
        for ranks in (1, 3)
    ]
    x, y = tensors()
    metric = retrieval.RetrievalMAP()
    metric.update(scores(x), (y == 0).long(), indexes=(x[:, 1] > 0).long())
    assert result[0] == result[1]
    assert number(result[0]["retrievalmap"]) == pytest.approx(float(metric.compute()), rel=1e-6)


def test_weights_are_refused():
    """Torchmetrics has no weights of examples, so the number would not be the weighted one."""
    import torchmetrics
    from torch.utils.data import TensorDataset

    x, y = tensors()
    given = replace(
        task(lambda: [torchmetrics.MeanSquaredError()]),
        eval_sets={"test": lambda: TensorDataset(x, y, x[:, 0] ** 2)},
        step=lambda _model, batch: (batch[0][:, 0], batch[0][:, 1], batch[2]),
    )
    with pytest.raises(EvaluationError, match="weights"):
        torch_evaluator(given)


def test_named_sums_measure_what_a_built_in_metric_does(checkpoint):
    """A function of a batch as arrays of numpy, next to the metric that it repeats."""
    sums = Sums(
        lambda y, predictions: {"hits": (predictions.argmax(1) == y).sum(), "all": len(y)},
        lambda totals: totals["hits"] / totals["all"],
        name="share",
        goal="max",
    )
    results = [
        result_of_ranks(task(lambda: [sums, Accuracy()]), checkpoint, ranks)["test"].values for ranks in (1, 2, 3, 4)
    ]
    assert all(result == results[0] for result in results)
    assert results[0]["share"].hex == results[0]["accuracy"].hex


def test_torchmetrics_is_imported_by_the_task_alone():
    """The package is optional, and takes seconds to import."""
    code = (
        "import sys, sidecar.evaluation.backends.torch.torchmetrics_members as members\n"
        "assert not members.is_torchmetric(object())\n"
        "assert 'torchmetrics' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
