"""Losses in batches against torch: the number of the criterion on all examples as one batch."""

import math
import re
from functools import partial

import numpy as np
import pytest
from tests_torch import result_of_ranks

from sidecar import Task
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.failures import EvaluationError
from sidecar.metrics import Accuracy, Perplexity

pytestmark = pytest.mark.torch

EXAMPLES, CLASSES, LENGTH = 41, 5, 7
BATCHES = (8, 1, 16, 3, 13)


def torch_loss(loss):
    import torch

    from sidecar.evaluation.backends.torch.loss import TorchLoss

    return TorchLoss(loss, torch.device("cpu"))


def in_batches(loss, predictions, y, weights=None, ranks=1):
    """The loss of batches of unequal sizes, which are divided among ranks."""
    measured = torch_loss(loss)
    states = [measured.states() for _ in range(ranks)]
    start = 0
    for number, size in enumerate(BATCHES):
        rows = slice(start, start + size)
        arrays = measured.arrays(y[rows], predictions[rows], None if weights is None else weights[rows])
        owner = next(rank for rank in range(ranks) if Shard(rank, ranks).owns(number))
        measured.add(states[owner], [[array] for array in arrays], [None])
        start += size
    for other in states[1:]:
        for name, state in other.items():
            states[0][name].merge(state)
    return measured.compute(states[0]).values["loss"]


def assert_equals_torch(loss, predictions, y, **same):
    """Equal to the criterion on all examples, and equal bits for 1 to 4 ranks."""
    ours = [in_batches(loss, predictions, y, ranks=ranks) for ranks in (1, 2, 3, 4)]
    assert len({value.hex for value in ours}) == 1
    expected = loss(predictions, y).item()
    if math.isnan(expected):
        assert ours[0].hex == "nan"
    else:
        assert ours[0].value == pytest.approx(expected, rel=1e-6, **same)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32"])
@pytest.mark.parametrize("form", ["class", "function", "squares", "own"])
def test_differences_of_integers_do_not_wrap_around(dtype, form):
    """The loss of images of 8 bits is that of the same numbers as floats; torch itself subtracts them modulo 256."""
    import torch
    from torch import nn

    limits = torch.iinfo(getattr(torch, dtype))
    n = sum(BATCHES)
    y = torch.randint(limits.min, limits.max + 1, (n,), dtype=getattr(torch, dtype), generator=generator())
    predictions = y.flip(0)
    own = lambda predictions, y: (predictions - y).abs()  # noqa: E731 - as users write it
    loss = {"class": nn.L1Loss(), "function": nn.functional.l1_loss, "squares": nn.MSELoss(), "own": own}[form]
    expected = loss(predictions.double(), y.double()).mean().item()
    assert expected > limits.max / 4
    found = [in_batches(loss, predictions, y, ranks=ranks) for ranks in (1, 2, 3)]
    assert len({value.hex for value in found}) == 1
    assert found[0].value == pytest.approx(expected, rel=1e-12)


def test_integers_of_64_bits_are_subtracted_as_such():
    """Times in nanoseconds have more digits than a float64."""
    import torch
    from torch import nn

    y = torch.arange(sum(BATCHES)) * 1000 + 1_700_000_000_000_000_000
    assert in_batches(nn.L1Loss(), y + 1, y, ranks=3).value == 1.0


def generator():
    import torch

    return torch.Generator().manual_seed(7)


def scores(*shape):
    import torch

    return torch.randn(*shape, generator=generator()) * 2


def uniform(*shape):
    import torch

    return torch.rand(*shape, generator=generator()) * 0.98 + 0.01


def labels(*shape, most=CLASSES):
    import torch

    return torch.randint(0, most, shape, generator=generator())


def with_ignored(y, index):
    """Labels, a third of which are to be ignored; one batch is ignored as a whole."""
    y = y.clone()
    y.view(-1)[::3] = index
    y[8] = index  # the batch of one example
    return y


def class_weights():
    import torch

    return torch.tensor([0.5, 2.0, 1.0, 0.0, 3.25])


