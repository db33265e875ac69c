"""Find the metrics of torchmetrics that a task lists, alone and in collections."""

import subprocess
import sys
from dataclasses import replace

import pytest
from evaluation.backends.torch.torchmetrics_tasks import (
    BATCH,
    EXAMPLES,
    task,
    tensors,
)
from tests_torch import result_of_ranks, torch_evaluator

from sidecar import Task
from sidecar.errors import TaskError
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.failures import EvaluationError
from sidecar.evaluation.metrics.metric import EvalSetInfo
from sidecar.metrics import Accuracy

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


def test_a_task_names_metrics_in_turn(checkpoint):
    """Metrics that could be merged are updated in turn if the task asks for it; other names are refused."""
    import torchmetrics

    def metrics():
        return [torchmetrics.Accuracy(task="multiclass", num_classes=3, average="micro"), Accuracy()]

    for names in (True, ["multiclassaccuracy"], ["accuracy"]):
        evaluator = torch_evaluator(replace(task(metrics), in_turn=names), 0, 2)
        assert evaluator.read(lambda: None)[0].own_batches == -(-EXAMPLES // BATCH)
        results = [result_of_ranks(replace(task(metrics), in_turn=names), checkpoint, n)["test"] for n in (1, 2)]
        assert results[0] == results[1]
        values = results[0].values
        assert values["multiclassaccuracy"].value == pytest.approx(values["accuracy"].value, rel=1e-7)
    with pytest.raises(TaskError, match=r"'acuracy'.*'accuracy'"):
        torch_evaluator(replace(task(metrics), in_turn=["acuracy"]))


def test_a_metric_in_turn_that_a_reset_does_not_empty(checkpoint):
    """It would count the batches that it was tried on, and those of former evaluations; with a state it is right."""
    import torch
    import torchmetrics

    class Last(torchmetrics.Metric):
        def __init__(self, keeps):
            super().__init__()
            self.keeps, self.seen = keeps, []
            self.add_state("count", torch.tensor(0), dist_reduce_fx="sum")

        def update(self, preds, _target):
            self.count += len(preds)
            if self.keeps:
                self.seen.append(float(preds.max()))

        def compute(self):
            return self.count + len(self.seen)

    given = replace(task(lambda: [Last(keeps=False)]), in_turn=True)
    assert result_of_ranks(given, checkpoint, 1)["test"].values["last"].value == EXAMPLES
    with pytest.raises(EvaluationError, match=r"'seen'.*add_state"):
        result_of_ranks(replace(given, metrics=lambda: [Last(keeps=True)]), checkpoint, 1)


def test_a_metric_in_turn_that_keeps_something_in_an_object_of_its_own(checkpoint):
    """Its attributes do not show it, but the number for the first batch does, after another batch."""
    import torchmetrics

    class Lengths:
        def __init__(self):
            self.found = []

    class Mean(torchmetrics.Metric):
        def __init__(self):
            super().__init__()
            self.lengths = Lengths()

        def update(self, preds, _target):
            self.lengths.found += preds[:, 0].tolist()

        def compute(self):
            return sum(self.lengths.found) / len(self.lengths.found)

    with pytest.raises(EvaluationError, match=r"'mean'.*reset"):
        result_of_ranks(task(lambda: [Mean()]), checkpoint, 1)


def test_a_metric_that_proves_to_be_no_sum_in_several_sets(checkpoint):
    """The last batch, a short one, shows it; each set begins again."""
    import torch
    import torchmetrics

    class Longest(torchmetrics.Metric):
        def __init__(self):
            super().__init__()
            self.add_state("size", torch.tensor(0), dist_reduce_fx="mean")

        def update(self, preds, _target):
            self.size = torch.tensor(1 + (len(preds) not in (BATCH, BATCH // 3, BATCH - 2 * (BATCH // 3))))

        def compute(self):
            return self.size

    given = task(lambda: [Longest()])
    given = replace(given, eval_sets=dict.fromkeys(("test", "again"), given.eval_sets["test"]))
    found = [result_of_ranks(given, checkpoint, ranks) for ranks in (1, 2)]
    assert found[0] == found[1]
    for numbers in found[0].values():
        assert "worker 0 evaluates this set alone" in numbers.notes[-1]


@pytest.mark.parametrize("kind", ["cap", "first"])
def test_a_metric_that_stops_adding_late_is_evaluated_in_turn(checkpoint, kind):
    """The number is that of one process: a part of the examples, for any number of workers."""
    import torch
    import torchmetrics

    limit = EXAMPLES // 2

    class Late(torchmetrics.Metric):
        def __init__(self):
            super().__init__()
            self.add_state("count", torch.tensor(0), dist_reduce_fx="sum")

        def update(self, preds, _target):
            if kind == "cap":
                self.count = torch.clamp(self.count + len(preds), max=limit)
            elif self.count < limit:
                self.count = self.count + len(preds)

        def compute(self):
            return self.count

    found = [result_of_ranks(task(lambda: [Late()]), checkpoint, ranks)["test"] for ranks in (1, 2, 3)]
    assert found[0] == found[1] == found[2]
    expected = limit if kind == "cap" else -(-limit // BATCH) * BATCH
    assert found[0].values["late"].value == expected
    assert "does not add up" in found[0].notes[-1]


@pytest.mark.parametrize("kind", ["smallest", "count"])
def test_a_metric_that_keeps_something_beside_its_states_is_evaluated_in_turn(checkpoint, kind):
    """Each worker would have it for its own batches; the merged states look right."""
    import torch
    import torchmetrics

    class Beside(torchmetrics.Metric):
        def __init__(self):
            super().__init__()
            self.add_state("count", torch.tensor(0), dist_reduce_fx="sum")
            self.beside = 0.0

        def update(self, preds, _target):
            self.count += len(preds)
            self.beside = min(self.beside, -float(preds.max())) if kind == "smallest" else self.beside + len(preds)

        def reset(self):
            super().reset()
            self.beside = 0.0

        def compute(self):
            return torch.tensor(self.beside)

    found = [result_of_ranks(task(lambda: [Beside()]), checkpoint, ranks)["test"] for ranks in (1, 2, 3)]
    assert found[0] == found[1] == found[2]
    expected = -float(tensors()[0].softmax(1).max()) if kind == "smallest" else EXAMPLES
    assert found[0].values["beside"].value == expected
    assert "keeps 'beside' outside of the states" in found[0].notes[-1]


def test_a_state_of_few_bits(checkpoint):
    """It is right as long as its number fits; torchmetrics itself would go on with a negative number."""
    import torch
    import torchmetrics

    class Small(torchmetrics.Metric):
        def __init__(self, factor):
            super().__init__()
            self.factor = factor
            self.add_state("count", torch.tensor(0, dtype=torch.int8), dist_reduce_fx="sum")

        def update(self, preds, _target):
            self.count += torch.tensor(self.factor * len(preds), dtype=torch.int8)

        def compute(self):
            return self.count.float()

    for ranks in (1, 2):
        found = result_of_ranks(task(lambda: [Small(1)]), checkpoint, ranks)["test"]
        assert found.values["small"].value == EXAMPLES
        with pytest.raises(EvaluationError, match=r"'count' of int8.*torch.tensor\(0\)"):
            result_of_ranks(task(lambda: [Small(2)]), checkpoint, ranks)


def test_rows_are_read_where_a_sample_or_slices_need_them():
    """Those of a set without intervals, of few examples or of an unknown number are not copied."""
    import torch
    from torchmetrics.classification import MulticlassF1Score

    from sidecar.evaluation.backends.torch.torchmetrics_members import TorchMetrics

    x, y = tensors()
    metrics = TorchMetrics([(None, MulticlassF1Score(3))], torch.device("cpu"))
    shard = Shard(0, 1)
    metrics.arrays(y, x, None, EXAMPLES)  # tries the metric

    def read(info):
        metrics.states(info)
        return [len(array) for array in metrics.arrays(y, x, None, EXAMPLES)[-2:]]

    assert read(EvalSetInfo(EXAMPLES, shard)) == [EXAMPLES, EXAMPLES]
    for examples, intervals in ((EXAMPLES, False), (99, None), (None, None)):
        assert read(EvalSetInfo(examples, shard, intervals=intervals)) == [0, 0]


def test_a_new_model_is_compared_on_what_slices_read(tmp_path):
    """Rows of more than 5 KB are read for slices alone; a model with a cache is compared with a new one."""
    import torch
    import torchmetrics
    from torch import nn
    from torch.utils.data import TensorDataset

    class Counted(nn.Linear):
        examples = 0

        def forward(self, x):
            self.examples = len(x)
            return super().forward(x).repeat(1, 1500)

    x, _ = tensors()
    given = Task(
        build_model=lambda: Counted(3, 1),
        eval_sets={"test": lambda: TensorDataset(x, x[:, :1].repeat(1, 1500))},
        metrics=lambda: [torchmetrics.MeanSquaredError()],
        slices={"high": lambda _, y: y[:, 0] > 0},
        batch_size=BATCH,
    )
    torch.save(Counted(3, 1).state_dict(), tmp_path / "step-1.pt")
    assert result_of_ranks(given, tmp_path / "step-1.pt", 1)["test"].slices["high"]


def test_torchmetrics_is_imported_by_the_task_alone():
    """The package is optional, and takes seconds to import."""
    code = (
        "import sys, sidecar.evaluation.backends.torch.torchmetrics_members as members\n"
        "assert not members.is_torchmetric(object())\n"
        "assert 'torchmetrics' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)
