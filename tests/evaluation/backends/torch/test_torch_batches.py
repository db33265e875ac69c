"""Models, steps, losses and metrics that depend on how examples are divided into batches: noted, or refused."""

import math

import numpy as np
import pytest
from tests_torch import result_of_ranks

from sidecar import EvalSet, Task
from sidecar.evaluation.failures import EvaluationError
from sidecar.metrics import Accuracy, Mean, Sums

pytestmark = pytest.mark.torch

EXAMPLES = 61
NOTE = "another batch size gives another number"


def tensors(examples=EXAMPLES):
    import torch

    x = torch.randn(examples, 4, generator=torch.Generator().manual_seed(2))
    return x, (x.sum(1) > 0).long()


def dataset():
    from torch.utils.data import TensorDataset

    return TensorDataset(*tensors())


def net(kind="plain"):
    """A net of two classes, with something of its own."""
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)
            if kind == "batch statistics":
                self.norm = nn.BatchNorm1d(8, track_running_stats=False)
            elif kind == "running statistics":
                self.norm = nn.BatchNorm1d(8)
            elif kind == "dropout":
                self.norm = nn.Dropout(0.2)

        def forward(self, x):
            if kind == "centred":
                x = x - x.mean(0)
            hidden = self.norm(self.first(x)) if hasattr(self, "norm") else self.first(x)
            if kind == "size":
                hidden = hidden / len(x)
            if kind == "dropout":
                hidden = torch.nn.functional.dropout(hidden, 0.2, training=True)
            if kind == "fixed":
                hidden = hidden.reshape(8, 8) if len(x) == 8 else hidden.reshape(5, 8)
            return self.last(torch.tanh(hidden))

    return Net()


def task(kind="plain", **changes):
    from torch import nn

    given = {
        "build_model": lambda: net(kind),
        "eval_sets": {"test": dataset},
        "metrics": lambda: [Accuracy()],
        "loss": nn.CrossEntropyLoss(),
        "batch_size": 8,
    }
    return Task(**given | changes)


def saved(model, path):
    import torch

    torch.save(model.state_dict(), path)
    return path


@pytest.fixture
def evaluate(tmp_path):
    """Evaluates a task with 1, 2 and 3 ranks, whose results must be equal with their notes."""
    import torch

    def run(given, ranks=(1, 2, 3)):
        torch.manual_seed(4)
        path = saved(given.build_model(), tmp_path / "step-1.pt")
        results = [result_of_ranks(given, path, count)["test"] for count in ranks]
        assert all(result == results[0] for result in results[1:])
        return results[0]

    return run


@pytest.mark.parametrize("kind", ["batch statistics", "centred", "size"])
def test_models_that_depend_on_the_batch_are_noted(evaluate, kind):
    (note,) = evaluate(task(kind)).notes
    assert "predictions" in note
    assert NOTE in note