LAYOUTS = {
    "(n, C)": (EXAMPLES, CLASSES),
    "(n, C, d)": (EXAMPLES, CLASSES, LENGTH),
    "(n, C, h, w)": (EXAMPLES, CLASSES, 3, 2),
}


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignored", [None, -100, 2])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_cross_entropy(reduction, smoothing, weighted, ignored, layout):
    """Class weights, ignored positions, label smoothing and all layouts of torch together."""
    from torch import nn

    shape = LAYOUTS[layout]
    y = labels(shape[0], *shape[2:])
    loss = nn.CrossEntropyLoss(
        weight=class_weights() if weighted else None,
        ignore_index=-100 if ignored is None else ignored,
        reduction=reduction,
        label_smoothing=smoothing,
    )
    assert_equals_torch(loss, scores(*shape), y if ignored is None else with_ignored(y, ignored))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_cross_entropy_with_probabilities_as_labels(smoothing, weighted, layout):
    from torch import nn

    shape = LAYOUTS[layout]
    loss = nn.CrossEntropyLoss(weight=class_weights() if weighted else None, label_smoothing=smoothing)
    assert_equals_torch(loss, scores(*shape), uniform(*shape).softmax(1))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
def test_nll(reduction, weighted):
    from torch import nn

    loss = nn.NLLLoss(weight=class_weights() if weighted else None, ignore_index=1, reduction=reduction)
    predictions = scores(EXAMPLES, CLASSES, LENGTH).log_softmax(1)
    assert_equals_torch(loss, predictions, labels(EXAMPLES, LENGTH))


def criteria():
    """Each other criterion of (predictions, y), by name: options, predictions and labels."""
    import torch

    wide, signs = (EXAMPLES, CLASSES), labels(EXAMPLES, CLASSES, most=2) * 2.0 - 1
    multiple = torch.where(torch.arange(CLASSES) < labels(EXAMPLES, 1, most=CLASSES), torch.arange(CLASSES), -1)
    chances = uniform(*wide)
    return {
        "MSELoss": [({}, scores(*wide), chances)],
        "L1Loss": [({}, scores(EXAMPLES), chances[:, 0])],
        "SmoothL1Loss": [({"beta": 0.5}, scores(*wide), chances)],
        "HuberLoss": [({"delta": 0.3}, scores(*wide), chances)],
        "BCELoss": [({}, chances, scores(*wide).sigmoid()), ({"weight": class_weights()}, chances, (signs + 1) / 2)],
        "BCEWithLogitsLoss": [({"pos_weight": class_weights()}, scores(*wide), (signs + 1) / 2)],
        "KLDivLoss": [
            ({"log_target": False}, scores(*wide).log_softmax(1), chances.softmax(1)),
            ({"log_target": True}, scores(*wide).log_softmax(1), chances.log_softmax(1)),
        ],
        "PoissonNLLLoss": [
            ({}, scores(*wide), labels(*wide).float()),
            ({"full": True, "log_input": False}, chances, labels(*wide).float()),
        ],
        "MultiLabelMarginLoss": [({}, scores(*wide), multiple)],
        "MultiLabelSoftMarginLoss": [({"weight": class_weights()}, scores(*wide), (signs + 1) / 2)],
        "HingeEmbeddingLoss": [({"margin": 0.5}, scores(*wide), signs)],
        "SoftMarginLoss": [({}, scores(*wide), signs)],
        "MultiMarginLoss": [
            ({"p": 2, "margin": 0.5, "weight": class_weights()}, scores(*wide), labels(EXAMPLES)),
            ({}, scores(*wide), labels(EXAMPLES)),
        ],
    }


CRITERIA = (
    "MSELoss",
    "L1Loss",
    "SmoothL1Loss",
    "HuberLoss",
    "BCELoss",
    "BCEWithLogitsLoss",
    "KLDivLoss",
    "PoissonNLLLoss",
    "MultiLabelMarginLoss",
    "MultiLabelSoftMarginLoss",
    "HingeEmbeddingLoss",
    "SoftMarginLoss",
    "MultiMarginLoss",
)


