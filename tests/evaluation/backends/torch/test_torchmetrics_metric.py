"""Metrics of torchmetrics: the numbers of one process, with equal bits for any number of ranks; or a refusal."""

from dataclasses import replace

import pytest
from evaluation.backends.torch.torchmetrics_tasks import (
    BATCH,
    add_random,
    alone,
    exchanged,
    number,
    own,
    positive,
    scores,
    task,
    tensors,
)
from tests_torch import result_of_ranks, torch_evaluator

from sidecar.evaluation.failures import EvaluationError
from sidecar.metrics import Accuracy, Sums

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:Metric .* will save all:UserWarning"),
]


@pytest.fixture
def checkpoint(tmp_path):
    import torch
    from torch import nn

    torch.save(nn.Sequential(nn.Identity(), nn.Linear(1, 1)).state_dict(), tmp_path / "step-1.pt")
    return tmp_path / "step-1.pt"


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
@pytest.mark.drawn(4)
def test_the_number_is_that_of_one_process_for_any_number_of_ranks(checkpoint, name):
    """Kinds of states: counts, sums of floats, largest values, lists, and those with a formula of their own.

    So is the interval, which a largest value and an average precision lack.
    """
    import torchmetrics
    from torchmetrics import classification

    arguments, data = KINDS[name]
    make = getattr(torchmetrics, name, None) or getattr(classification, name)
    given = replace(task(lambda: [make(**arguments)], **data), intervals=True)
    results = [result_of_ranks(given, checkpoint, ranks)["test"].values for ranks in (1, 2, 3, 5)]
    assert len({str(result) for result in results}) == 1
    (found,) = results[0].values()
    assert (found.lower is None) == (name in ("MaxMetric", "BinaryAveragePrecision"))
    expected = make(**arguments)
    if name in ("MaxMetric", "MeanMetric"):
        for of_x in tensors()[0].split(BATCH):
            expected.update(scores(of_x))
        expected = expected.compute()
    else:
        expected = alone(expected, **data)
    assert number(found) == pytest.approx(float(expected), rel=1e-6)


def test_numbers_whose_intervals_cover_too_little_or_too_much_have_none():
    """Ratios of counts that may be few, average precisions, thresholds that are chosen; also within a wrapper."""
    import torch
    import torchmetrics
    from torchmetrics import classification

    from sidecar.evaluation.backends.torch.torchmetrics_metric import TorchMetric

    def has_interval(metric):
        return TorchMetric("metric", None, metric, torch.device("cpu")).may_have_interval

    for name in ("Precision", "Recall", "Specificity", "NegativePredictiveValue", "AveragePrecision", "EER"):
        assert not has_interval(getattr(classification, f"Binary{name}")())
    assert not has_interval(classification.BinaryRecallAtFixedPrecision(min_precision=0.5, thresholds=5))
    assert not has_interval(classification.MulticlassSensitivityAtSpecificity(3, min_specificity=0.5, thresholds=5))
    assert not has_interval(torchmetrics.MultioutputWrapper(classification.BinaryRecall(), num_outputs=2))
    for name in ("Accuracy", "Precision", "Recall", "Specificity", "F1Score", "AUROC", "JaccardIndex"):
        assert has_interval(getattr(classification, f"Multiclass{name}")(3))
    assert has_interval(classification.BinaryF1Score())
    assert has_interval(classification.BinaryAUROC(thresholds=5))


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


@pytest.mark.parametrize("wrapped", [True, False])
def test_a_metric_that_draws_is_seeded(checkpoint, wrapped):
    """The same weights give the same number, with any number of workers."""
    import torchmetrics

    def make():
        return torchmetrics.BootStrapper(torchmetrics.MeanSquaredError()) if wrapped else own(add_random)

    data = {"predict": scores, "labels": lambda _y, x: x[:, 0] + x[:, 1]}
    results = [result_of_ranks(task(lambda: [make()], **data), checkpoint, ranks)["test"] for ranks in (1, 2, 2)]
    assert results[0] == results[1] == results[2]
    assert "random" in results[0].notes[0]


def test_images_that_are_real_and_made(checkpoint):
    """The metric is refused with a line that works, and is merged then."""
    import torch
    from torch import nn
    from torchmetrics.image.fid import FrechetInceptionDistance

    class Features(nn.Module):
        num_features = 6

        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(192, 6, generator=torch.Generator().manual_seed(8)) / 14)

        def forward(self, images):
            return images.flatten(1) @ self.weight.to(images.dtype)

    def images(x, seed):
        made = torch.rand(len(x), 3, 8, 8, generator=torch.Generator().manual_seed(seed))
        return (made + x[:, :1, None, None].sigmoid()) / 2

    def given(kind):
        metrics = lambda: [kind(feature=Features(), normalize=True)]  # noqa: E731 - as users write it
        return task(metrics, predict=lambda x: images(x, 1), labels=lambda _y, x: images(x, 2))

    with pytest.raises(EvaluationError, match=r"real=True\)") as caught:
        torch_evaluator(given(FrechetInceptionDistance))
    written = {"FrechetInceptionDistance": FrechetInceptionDistance}
    exec(str(caught.value).partition("and write ")[2], written)  # the line that users are told to write
    results = [result_of_ranks(given(written["Both"]), checkpoint, ranks)["test"].values for ranks in (1, 2, 3)]
    assert results[0] == results[1] == results[2]
    expected = FrechetInceptionDistance(feature=Features(), normalize=True)
    for x in tensors()[0].split(BATCH):
        expected.update(images(x, 2), real=True)
        expected.update(images(x, 1), real=False)
    assert number(results[0]["both"]) == pytest.approx(float(expected.compute()), rel=1e-6)


