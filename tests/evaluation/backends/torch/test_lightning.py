"""A LightningModule's own validation_step, without a Trainer: Lightning's numbers, where these are right."""

# ruff: noqa: ARG001, ARG005, PLW0108 - Lightning calls methods with these arguments
import math

import pytest
from tests_torch import result_of_ranks, torch_evaluator

from sidecar import Task
from sidecar.errors import TaskError
from sidecar.evaluation.failures import EvaluationError

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

N, CLASSES, BATCH = 103, 4, 10


def data():
    import torch
    from torch.utils.data import TensorDataset

    x = torch.randn(N, 6, generator=torch.Generator().manual_seed(3))
    return TensorDataset(x, (x.sum(1) * 1.5).long().abs() % CLASSES)


def module(**methods):
    """A class of LightningModule with these methods, and metrics of torchmetrics."""
    import pytorch_lightning as lightning
    import torch
    import torchmetrics
    from torch import nn

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, CLASSES))
            kind = torchmetrics.classification
            self.train_accuracy = kind.MulticlassAccuracy(CLASSES)
            self.accuracy = kind.MulticlassAccuracy(CLASSES, average="micro")
            self.area = kind.MulticlassAUROC(CLASSES)
            self.several = torchmetrics.MetricCollection(
                {"f1": kind.MulticlassF1Score(CLASSES), "recall": kind.MulticlassRecall(CLASSES)}
            )
            self.outputs = []

        def forward(self, x):
            return self.net(x)

    return type("Module", (Module,), methods)


@pytest.fixture
def checkpoint(tmp_path):
    """Weights of the module, as a state dict."""
    import torch

    torch.save(module()().state_dict(), tmp_path / "m.pt")
    return tmp_path / "m.pt"


def task(kind, **changes):
    return Task(**({"build_model": kind, "eval_sets": {"test": data}, "batch_size": BATCH} | changes))


def of_ranks(kind, checkpoint, ranks=1, **changes):
    """The numbers of so many ranks, by name."""
    return {
        name: one.value
        for name, one in result_of_ranks(task(kind, **changes), checkpoint, ranks)["test"].values.items()
    }


def of_trainer(kind):
    """Return what Lightning's own Trainer finds in one process."""
    import logging

    import pytorch_lightning as lightning
    from torch.utils.data import DataLoader

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    trainer = lightning.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    (found,) = trainer.validate(kind(), DataLoader(data(), BATCH), verbose=False)
    return found


def usual(self, batch, batch_idx):
    """Return what most modules do."""
    from torch import nn

    x, y = batch
    logits = self(x)
    self.log("val_loss", nn.functional.cross_entropy(logits, y), prog_bar=True, sync_dist=True)
    self.accuracy(logits, y)
    self.log("val_accuracy", self.accuracy, on_epoch=True)
    self.area.update(logits.softmax(1), y)
    self.log("val_area", self.area)
    self.several(logits, y)
    self.log_dict(self.several)
    self.log("right", (logits.argmax(1) == y).sum(), reduce_fx="sum")


def at_the_end(self):
    """Numbers that only all batches together give."""
    self.log("end", self.accuracy.compute() * 2)
    self.accuracy.reset()


@pytest.mark.parametrize(
    "methods", [{"validation_step": usual}, {"validation_step": usual, "on_validation_epoch_end": at_the_end}]
)
@pytest.mark.drawn(1)
def test_numbers_are_those_of_the_trainer(checkpoint, methods):
    """With an uneven last batch; and the bits are equal for 1 to 4 ranks."""
    kind = module(**methods)
    found = [of_ranks(kind, checkpoint, ranks) for ranks in (1, 2, 3, 4)]
    expected = of_trainer(kind)
    if "on_validation_epoch_end" in methods:  # the Trainer computes what is left after reset()
        expected["val_accuracy"] = expected["end"] / 2
    assert found[0].keys() == expected.keys()
    for name, number in expected.items():
        assert found[0][name] == pytest.approx(number, rel=1e-5), name
    assert {name: number.hex() for name, number in found[0].items()} == {
        name: number.hex() for name, number in found[3].items()
    }
    assert found[0] == found[1] == found[2] == found[3]