@pytest.mark.parametrize("name", CRITERIA)
def test_every_other_criterion(name):
    """As a module, with each reduction, and as a `partial` of its function."""
    from torch import nn
    from torch.nn import functional

    function = {
        "BCELoss": "binary_cross_entropy",
        "BCEWithLogitsLoss": "binary_cross_entropy_with_logits",
        "HingeEmbeddingLoss": "hinge_embedding_loss",
        "HuberLoss": "huber_loss",
        "KLDivLoss": "kl_div",
        "L1Loss": "l1_loss",
        "MSELoss": "mse_loss",
        "MultiLabelMarginLoss": "multilabel_margin_loss",
        "MultiLabelSoftMarginLoss": "multilabel_soft_margin_loss",
        "MultiMarginLoss": "multi_margin_loss",
        "PoissonNLLLoss": "poisson_nll_loss",
        "SmoothL1Loss": "smooth_l1_loss",
        "SoftMarginLoss": "soft_margin_loss",
    }[name]
    for options, predictions, y in criteria()[name]:
        for reduction in ("batchmean", "sum") if name == "KLDivLoss" else ("mean", "sum"):
            assert_equals_torch(getattr(nn, name)(**options, reduction=reduction), predictions, y)
            assert_equals_torch(partial(getattr(functional, function), **options, reduction=reduction), predictions, y)


def test_every_criterion_of_torch_is_known():
    """A new version of torch may have more: those of two arguments belong into this file."""
    from torch import nn

    others = {
        "AdaptiveLogSoftmaxWithLoss": "has parameters",
        "LinearCrossEntropyLoss": "has parameters",
        "CTCLoss": "takes lengths",
        "CosineEmbeddingLoss": "takes two inputs",
        "GaussianNLLLoss": "takes variances",
        "MarginRankingLoss": "takes two inputs",
        "TripletMarginLoss": "takes three inputs",
        "TripletMarginWithDistanceLoss": "takes three inputs",
        "NLLLoss2d": "an old name",
    }
    known = {*CRITERIA, *others, "CrossEntropyLoss", "NLLLoss"}
    assert {name for name in dir(nn) if name.endswith("Loss")} <= known


@pytest.mark.parametrize("kind", ["tensors", "one tensor"])
def test_the_line_for_criteria_of_more_tensors(kind):
    """It is right as it stands: the number is that of the criterion itself."""
    from torch import nn

    one, other, third = scores(3, EXAMPLES, CLASSES)
    signs, variances = labels(EXAMPLES, most=2) * 2 - 1, one.square() + 0.1
    paths, lengths = scores(EXAMPLES, LENGTH, CLASSES).log_softmax(2), labels(EXAMPLES, most=2) + 1
    given = {  # labels, predictions, and the criterion's own arguments
        "CTCLoss": ((signs[:, None].abs().repeat(1, 2), lengths), (paths, lengths + 4), None),
        "CosineEmbeddingLoss": (signs, (one, other), (one, other, signs)),
        "GaussianNLLLoss": (third, (one, variances), (one, third, variances)),
        "MarginRankingLoss": (signs, (one[:, 0], other[:, 0]), (one[:, 0], other[:, 0], signs)),
        "TripletMarginLoss": (one, (one, other, third), (one, other, third)),
        "TripletMarginWithDistanceLoss": (one, (one, other, third), (one, other, third)),
    }
    for name, (y, predictions, arguments) in given.items():
        with pytest.raises(EvaluationError, match="takes more than") as caught:
            torch_loss(getattr(nn, name)()).arrays(*((y, predictions) if kind == "tensors" else (one, other)), None)
        line = re.search(r"write loss=(.*), with the settings", str(caught.value))[1]
        losses, weights, *_ = torch_loss(eval(line, {"nn": nn})).arrays(y, predictions, None)
        own = arguments or (predictions[0].transpose(0, 1), y[0], predictions[1], y[1])
        right = getattr(nn, name)()(*own).item()
        assert np.average(losses, weights=weights) == pytest.approx(right, rel=1e-5), name