REFUSED = {
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


@pytest.mark.parametrize("batch", [2, 3, 4, 5, 16])
def test_no_number_of_a_single_example_is_computed(checkpoint, batch):
    """LAPACK may end the process for a covariance of one example, which is NaN, as in a distance of distributions."""
    import torch
    from torchmetrics import Metric

    counted = []

    class Spread(Metric):
        def __init__(self):
            super().__init__()
            for name in ("n", "total", "squares"):
                self.add_state(name, torch.tensor(0.0, dtype=torch.float64), dist_reduce_fx="sum")

        def update(self, preds, target):
            self.n += len(target)
            self.total += preds[:, 0].double().sum()
            self.squares += (preds[:, 0].double() ** 2).sum()

        def compute(self):
            counted.append(int(self.n))
            return (self.squares - self.total**2 / self.n) / (self.n - 1)

    chosen = replace(task(lambda: [Spread()]), batch_size=batch)
    found = result_of_ranks(chosen, checkpoint, 1)["test"].values
    x, _ = tensors()
    assert number(found["spread"]) == pytest.approx(float(x.softmax(1)[:, 0].double().var()), rel=1e-9)
    assert min(counted) > 1


def test_ignored_labels_get_the_argument_that_leaves_them_out(checkpoint):
    """Name a metric that torchmetrics' own message does not name."""
    import torch
    from torchmetrics.classification import MulticlassAccuracy

    def marked(y, _):
        return torch.where(torch.arange(len(y)) % 5 == 0, -100, y)

    with pytest.raises(EvaluationError, match=r"MulticlassAccuracy\(…, ignore_index=-100\)"):
        result_of_ranks(task(lambda: [MulticlassAccuracy(3)], labels=marked), checkpoint, 1)
    named = lambda: [MulticlassAccuracy(3, ignore_index=-100)]  # noqa: E731 - as users write it
    found = result_of_ranks(task(named, labels=marked), checkpoint, 2)["test"]
    assert found.values["multiclassaccuracy"].value == pytest.approx(float(alone(named()[0], labels=marked)))


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


@pytest.mark.parametrize("dtypes", [("uint8", "uint8"), ("float32", "uint8"), ("int16", "int32")])
@pytest.mark.parametrize("name", ["MeanSquaredError", "MeanAbsoluteError", "R2Score", "ExplainedVariance"])
@pytest.mark.drawn(4)
def test_integers_of_few_bits_do_not_wrap_around(checkpoint, name, dtypes):
    """The number of images of 8 bits is that of the same numbers as floats; torchmetrics itself squares modulo 256."""
    import torch
    import torchmetrics

    make = getattr(torchmetrics, name)

    def column(of, dtype):
        return lambda *given: (given[-1][:, of].sigmoid() * 255).to(torch.uint8).to(getattr(torch, dtype))

    of_ranks = [
        result_of_ranks(task(lambda: [make()], column(0, dtypes[0]), column(1, dtypes[1])), checkpoint, ranks)["test"]
        for ranks in (1, 2, 3)
    ]
    assert of_ranks[1:] == of_ranks[:1] * 2
    (found,) = of_ranks[0].values.values()
    assert number(found) == pytest.approx(float(alone(make(), column(0, "float32"), column(1, "float32"))), rel=1e-5)


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


@pytest.mark.parametrize("name", ["MulticlassF1Score", "BinaryAveragePrecision", "R2Score"])
def test_slices_have_the_number_of_their_examples_alone(checkpoint, name):
    """For counts, scores that the metric reads as logits, and sums of floats; bits do not depend on workers."""
    import torchmetrics
    from torchmetrics import classification

    arguments, data = KINDS[name]
    make = getattr(torchmetrics, name, None) or getattr(classification, name)
    if name == "BinaryAveragePrecision":
        data = data | {"predict": lambda x: x[:, 0]}
    given = replace(task(lambda: [make(**arguments)], **data), slices={"kind": lambda _, y: y})
    results = [result_of_ranks(given, checkpoint, ranks)["test"].slices for ranks in (1, 2, 3, 5)]
    assert len({str(result) for result in results}) == 1
    x, y = tensors()
    predict, labels = data.get("predict", lambda x: x.softmax(1)), data.get("labels", lambda y, _x: y)
    for kind in range(3):
        metric, rows = make(**arguments), y == kind
        predicted = predict(x)
        if name == "BinaryAveragePrecision":
            predicted = predicted.sigmoid()
        metric.update(predicted[rows], labels(y, x)[rows])
        (found,) = results[0][f"kind={kind}"].values()
        assert number(found) == pytest.approx(float(metric.compute()), rel=1e-5)