@pytest.mark.parametrize("kind", ["plain", "running statistics"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_plain_models_have_no_note(evaluate, kind, dtype):
    """Whatever type they compute in, and within autocast."""
    import torch

    def build():
        return net(kind).to(getattr(torch, dtype))

    def step(model, batch):
        x, y = batch
        return y, model(x.to(getattr(torch, dtype))).float()

    assert evaluate(task(build_model=build, step=step)).notes == ()

    def automatic(model, batch):
        x, y = batch
        with torch.autocast("cpu", torch.bfloat16):
            return y, model(x).float()

    assert evaluate(task(kind, step=automatic)).notes == ()


def test_random_models_have_one_note(evaluate):
    """The halves of a batch draw other numbers, so they are not compared."""
    (note,) = evaluate(task("dropout")).notes
    assert "random numbers" in note


def test_a_model_of_one_batch_size_is_said_to_be_untested(evaluate):
    (note,) = evaluate(task("fixed")).notes
    assert "not known" in note


def test_a_single_example_per_batch_is_not_divided(evaluate):
    assert evaluate(task("centred", batch_size=1)).notes == ()


def texts():
    """Examples of different lengths, with their tokens from 1 on."""
    import torch

    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(2, 12, (EXAMPLES,), generator=generator).tolist()
    return [(torch.randint(1, 20, (length,), generator=generator), length % 3) for length in lengths]


def padded(examples):
    import torch

    tokens, labels = zip(*examples, strict=True)
    return torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True), torch.tensor(labels)


def reader(masked):
    from torch import nn

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.last = nn.Embedding(20, 8), nn.Linear(8, 3)

        def forward(self, tokens):
            embedded = self.embedding(tokens)
            if not masked:
                return self.last(embedded.mean(1))
            counts = (tokens > 0).unsqueeze(-1)
            return self.last((embedded * counts).sum(1) / counts.sum(1))

    return Reader()


@pytest.mark.parametrize("processes", [0, 1])
@pytest.mark.parametrize("iterable", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_padding_without_a_mask_is_noted(evaluate, masked, iterable, processes):
    """The halves are collated anew, so that they have the padding of their own."""
    from torch.utils.data import DataLoader, IterableDataset

    class Texts(IterableDataset):
        def __iter__(self):
            return iter(texts())

    if iterable and processes:
        return

    def source():
        data = Texts() if iterable else texts()
        return DataLoader(data, batch_size=8, collate_fn=padded, num_workers=processes)

    given = task(build_model=lambda: reader(masked), eval_sets={"test": source}, batch_size=None)
    notes = evaluate(given).notes
    assert len(notes) == (0 if masked else 1)
    assert masked or "predictions" in notes[0]


def tagger():
    from torch import nn

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.last = nn.Embedding(20, 8), nn.Linear(8, 3)

        def forward(self, tokens):
            return self.last(self.embedding(tokens))

    return Tagger()


@pytest.mark.parametrize("ignored", [True, False])
def test_positions_of_padding_are_compared_by_what_is_measured(evaluate, ignored):
    """Predictions (n, length, classes) of another length: a loss that counts padding depends on the batch."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader

    def collate(examples):
        tokens = torch.nn.utils.rnn.pad_sequence([tokens for tokens, _ in examples], batch_first=True)
        return tokens, torch.where(tokens > 0, tokens % 3, -100 if ignored else 0)

    def source():
        return DataLoader(texts(), batch_size=8, collate_fn=collate)

    given = task(build_model=tagger, eval_sets={"test": source}, loss=nn.CrossEntropyLoss(), batch_size=None)
    notes = evaluate(given).notes
    assert bool(notes) == (not ignored)
    assert ignored or notes[0].startswith("loss, accuracy depend")


def auc(y, scores):
    return (scores[y == 1][:, None] > scores[y == 0][None]).mean()


def test_losses_and_metrics_of_a_batch_are_noted_by_name(evaluate):
    """The predictions are fine, so the note names what is not."""
    from torch.nn import functional

    given = task(
        loss=lambda p, y: functional.cross_entropy(p - p.mean(0), y, reduction="none"),
        metrics=lambda: [
            Accuracy(),
            Sums(lambda y, p: {"auc": auc(y, p[:, 0]), "n": 1}, lambda t: t["auc"] / t["n"], name="auc"),
            Mean(lambda y, p: np.full(len(y), np.median(p[:, 0])), name="median"),
        ],
    )
    (note,) = evaluate(given).notes
    assert note.startswith("loss, auc, median depend")


def test_what_depends_on_the_batch_is_refused_where_workers_make_batches(evaluate):
    from torch.utils.data import Subset

    def divided(shard):
        return Subset(dataset(), range(shard.rank, EXAMPLES, shard.world_size))

    for kind in ("batch statistics", "centred"):
        with pytest.raises(EvaluationError, match="divides itself"):
            evaluate(task(kind, eval_sets={"test": EvalSet(divided)}), ranks=(2,))
    for count in (1, 2, 3):
        assert evaluate(task(eval_sets={"test": EvalSet(divided)}), ranks=(count,)).notes == ()
        with pytest.raises(EvaluationError, match="random numbers"):
            evaluate(task("dropout", eval_sets={"test": EvalSet(divided)}), ranks=(count,))


def share(right, n, **_):
    return right / n


@pytest.mark.parametrize("name", ["BinaryAccuracy", "MultilabelF1Score", "MulticlassAUROC", "MulticlassAccuracy"])
@pytest.mark.parametrize("scale", ["both", "logits", "probabilities"])
def test_a_torchmetric_that_reads_batches_in_two_ways_is_noted(evaluate, name, scale):
    """All logits of a batch may lie from 0 to 1 by chance: torchmetrics then takes them for probabilities."""
    import torch
    from torch.utils.data import Subset
    from torchmetrics import classification

    def predict(model, x):
        logits = torch.clamp(model(x), -1, 1)
        if scale == "probabilities":
            return logits.softmax(1)
        return torch.where(x[:, :1] > 1.3, logits - 2, logits.abs()) if scale == "both" else logits - 2

    def step(model, batch):
        x, y = batch
        predictions = predict(model, x)
        if name.startswith("Binary"):
            return y, predictions[:, 0]
        return (y if name.startswith("Multiclass") else torch.stack([y, 1 - y], 1)), predictions

    def divided(shard):
        return Subset(dataset(), range(shard.rank, EXAMPLES, shard.world_size))

    metric = getattr(classification, name)
    sizes = [] if name.startswith("Binary") else [2]
    given = {"step": step, "loss": None, "metrics": lambda: [metric(*sizes)]}
    notes = evaluate(task(**given)).notes
    if scale == "both" and name != "MulticlassAccuracy":
        assert any(note.startswith(f"{name.lower()} takes a batch for probabilities") for note in notes)
        with pytest.raises(EvaluationError, match="from 0 to 1"):
            evaluate(task(**given, eval_sets={"test": EvalSet(divided)}), ranks=(2,))
    else:
        assert notes == ()
        evaluate(task(**given, eval_sets={"test": EvalSet(divided)}), ranks=(2,))


UNUSED = {
    "constant": lambda totals: totals["right"] / totals["n"],
    "get": lambda totals: totals.get("right") / totals["n"],
    "unpacked": lambda totals: share(**totals),
}
USED = {
    "index": lambda totals: totals["right"] / totals["n"] + 0 * totals["batches"],
    "get": lambda totals: totals["right"] / totals["n"] / totals.get("batches", 1),
    "all": lambda totals: sum(totals.values()),
    "limit": lambda totals: totals["right"] / totals["n"] if totals["batches"] < 100 else 0.0,
}


def counting_batches(value):
    return [Sums(lambda y, p: {"right": (p.argmax(1) == y).sum(), "n": len(y), "batches": 1}, value, name="right")]


@pytest.mark.parametrize("kind", UNUSED)
def test_a_sum_that_no_number_needs_may_depend_on_batches(evaluate, kind):
    from torch.utils.data import Subset

    def divided(shard):
        return Subset(dataset(), range(shard.rank, EXAMPLES, shard.world_size))

    for source in (dataset, EvalSet(divided)):
        given = task(eval_sets={"test": source}, loss=None, metrics=lambda: counting_batches(UNUSED[kind]))
        for count in (1, 2, 3):
            assert evaluate(given, ranks=(count,)).notes == ()


@pytest.mark.parametrize("kind", USED)
def test_a_sum_that_a_number_needs_must_not_depend_on_batches_in_silence(evaluate, kind):
    (note,) = evaluate(task(loss=None, metrics=lambda: counting_batches(USED[kind]))).notes
    assert note.startswith("right depends")


def weighted(reduction="mean"):
    """A loss of one's own, as many repositories have it: a mean with its own divisor."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Weighted(nn.Module):
        def __init__(self):
            super().__init__()
            self.reduction = reduction

        def forward(self, predictions, y):
            losses, w = functional.cross_entropy(predictions, y, reduction="none"), torch.where(y == 1, 3.0, 1.0)
            if self.reduction == "mean":
                return (w * losses).sum() / w.sum()
            return (w * losses).sum() if self.reduction == "sum" else w * losses

    return Weighted()


def by_positives(predictions, y, reduction="mean"):
    from torch.nn import functional

    losses = functional.cross_entropy(predictions, y, reduction="none")
    return losses.sum() / (y == 1).sum() if reduction == "mean" else losses


def smooth_of_class():
    """A class of torch with a forward of one's own, which divides as torch does not."""
    from torch import nn

    class Smooth(nn.CrossEntropyLoss):
        def forward(self, predictions, y):
            return super().forward(predictions, y) * (2.0 if self.reduction == "mean" else 1.0)

    return Smooth()


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize(
    ("make", "line"),
    [
        (weighted, "Weighted(reduction='none')"),
        (lambda: by_positives, "by_positives(predictions, y, reduction='none')"),
        (smooth_of_class, "Smooth(reduction='none')"),
    ],
)
def test_a_loss_with_a_divisor_of_its_own_is_refused(evaluate, make, line, ranks):
    """The sentence has both numbers, and the lines to write instead."""
    with pytest.raises(EvaluationError) as caught:
        evaluate(task(loss=make()), ranks=(ranks,))
    assert line in str(caught.value)
    assert "Sums(lambda y, predictions:" in str(caught.value)


def test_a_divisor_that_only_a_later_batch_shows(evaluate):
    """Sorted labels: the first batches hold no positives, or one class only."""
    from torch.utils.data import TensorDataset

    x, y = tensors()
    order = y.sort(stable=True).indices

    def source():
        return TensorDataset(x[order], y[order])

    for ranks in (1, 2, 3):
        with pytest.raises(EvaluationError, match="Weighted"):
            evaluate(task(loss=weighted(), eval_sets={"test": source}), ranks=(ranks,))


def test_losses_of_ones_own_that_divide_as_usual(evaluate):
    """Sums and means of items, and classes of torch whose forward only converts: the criterion's own number."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Converting(nn.CrossEntropyLoss):
        def forward(self, predictions, y):
            return super().forward(predictions.float(), y.long())

    class Binary(nn.BCEWithLogitsLoss):
        def forward(self, predictions, y):
            return super().forward(predictions[:, 1], y.float())

    def focal(predictions, y, reduction="mean"):
        losses = functional.cross_entropy(predictions, y, reduction="none")
        losses = (1 - torch.exp(-losses)) ** 2 * losses
        return losses.mean() if reduction == "mean" else losses

    torch.manual_seed(4)
    with torch.no_grad():
        x, y = tensors()
        predictions = net()(x)
        for loss in (weighted("sum"), Converting(weight=torch.tensor([1.0, 3.0]), ignore_index=-100), focal, Binary()):
            torch.manual_seed(4)
            result = evaluate(task(loss=loss))
            assert result.values["loss"].value == pytest.approx(loss(predictions, y).item(), rel=1e-5)
            assert result.notes == ()


def test_a_random_loss_has_one_note(evaluate):
    """Its values for a half are others, since it draws others."""
    import torch
    from torch.nn import functional

    def noisy(predictions, y):
        losses = functional.cross_entropy(predictions, y, reduction="none")
        return losses * torch.rand(len(losses))

    (note,) = evaluate(task(loss=noisy)).notes
    assert "random numbers" in note


def test_ignored_labels_are_counted(evaluate):
    """A class that the loss ignores is missing in every metric, and the note says how often."""
    from torch import nn

    given = task(loss=nn.CrossEntropyLoss(ignore_index=0))
    _, y = tensors()
    (note,) = evaluate(given).notes
    assert note.startswith(f"{int((y == 0).sum())} of {EXAMPLES} positions")


@pytest.mark.parametrize("size", [1e-46, 1e-42])
def test_weights_below_the_range_of_float32_are_refused(evaluate, size):
    import torch
    from torch.utils.data import TensorDataset

    def source():
        return TensorDataset(*tensors(), torch.full((EXAMPLES,), size, dtype=torch.float64))

    with pytest.raises(Exception, match="8 weights"):
        evaluate(task(eval_sets={"test": source}))


def test_wide_predictions_are_compared_by_what_is_measured(evaluate, monkeypatch):
    """Logits of a language model may take gigabytes, so only their losses are compared."""
    from sidecar.evaluation.backends.torch import step

    monkeypatch.setattr(step, "_COMPARED_BYTES", 16)
    assert evaluate(task()).notes == ()
    (note,) = evaluate(task("size")).notes
    assert note.startswith("loss")
    assert math.isfinite(evaluate(task("size", metrics=None)).values["loss"].value)


def test_labels_and_weights_of_a_step_that_depend_on_the_batch_are_noted(evaluate):
    """A step may normalise these, too."""

    def step(model, batch):
        x, y = batch
        return y, model(x), (y + 1.0) / (y + 1.0).sum()

    (note,) = evaluate(task(step=step)).notes
    assert note.startswith("labels or weights")
    assert NOTE in note


def test_a_later_batch_shows_what_batch_0_hides(evaluate):
    """The texts of batch 0 are equally long, so its padding is that of its halves."""
    import torch
    from torch.utils.data import DataLoader

    def source():
        return DataLoader([(torch.ones(5, dtype=torch.long), 0)] * 8 + texts(), batch_size=8, collate_fn=padded)

    given = task(build_model=lambda: reader(masked=False), eval_sets={"test": source}, batch_size=None)
    (note,) = evaluate(given).notes
    assert "predictions" in note


@pytest.mark.parametrize("kind", ["whole only", "skips one"])
def test_collate_functions_that_halves_do_not_suit(evaluate, kind):
    """A half that cannot be collated is cut from the batch; an example that is skipped is skipped in a half, too."""
    import torch
    from torch.utils.data import DataLoader, default_collate

    x, y = tensors(64)

    def collate(examples):
        if kind == "whole only":
            assert len(examples) == 8
            return default_collate(examples)
        return default_collate([each for each in examples if not torch.equal(each[0], x[3])])

    def source():
        return DataLoader(list(zip(x, y, strict=True)), batch_size=8, collate_fn=collate)

    notes = evaluate(task(eval_sets={"test": source}, batch_size=None)).notes
    assert not any("batch" in note for note in notes)