def test_a_metric_that_is_only_computed_at_the_end(checkpoint):
    """It is right on all data, though no rank has seen all of it; and it is published under the name of the log."""

    def step(self, batch, batch_idx):
        self.accuracy.update(self(batch[0]), batch[1])

    def end(self):
        self.log("by_hand", self.accuracy.compute())
        self.log("by_metric", self.accuracy)

    kind = module(validation_step=step, on_validation_epoch_end=end)
    first, third = of_ranks(kind, checkpoint), of_ranks(kind, checkpoint, 3)
    assert first == third
    assert first.keys() == {"by_hand", "by_metric"}
    assert first["by_hand"] == pytest.approx(first["by_metric"], abs=1e-6)
    assert first["by_metric"] == pytest.approx(of_trainer(kind)["by_hand"], abs=1e-6)


def test_the_size_of_a_batch_can_be_given(checkpoint):
    """As for sequences: weights are the counted tokens."""

    def step(self, batch, batch_idx):
        self.log("odd", batch[0].mean(), batch_size=1)

    kind = module(validation_step=step)
    means = [float(data()[start : start + BATCH][0].mean()) for start in range(0, N, BATCH)]
    assert of_ranks(kind, checkpoint, 2)["odd"] == pytest.approx(sum(means) / len(means), rel=1e-6)


def test_the_number_of_the_batch_is_that_of_the_whole_set(checkpoint):
    """Give the same number for any number of ranks, and note that it depends on the division."""

    def step(self, batch, batch_idx):
        self.log("number", float(batch_idx), batch_size=1)

    numbers = range(math.ceil(N / BATCH))
    for ranks in (1, 3):
        result = result_of_ranks(task(module(validation_step=step)), checkpoint, ranks)["test"]
        assert result.values["number"].value == sum(numbers) / len(numbers)
        (note,) = result.notes
        assert note.startswith("number depends on how examples are divided into batches")


def test_a_loss_that_is_not_a_number_is_told(checkpoint):
    """A loss that is not a number is published as None for Lightning, too."""

    def step(self, batch, batch_idx):
        self.log("loss", float("nan") if batch_idx == 3 else 1.0)

    assert of_ranks(module(validation_step=step), checkpoint, 2)["loss"] is None


def keeps(self, batch, batch_idx):
    self.outputs.append(self(batch[0]))


def of_the_kept(self):
    self.log("mean", sum(map(len, self.outputs)))


class Meter:
    """Add up what it is given, as the AverageMeter of many scripts does."""

    def __init__(self):
        self.total = self.count = 0

    def add(self, value, count):
        """Add a mean of so many values."""
        self.total, self.count = self.total + value * count, self.count + count


METER, HIDDEN, FOR_EVER = Meter(), [], []


def metered(self, batch, batch_idx):
    self.log("x", 1.0)
    METER.add(float(self(batch[0]).sum()), len(batch[0]))


def of_the_meter(self):
    self.log("mean", METER.total / METER.count)
    METER.__init__()


def keeps_elsewhere(self, batch, batch_idx):
    self.log("x", 1.0)
    HIDDEN.append(float(self(batch[0]).sum()))


def of_the_list(self):
    self.log("sum", sum(HIDDEN))
    HIDDEN.clear()


def keeps_for_ever(self, batch, batch_idx):
    self.log("x", 1.0)
    FOR_EVER.append(float(self(batch[0]).sum()))