def test_functions_of_torch():
    from torch.nn import functional

    y = with_ignored(labels(EXAMPLES), -100)
    assert_equals_torch(functional.cross_entropy, scores(EXAMPLES, CLASSES), y)
    assert_equals_torch(functional.mse_loss, scores(EXAMPLES), uniform(EXAMPLES))
    weighted = partial(functional.cross_entropy, weight=class_weights(), ignore_index=0)
    assert_equals_torch(weighted, scores(EXAMPLES, CLASSES), labels(EXAMPLES))


def test_own_functions_and_modules():
    """Such that return the loss of each item; a `reduction` is found by its name, as in torchvision's losses."""
    import torch
    from torch import nn

    def focal(predictions, y, reduction="sum"):
        items = torch.nn.functional.binary_cross_entropy_with_logits(predictions, y, reduction="none") ** 2
        return items.sum() if reduction == "sum" else items

    class Squares(nn.Module):
        def __init__(self):
            super().__init__()
            self.reduction = "mean"

        def forward(self, predictions, y):
            items = (predictions - y) ** 2
            return items.mean() if self.reduction == "mean" else items

    assert_equals_torch(focal, scores(EXAMPLES, CLASSES), uniform(EXAMPLES, CLASSES))
    assert_equals_torch(Squares(), scores(EXAMPLES, CLASSES), uniform(EXAMPLES, CLASSES))
    plain = in_batches(lambda p, y: (p - y).abs(), scores(EXAMPLES), uniform(EXAMPLES))
    assert plain.value == pytest.approx((scores(EXAMPLES) - uniform(EXAMPLES)).abs().mean().item(), rel=1e-6)


@pytest.mark.parametrize("kind", ["function", "with a reduction", "module", "dicts"])
def test_parameters_get_what_their_names_say(kind):
    """Scripts that come from scikit-learn or Keras have the labels first."""
    from torch import nn

    def relative(y_true, y_pred):
        return (y_true - y_pred).abs() / y_true

    class Relative(nn.Module):
        def forward(self, y_true, y_pred):
            return relative(y_true, y_pred)

    def reduced(y_true, y_pred, reduction="mean"):
        return relative(y_true, y_pred).mean() if reduction == "mean" else relative(y_true, y_pred)

    y, predictions = uniform(EXAMPLES) + 1, uniform(EXAMPLES) + 5
    right = relative(y, predictions).mean().item()
    if kind == "dicts":
        losses, *_ = torch_loss(lambda y, out: relative(y["a"], out["a"])).arrays({"a": y}, {"a": predictions}, None)
        assert losses.mean() == pytest.approx(right, rel=1e-6)
        return
    loss = {"function": relative, "with a reduction": reduced, "module": Relative()}[kind]
    assert in_batches(loss, predictions, y).value == pytest.approx(right, rel=1e-6)
    assert in_batches(lambda a, b: relative(b, a), predictions, y).value == pytest.approx(right, rel=1e-6)


def test_a_mean_over_examples_has_the_line_of_single_ones():
    """As losses with label smoothing are written in many repositories; the line is right as it stands."""
    import torch

    def criterion(x, target):
        log = x.log_softmax(-1)
        return (0.9 * -log.gather(-1, target[:, None]).squeeze(1) + 0.1 * -log.mean(-1)).mean()

    predictions, y = scores(EXAMPLES, CLASSES), labels(EXAMPLES)
    with pytest.raises(EvaluationError) as caught:
        in_batches(criterion, predictions, y)
    written = str(caught.value).rpartition("write loss=")[2]
    own = eval(written, {"criterion": criterion, "torch": torch})
    assert in_batches(own, predictions, y).value == pytest.approx(criterion(predictions, y).item(), rel=1e-6)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_all_positions_ignored(reduction):
    """As torch: NaN for a mean of nothing, and 0 for a sum."""
    import torch
    from torch import nn

    y = torch.full((EXAMPLES,), -100)
    assert_equals_torch(nn.CrossEntropyLoss(reduction=reduction), scores(EXAMPLES, CLASSES), y)


