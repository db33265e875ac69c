"""Models, steps, losses and metrics that depend on how examples are divided into batches: noted, or refused."""

import math

import numpy as np
import pytest
from evaluation.backends.torch.batch_models import (
    EXAMPLES,
    auc,
    by_positives,
    counting_batches,
    dataset,
    net,
    padded,
    reader,
    share,
    smooth_of_class,
    tagger,
    task,
    tensors,
    texts,
    weighted,
)

from sidecar import EvalSet
from sidecar.evaluation.failures import EvaluationError
from sidecar.metrics import Accuracy, Mean, Sums

pytestmark = pytest.mark.torch

NOTE = "another batch size gives another number"


@pytest.mark.parametrize("kind", ["batch statistics", "centred", "size", "pairs"])
def test_models_that_depend_on_the_batch_are_noted(evaluate, kind):
    (note,) = evaluate(task(kind)).notes
    assert "predictions" in note
    assert NOTE in note


@pytest.mark.parametrize("kind", ["plain", "running statistics"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.drawn(3)
def test_plain_models_have_no_note(evaluate, kind, dtype):
    """Note them in any type, and within autocast."""
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


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit
def test_scripted_parts_of_a_model_take_no_hooks(evaluate):
    """A part made by torch.jit.script is evaluated as any other."""
    import torch

    def build():
        return torch.nn.Sequential(torch.jit.script(torch.nn.Linear(4, 8)), torch.nn.Linear(8, 2))

    assert evaluate(task(build_model=build)).notes == ()


def test_random_models_have_one_note(evaluate):
    """The halves of a batch draw other numbers, so they are not compared."""
    (note,) = evaluate(task("dropout")).notes
    assert "random numbers" in note


def test_a_model_of_one_batch_size_is_said_to_be_untested(evaluate):
    (note,) = evaluate(task("fixed")).notes
    assert "not known" in note


def test_a_single_example_per_batch_is_not_divided(evaluate):
    assert evaluate(task("centred", batch_size=1)).notes == ()


@pytest.mark.parametrize("processes", [0, 1])
@pytest.mark.parametrize("iterable", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.drawn(3)
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


@pytest.mark.parametrize("masked", [False, True])
def test_padding_that_each_part_has_as_well_is_noted(evaluate, masked):
    """Every third text is as long as the longest one, so both halves are padded as the whole batch is."""
    import torch
    from torch.utils.data import DataLoader

    def source():
        rows = [(torch.arange(1, 2 + 3 * (n % 3)), n % 3) for n in range(41)]
        return DataLoader(rows, batch_size=8, collate_fn=padded)

    given = task(build_model=lambda: reader(masked), eval_sets={"test": source}, batch_size=None)
    assert len(evaluate(given).notes) == (0 if masked else 1)


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


@pytest.mark.parametrize("kind", ["slices", "groups", "neither", "weights"])
def test_keys_of_examples_need_their_order(evaluate, kind):
    """A step that sorts its examples, as for packed sequences, would give each slice the examples of others."""

    def step(model, batch):
        x, y = batch
        if kind == "weights":
            return y, model(x), (y + 1.0) / (y + 1.0).sum()
        order = x[:, 0].argsort()
        return y[order], model(x[order])

    x, y = tensors()
    keys = [str(int(label)) for label in y]
    given = {"groups": {"groups": keys}, "neither": {}}.get(kind, {"slices": {"label": keys}})
    from torch.utils.data import TensorDataset

    of_keys = task(step=step, eval_sets={"test": EvalSet(lambda: TensorDataset(x, y), **given)})
    if kind in ("neither", "weights"):
        assert any(note.startswith("labels or weights") for note in evaluate(of_keys).notes)
        return
    with pytest.raises(EvaluationError, match="another order than the data"):
        evaluate(of_keys)


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


def test_a_loss_of_ranks_in_the_batch_is_noted(evaluate):
    """A few examples at both ends of a batch may have the same ranks by chance, so nothing is kept by their number."""

    def ranked(predictions, y):
        return (predictions[:, 1].argsort().argsort().float() / len(predictions) - y) ** 2

    (note,) = evaluate(task(loss=ranked, metrics=None)).notes
    assert note.startswith("loss depends on how examples are divided")