def of_the_newest(self):
    self.log("newest", sum(FOR_EVER[-(N // BATCH + 1) :]))


REFUSED = {
    "a list that nobody empties": (
        {"validation_step": keeps_for_ever, "on_validation_epoch_end": of_the_newest},
        "on_validation_epoch_end makes 'newest'",
    ),
    "a meter": (
        {"validation_step": metered, "on_validation_epoch_end": of_the_meter},
        "on_validation_epoch_end makes 'mean'",
    ),
    "a list elsewhere": (
        {"validation_step": keeps_elsewhere, "on_validation_epoch_end": of_the_list},
        "on_validation_epoch_end makes 'sum'",
    ),
    "a list of outputs": ({"validation_step": keeps, "on_validation_epoch_end": of_the_kept}, "'outputs'"),
    "nothing": ({"validation_step": lambda self, batch, batch_idx: None}, "logs nothing"),
    "a trainer": ({"validation_step": lambda self, batch, batch_idx: self.trainer.world_size}, "needs a Trainer"),
    "all_gather": ({"validation_step": lambda self, batch, batch_idx: self.all_gather(batch[0])}, "needs a Trainer"),
    "an older hook": (
        {"validation_step": usual, "validation_epoch_end": lambda self, outputs: None},
        "validation_epoch_end",
    ),
    "the largest": (
        {"validation_step": lambda self, batch, batch_idx: self.log("x", 1.0, reduce_fx="max")},
        "reduce_fx='max'",
    ),
    "a step only": (
        {"validation_step": lambda self, batch, batch_idx: self.log("x", 1.0, on_step=True, on_epoch=False)},
        "on_epoch=False",
    ),
    "some batches": (
        {"validation_step": lambda self, batch, batch_idx: [self.log("x", 1.0), batch_idx or self.log("y", 1.0)]},
        "'y' for some batches",
    ),
    "a metric that is not updated": (
        {"validation_step": lambda self, batch, batch_idx: self.log("a", self.accuracy)},
        "does not update it",
    ),
    "other arguments": (
        {"validation_step": lambda self, batch, batch_idx: self.accuracy.update(target=batch[1], preds=batch[1], n=1)},
        "n",
    ),
    "an array": ({"validation_step": lambda self, batch, batch_idx: self.log("x", batch[0])}, "not a number"),
    "no step": ({}, "is missing"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_right_is_refused(checkpoint, name):
    """The error gives the reason why a module cannot be evaluated correctly."""
    methods, reason = REFUSED[name]
    with pytest.raises((EvaluationError, TypeError)) as caught:
        of_ranks(module(**methods), checkpoint, 2)
    assert reason in str(caught.value)


def logs_the_last(self, batch, batch_idx):
    """A metric that cannot be merged, next to one that can."""
    x, y = batch
    logits = self(x)
    self.last(logits, y)
    self.accuracy(logits, y)
    self.log("last", self.last)
    self.log("accuracy", self.accuracy)


def with_the_last(**methods):
    """A module with a metric whose state is that of the last batch."""
    import torch
    import torchmetrics

    class Last(torchmetrics.Metric):
        full_state_update = False

        def __init__(self):
            super().__init__()
            self.add_state("seen", torch.tensor(0.0), dist_reduce_fx="sum")

        def update(self, preds, _target):
            self.seen = preds.softmax(1).max() + self.seen / 2

        def compute(self):
            return self.seen

    class Module(module(**{"validation_step": logs_the_last} | methods)):
        def __init__(self):
            super().__init__()
            self.last = Last()

    return Module


def test_a_metric_in_turn(checkpoint):
    """Worker 0 updates a copy of it with all batches in order, and a note says so; the others are merged."""
    import torch
    from torch.utils.data import DataLoader

    kind = with_the_last()
    model = kind().eval()
    model.load_state_dict(torch.load(checkpoint))
    expected = 0.0
    with torch.no_grad():
        for x, _ in DataLoader(data(), batch_size=BATCH):
            expected = model(x).softmax(1).max() + expected / 2
    results = [result_of_ranks(task(kind), checkpoint, ranks)["test"] for ranks in (1, 2, 3)]
    assert results[0] == results[1] == results[2]
    assert results[0].values["last"].value == float(expected)
    assert "worker 0 evaluates this set alone" in results[0].notes[-1]


def test_a_metric_that_keeps_something_beside_its_states(checkpoint):
    """It is evaluated in turn, though the module has updated it before it is tried."""
    import torch
    import torchmetrics

    class Smallest(torchmetrics.Metric):
        def __init__(self):
            super().__init__()
            self.add_state("count", torch.tensor(0), dist_reduce_fx="sum")
            self.smallest = 1.0

        def update(self, preds, _target):
            self.count += len(preds)
            self.smallest = min(self.smallest, float(preds.min()))

        def reset(self):
            super().reset()
            self.smallest = 1.0

        def compute(self):
            return torch.tensor(self.smallest)

    def step(self, batch, batch_idx):
        self.smallest.update(batch[0], batch[1])
        self.log("smallest", self.smallest)

    class Module(module(validation_step=step)):
        def __init__(self):
            super().__init__()
            self.smallest = Smallest()

    results = [result_of_ranks(task(Module), checkpoint, ranks)["test"] for ranks in (1, 2, 3)]
    assert results[0] == results[1] == results[2]
    assert results[0].values["smallest"].value == float(data().tensors[0].min())
    assert "keeps 'smallest' outside of the states" in results[0].notes[-1]


def test_a_metric_that_reads_batches_in_two_ways(checkpoint):
    """Logits from 0 to 1 pass for probabilities: noted, and refused in sets that divide themselves."""
    from torch.utils.data import Subset

    def mixed(self, batch, batch_idx):
        logits = self(batch[0])
        self.area.update(logits.sigmoid() if batch[0].sum() > 0 else 9 * logits, batch[1])
        self.log("val_area", self.area)

    kind = module(validation_step=mixed)
    found = [result_of_ranks(task(kind), checkpoint, ranks)["test"] for ranks in (1, 2, 3)]
    assert found[0] == found[1] == found[2]
    (note,) = (note for note in found[0].notes if "probabilities" in note)
    assert "of 11 batches" in note
    assert "torch.sigmoid(logits)" in note
    divided = {"test": lambda shard: Subset(data(), range(shard.rank, N, shard.world_size))}
    with pytest.raises(EvaluationError, match="divides itself"):
        result_of_ranks(task(kind, eval_sets=divided), checkpoint, 2)
    clean = module(validation_step=usual)
    assert not any("probabilities" in note for note in result_of_ranks(task(clean), checkpoint, 2)["test"].notes)


def test_a_metric_in_turn_that_the_end_may_use(checkpoint):
    """Other workers have no batches of it: refused, with the way out."""
    with pytest.raises(EvaluationError, match=r"'last'.*Task\(metrics=…\)"):
        result_of_ranks(task(with_the_last(on_validation_epoch_end=lambda self: None)), checkpoint, 1)


def test_other_modules_need_metrics_or_a_loss(checkpoint):
    """A LightningModule measures by itself, others do not; with metrics its own step is not called."""
    import torch

    from sidecar.metrics import Accuracy

    with pytest.raises((EvaluationError, TaskError)) as caught:
        of_ranks(lambda: torch.nn.Linear(6, CLASSES), checkpoint)
    assert "LightningModule" in str(caught.value)
    with pytest.raises(EvaluationError) as caught:
        of_ranks(module(validation_step=usual), checkpoint, predictions=True)
    assert "predictions" in str(caught.value)
    assert of_ranks(module(), checkpoint, metrics=lambda: [Accuracy()]).keys() == {"accuracy"}


def test_hooks_at_the_start_are_called(checkpoint):
    """A module may prepare itself there."""

    def start(self):
        self.factor = 2.0

    def step(self, batch, batch_idx):
        self.log("x", getattr(self, "factor", 1.0))

    kind = module(validation_step=step, on_validation_epoch_start=start)
    assert of_ranks(kind, checkpoint, 2)["x"] == 2.0


def logs(*found):
    """Log the arguments that a step got."""

    def log(self, batch, number=-1.0, index=-1.0):
        self.log("mean", batch[0].mean())
        self.log("number", float(number), batch_size=1)
        self.log("index", float(index), batch_size=1)

    return log(*found)


def from_iterator(self, dataloader_iter):
    logs(self, *next(dataloader_iter))


SIGNATURES = {
    "batch alone": (lambda self, batch: logs(self, batch), False, False),
    "batch, batch_idx": (lambda self, batch, batch_idx: logs(self, batch, batch_idx), True, False),
    "other names": (lambda self, inputs, i: logs(self, inputs, i), True, False),
    "a default": (lambda self, batch, batch_idx=-7: logs(self, batch, batch_idx), True, False),
    "any": (lambda self, *args: logs(self, *args), True, True),
    "any by name": (lambda self, batch, batch_idx, **more: logs(self, batch, batch_idx, **more), True, False),
    "an index with a default": (
        lambda self, batch, batch_idx, dataloader_idx=0: logs(self, batch, batch_idx, dataloader_idx),
        True,
        True,
    ),
    "an index": (
        lambda self, batch, batch_idx, dataloader_idx: logs(self, batch, batch_idx, dataloader_idx),
        True,
        True,
    ),
    "an index of another name": (lambda self, b, i, j=0: logs(self, b, i, j), True, True),
    "by name only": (
        lambda self, batch, *, batch_idx, dataloader_idx=0: logs(self, batch, batch_idx, dataloader_idx),
        True,
        True,
    ),
    "all by name": (lambda self, *, batch, batch_idx: logs(self, batch, batch_idx), True, False),
    "an iterator": (from_iterator, True, True),
}


@pytest.mark.parametrize("name", SIGNATURES)
@pytest.mark.drawn(4)
def test_signatures_of_the_step(checkpoint, name):
    """All that Lightning accepts, with one eval set and with two: numbers of batches, and that of the set."""
    import torch
    from torch.utils.data import TensorDataset

    step, takes_number, takes_index = SIGNATURES[name]
    kind = module(validation_step=step)
    numbers = range(math.ceil(N / BATCH))
    for ranks in (1, 2):
        found = of_ranks(kind, checkpoint, ranks)
        assert found["number"] == (sum(numbers) / len(numbers) if takes_number else -1.0)
    x, y = data().tensors
    sets = {"test": data, "more": lambda: TensorDataset(torch.flip(x, (0,)) * 2, y)}
    results = result_of_ranks(task(kind, eval_sets=sets), checkpoint, 2)
    assert results["test"].values["mean"].value == pytest.approx(x.mean().item(), rel=1e-4)
    assert results["more"].values["mean"].value == pytest.approx(2 * x.mean().item(), rel=1e-4)
    indices = [results[each].values["index"].value for each in ("test", "more")]
    assert indices == ([0.0, 1.0] if takes_index else [-1.0, -1.0])


def test_functions_of_torch_reduce_as_their_names_do(checkpoint):
    """Lightning takes both; others are refused by name."""
    import torch

    def logs(reduce):
        return module(validation_step=lambda self, batch, batch_idx: self.log("n", 1.0, reduce_fx=reduce))

    batches = math.ceil(N / BATCH)
    for reduce, number in ((torch.sum, batches), ("sum", batches), (torch.mean, 1.0)):
        assert of_ranks(logs(reduce), checkpoint, 2) == {"n": number}
    with pytest.raises(EvaluationError, match="reduce_fx='amax'"):
        of_ranks(logs(torch.amax), checkpoint)


def test_each_eval_set_has_metrics_and_names_of_its_own(checkpoint):
    """A list of metrics, one for each set, is usual; the number of the second one was 0."""
    import torch
    from torch.utils.data import TensorDataset
    from torchmetrics.classification import MulticlassAccuracy

    def step(self, batch, batch_idx, dataloader_idx=0):
        metric = (self.accuracy, self.train_accuracy)[dataloader_idx]
        metric.update(self(batch[0]), batch[1])
        self.log("accuracy", metric)
        self.log(f"x/{dataloader_idx}", 1.0)

    kind = module(validation_step=step)
    model = kind().eval()
    model.load_state_dict(torch.load(checkpoint))
    x, y = data().tensors
    expected = MulticlassAccuracy(CLASSES)(model(-x), y)
    sets = {"a": data, "b": lambda: TensorDataset(-x, y)}
    for ranks in (1, 2):
        found = result_of_ranks(task(kind, eval_sets=sets), checkpoint, ranks)
        assert found["a"].values["accuracy"].value == of_ranks(kind, checkpoint)["accuracy"]
        assert found["b"].values["accuracy"].value == pytest.approx(float(expected), rel=1e-6)
        assert [each.values.keys() for each in found.values()] == [{"accuracy", "x/0"}, {"accuracy", "x/1"}]
    ended = module(validation_step=step, on_validation_epoch_end=lambda self: None)
    with pytest.raises(EvaluationError, match="other metrics"):
        result_of_ranks(task(ended, eval_sets=sets), checkpoint, 1)


def test_only_the_set_of_a_metric_in_turn_is_left_to_worker_0(checkpoint):
    """The batches of the other set remain divided."""

    def step(self, batch, batch_idx, dataloader_idx=0):
        if dataloader_idx:
            logs_the_last(self, batch, batch_idx)
        else:
            usual(self, batch, batch_idx)

    given = task(with_the_last(validation_step=step), eval_sets={"a": data, "b": data})
    streams = torch_evaluator(given, 0, 2).read(lambda: None)
    batches = math.ceil(N / BATCH)
    assert [stream.own_batches for stream in streams] == [math.ceil(batches / 2), batches]
    found = [result_of_ranks(given, checkpoint, ranks) for ranks in (1, 2)]
    assert found[0] == found[1]
    assert "worker 0 evaluates this set alone" in found[0]["b"].notes[-1]
    assert not any("worker 0" in note for note in found[0]["a"].notes)


def test_a_metric_in_turn_is_updated_once_for_each_batch(checkpoint):
    """A second update, as for another view of the batch, would be lost."""

    def step(self, batch, batch_idx):
        self.last.update(self(batch[0]), batch[1])
        logs_the_last(self, batch, batch_idx)

    with pytest.raises(EvaluationError, match="'last' several times"):
        result_of_ranks(task(with_the_last(validation_step=step)), checkpoint, 1)


def test_a_metric_that_some_batches_update(checkpoint):
    """The first batch does not show it."""

    def step(self, batch, batch_idx):
        usual(self, batch, batch_idx)
        if batch_idx > 1:
            self.train_accuracy.update(self(batch[0]), batch[1])

    with pytest.raises(EvaluationError, match="'train_accuracy' for some batches only"):
        of_ranks(module(validation_step=step), checkpoint)


def test_the_epoch_and_the_step_are_those_of_the_checkpoint(tmp_path):
    """A loss with a term that grows during training; files without them, as state dicts, are at the beginning."""
    import torch

    def step(self, batch, batch_idx):
        self.log("epoch_of_file", float(self.current_epoch))
        self.log("step_of_file", float(self.trainer.global_step) + self.global_rank)

    kind = module(validation_step=step)
    torch.save({"state_dict": kind().state_dict(), "epoch": 2, "global_step": 33}, tmp_path / "m.ckpt")
    torch.save(kind().state_dict(), tmp_path / "m.pt")
    assert of_ranks(kind, tmp_path / "m.ckpt", 3) == {"epoch_of_file": 2.0, "step_of_file": 33.0}
    assert of_ranks(kind, tmp_path / "m.pt") == {"epoch_of_file": 0.0, "step_of_file": 0.0}


def test_hooks_that_make_and_restore_the_module(tmp_path):
    """`setup` and `configure_model` before the restore; `on_load_checkpoint` gets what `on_save_checkpoint` wrote."""
    import torch
    from torch import nn

    def setup(self, stage):
        self.stage = stage

    def configure_model(self):
        if not hasattr(self, "late"):
            self.late = nn.Linear(1, 1)

    def on_load_checkpoint(self, checkpoint):
        self.threshold = checkpoint["threshold"]

    def step(self, batch, batch_idx):
        self.log("weight", self.late.weight.sum())
        self.log("threshold", self.threshold if self.stage == "validate" else 0.0)

    hooks = {"setup": setup, "configure_model": configure_model, "on_load_checkpoint": on_load_checkpoint}
    kind = module(validation_step=step, threshold=0.5, **hooks)
    trained = kind()
    trained.configure_model()
    for number, threshold in ((1, 0.25), (2, 0.75)):
        values = {"state_dict": trained.state_dict(), "threshold": threshold}
        torch.save(values, tmp_path / f"step-{number}.ckpt")
        right = {"weight": pytest.approx(trained.late.weight.item()), "threshold": threshold}
        for ranks in (1, 3):
            assert of_ranks(kind, tmp_path / f"step-{number}.ckpt", ranks) == right
    asks = module(validation_step=step, setup=lambda self, stage: self.trainer.datamodule)
    with pytest.raises(EvaluationError, match="needs a Trainer in setup"):
        torch_evaluator(task(asks))


def test_hooks_of_a_batch_are_called(checkpoint):
    """Some modules scale their inputs in one, and log in another: the numbers are those of the Trainer."""

    def before(self, batch, dataloader_idx):
        return batch[0] + 1, batch[1]

    def after(self, batch, dataloader_idx):
        return batch[0] * 3, batch[1]

    def start(self, batch, batch_idx, dataloader_idx=0):
        self.factor = float(batch_idx + 1)

    def end(self, outputs, batch, batch_idx, dataloader_idx=0):
        self.log("end", outputs["x"] + batch[0].mean() * self.factor)

    def step(self, batch, batch_idx):
        self.log("mean", batch[0].mean())
        return {"x": self(batch[0]).mean()}

    kind = module(
        validation_step=step,
        on_before_batch_transfer=before,
        on_after_batch_transfer=after,
        on_validation_batch_start=start,
        on_validation_batch_end=end,
    )
    expected, found = of_trainer(kind), of_ranks(kind, checkpoint, 2)
    assert found == of_ranks(kind, checkpoint, 3)
    assert found == pytest.approx(expected, rel=1e-4)