def test_classes_in_the_last_axis():
    """As language models return them; torch itself refuses this layout."""
    from torch import nn

    y = with_ignored(labels(EXAMPLES, LENGTH), -100)
    predictions = scores(EXAMPLES, LENGTH, CLASSES)
    loss = nn.CrossEntropyLoss(weight=class_weights())
    expected = loss(predictions.movedim(-1, 1), y).item()
    assert in_batches(loss, predictions, y).value == pytest.approx(expected, rel=1e-6)


def test_layouts_that_can_be_read_in_two_ways():
    from torch import nn

    y = labels(EXAMPLES, CLASSES)
    predictions = scores(EXAMPLES, CLASSES, CLASSES)
    loss = nn.CrossEntropyLoss()
    with pytest.raises(EvaluationError, match="two ways"):
        in_batches(loss, predictions, y)
    remedied = in_batches(loss, predictions.unsqueeze(-2), y.unsqueeze(-1))
    assert remedied.value == pytest.approx(loss(predictions.movedim(-1, 1), y).item(), rel=1e-6)


def test_sample_weights():
    """Σ w·l / Σ w, with torch's own weights of classes or positions as factors."""
    import torch
    from torch import nn

    weights = uniform(EXAMPLES) * 3
    weights[::5] = 0
    predictions, y = scores(EXAMPLES, CLASSES, LENGTH), with_ignored(labels(EXAMPLES, LENGTH), -100)
    items = nn.functional.cross_entropy(predictions, y, class_weights(), reduction="none").double()
    valid = torch.where(y == -100, 0.0, class_weights()[y.clamp(0)]).double()
    expected = (items * weights[:, None]).sum() / (valid * weights[:, None]).sum()
    for given in (weights, weights[:, None], weights.numpy(), weights[:, None].expand(-1, LENGTH)):
        ours = in_batches(nn.CrossEntropyLoss(class_weights()), predictions, y, given)
        assert ours.value == pytest.approx(expected.item(), rel=1e-6)


def test_sample_weights_and_a_mean_over_examples():
    """KL divergence per example, weighted by examples."""
    from torch import nn

    weights = uniform(EXAMPLES)
    predictions, y = scores(EXAMPLES, CLASSES).log_softmax(1), uniform(EXAMPLES, CLASSES).softmax(1)
    items = nn.functional.kl_div(predictions, y, reduction="none").sum(1)
    ours = in_batches(nn.KLDivLoss(reduction="batchmean"), predictions, y, weights)
    assert ours.value == pytest.approx(((items * weights).sum() / weights.sum()).item(), rel=1e-6)


@pytest.mark.parametrize("case", ["mean", "broadcast", "own broadcast", "kl", "class", "text", "parameters", "partial"])
def test_losses_that_cannot_be_added_up(case):
    """Refused with the reason."""
    from torch import nn
    from torch.nn import functional

    column, flat = scores(EXAMPLES, 1), uniform(EXAMPLES)
    loss, y, expected = {
        "mean": (lambda p, y: ((p - y) ** 2).mean(), column, "mean of a batch"),
        "broadcast": (nn.MSELoss(), flat, "(8, 1)"),
        "own broadcast": (lambda p, y: (p - y).abs(), flat, "(8, 1)"),
        "kl": (nn.KLDivLoss(), column, "batchmean"),
        "class": (nn.MSELoss, column, "MSELoss()"),
        "text": ("mse", column, "'mse'"),
        "parameters": (nn.Sequential(nn.Linear(1, 1)), column, "parameters of its own"),
        "partial": (partial(functional.mse_loss, weight=flat), column, "weight"),
    }[case]
    with pytest.raises(EvaluationError) as caught:
        in_batches(loss, column, y)
    assert expected in str(caught.value)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_predictions_of_16_bits(dtype):
    """Losses are computed in float32, as under autocast: a loss of 16 bits has two or three digits."""
    import torch
    from torch import nn

    predictions, y = scores(EXAMPLES, CLASSES).to(getattr(torch, dtype)), labels(EXAMPLES)
    ours = in_batches(nn.CrossEntropyLoss(), predictions, y)
    assert ours.value == pytest.approx(nn.CrossEntropyLoss()(predictions.float(), y).item(), rel=1e-6)


def language_model():
    from torch import nn

    class Output(dict):
        """As `ModelOutput` of Hugging Face: parts by name and as attributes."""

        def __getattr__(self, name):
            return self[name]

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(11, 6), nn.Linear(6, 11)

        def forward(self, input_ids, attention_mask, labels=None):
            del attention_mask, labels
            return Output(logits=self.head(self.embedding(input_ids).cumsum(1)))

    return Model()


def texts():
    """Sequences of 2 to 9 tokens, padded to the longest of each batch, with -100 as the labels of the padding."""
    import torch
    from torch.utils.data import DataLoader

    def collate(sequences):
        longest = max(map(len, sequences))
        ids, y = torch.zeros(len(sequences), longest, dtype=torch.long), torch.full((len(sequences), longest), -100)
        for row, tokens in enumerate(sequences):
            ids[row, : len(tokens)] = y[row, : len(tokens)] = tokens
        return {"input_ids": ids, "attention_mask": (y != -100).long(), "labels": y}

    tokens = np.random.default_rng(3)
    sequences = [torch.from_numpy(tokens.integers(1, 11, 2 + n % 8)) for n in range(23)]
    return DataLoader(sequences, batch_size=4, collate_fn=collate)


def test_a_language_model_weighted_by_tokens(tmp_path):
    """Loss, perplexity and accuracy of all tokens together, not of batches or sequences."""
    import torch
    from torch import nn

    torch.manual_seed(1)
    model = language_model()
    torch.save(model.state_dict(), tmp_path / "step-1.pt")
    task = Task(
        build_model=language_model,
        eval_sets={"test": texts},
        metrics=lambda: [Perplexity(from_logits=True), Accuracy()],
        loss=nn.CrossEntropyLoss(ignore_index=-100),
        step=lambda m, b: (b["labels"][:, 1:], m(**b).logits[:, :-1]),
    )
    results = [result_of_ranks(task, tmp_path / "step-1.pt", ranks)["test"].values for ranks in (1, 2, 3, 4)]
    assert results[1:] == results[:1] * 3
    logits, y = [], []
    for batch in texts():
        with torch.inference_mode():
            logits.append(model(**batch).logits[:, :-1].flatten(0, 1))
        y.append(batch["labels"][:, 1:].flatten())
    logits, y = torch.cat(logits), torch.cat(y)
    loss = nn.functional.cross_entropy(logits, y).item()
    assert results[0]["loss"].value == pytest.approx(loss, rel=1e-6)
    assert results[0]["perplexity"].value == pytest.approx(math.exp(loss), rel=1e-6)
    counted = y != -100
    assert results[0]["accuracy"].value == (logits.argmax(1) == y)[counted].sum().item() / counted.sum().item()


def test_ignored_positions_and_weights_of_a_step(tmp_path):
    """Metrics count neither what the loss ignores nor what has the weight 0."""
    import torch
    from torch import nn

    torch.save(language_model().state_dict(), tmp_path / "step-1.pt")

    def step(model, batch):
        logits = model(**batch).logits[:, :-1]
        return batch["labels"][:, 1:], logits, torch.ones(len(logits)) * 2

    task = Task(
        build_model=language_model,
        eval_sets={"test": texts},
        metrics=lambda: [Perplexity(from_logits=True)],
        loss=nn.CrossEntropyLoss(),
        step=step,
    )
    numbers = result_of_ranks(task, tmp_path / "step-1.pt", 2)["test"].values
    assert numbers["perplexity"].value == pytest.approx(math.exp(numbers["loss"].value), rel=1e-6)
