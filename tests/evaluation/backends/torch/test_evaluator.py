"""The PyTorch backend without processes: numbers against torch itself, and the same bits for any number of ranks."""

import numpy as np
import pytest
from evaluation.backends.torch.small_nets import EXAMPLES, bits, dataset, net, task, tensors
from tests_torch import result_of_ranks, torch_evaluator

from sidecar import EvalSet, Task
from sidecar.errors import TaskError
from sidecar.evaluation.failures import EvaluationError
from sidecar.evaluation.output_comparison import differing_outputs
from sidecar.metrics import AUC, LogLoss
from sidecar.protocol.messages import Done

pytestmark = pytest.mark.torch


@pytest.fixture
def checkpoint(trained, tmp_path):
    import torch

    torch.save({"step": 5, "model": trained.state_dict()}, tmp_path / "step-5.pt")
    return tmp_path / "step-5.pt"


def test_numbers_are_those_of_torch(trained, checkpoint, evaluated):
    """Loss and accuracy of one pass over all data, as a plain loop of torch computes them."""
    import torch

    x, y = tensors()
    with torch.inference_mode():
        predictions = trained(x)
        loss = torch.nn.functional.cross_entropy(predictions, y).item()
    end = evaluated(task(), checkpoint)
    assert isinstance(end, Done), end
    result = end.result.metrics["test"]
    assert result["loss"].value == pytest.approx(loss, rel=1e-6)
    assert result["accuracy"].value == (predictions.argmax(1) == y).sum().item() / EXAMPLES
    assert end.result.examples == {"test": EXAMPLES}


@pytest.mark.parametrize("examples", [96, 97, 103, 111, 112, 5])
def test_bits_are_equal_for_any_number_of_ranks(examples, checkpoint):
    """For every remainder, and for ranks that have no batch at all."""
    given = task(lambda: dataset(examples))
    assert len({str(bits(given, checkpoint, ranks)) for ranks in (1, 2, 3, 4)}) == 1


def test_arrays_and_generators_give_the_bits_of_the_dataset(checkpoint):
    """The same examples in the same batches, however they come."""
    x, y = (tensor.numpy() for tensor in tensors())
    sources = [dataset, lambda: (x, y), lambda: iter(list(zip(x, y, strict=True))), tensors]
    assert len({str(bits(task(source), checkpoint, 2)) for source in sources}) == 1


def test_a_model_that_keeps_something_from_batch_to_batch_is_refused(checkpoint, evaluated):
    """Its result would depend on how batches are divided among ranks."""
    calls = []

    def step(model, batch):
        calls.append(1)
        return batch[1], model(batch[0]) * len(calls)

    end = evaluated(task(step=step), checkpoint)
    assert isinstance(end, EvaluationError)
    assert "keeps something from batch to batch" in str(end)
    assert "let an example be the whole sequence" in str(end)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_model_that_changes_after_some_calls_is_refused_with_any_number_of_workers(checkpoint, ranks):
    """A worker that owns few batches calls the model with single examples, as often as one worker alone calls it."""
    for rank in range(ranks):
        calls = []

        def step(model, batch, calls=calls):
            calls.append(len(batch[1]))
            return batch[1], model(batch[0]) + (len(calls) > 45)

        evaluator = torch_evaluator(task(step=step, batch_size=2), rank, ranks)
        evaluator.read(lambda: None)
        evaluator.restore(str(checkpoint))()
        evaluator.digest()
        with pytest.raises(EvaluationError, match="after all others"):
            evaluator.evaluate(lambda: None)
        assert ranks == 1 or calls.count(1) > 10


@pytest.mark.parametrize("logs", [False, True])
def test_outputs_show_what_no_checkpoint_holds(checkpoint, logs):
    """A projection without a seed in a plain attribute: all restored values are equal, and the predictions are not."""
    import numpy as np
    import torch

    def outputs(seed):
        made = torch.from_numpy(np.random.default_rng(seed).normal(size=3)).float()

        def step(model, batch):
            return batch[1], model(batch[0]) + made

        metrics = {"metrics": None, "loss": torch.nn.CrossEntropyLoss()} if logs else {}
        evaluator = torch_evaluator(task(step=step, **metrics))
        assert evaluator.outputs_are_new
        evaluator.read(lambda: None)
        evaluator.restore(str(checkpoint))()
        evaluator.digest()
        return evaluator.outputs()

    assert list(differing_outputs([outputs(1), outputs(1)])) == []
    assert list(differing_outputs([outputs(1), outputs(2)])) == [(0, [[0], [1]])]


def test_a_model_that_updates_its_statistics_is_refused(checkpoint, evaluated):
    """`train()` in `forward` would update BatchNorm's running statistics with the batches of an evaluation."""

    def step(model, batch):
        model.train()
        return batch[1], model(batch[0])

    end = evaluated(task(step=step), checkpoint)
    assert isinstance(end, EvaluationError)
    assert "2.running_mean" in str(end)


def test_random_numbers_are_seeded_by_weights_and_batch(checkpoint):
    """Dropout that stays on, as in Monte Carlo dropout: the same bits for any number of ranks, and a note."""
    import torch

    def step(model, batch):
        x, y = batch
        return y, model(x) + torch.randn(len(x), 3) + torch.from_numpy(np.random.normal(size=(len(x), 3))).float()  # noqa: NPY002 - as users do

    of_one, *others = (result_of_ranks(task(step=step), checkpoint, ranks)["test"] for ranks in (1, 2, 3))
    assert "draws random numbers" in of_one.notes[0]
    assert [other.values for other in others] == [of_one.values] * 2
    assert [other.notes for other in others] == [of_one.notes] * 2


def test_inputs_that_a_model_changes_in_place_are_copies(checkpoint):
    """A batch stays in memory for the next checkpoint, and `nn.ReLU(inplace=True)` may come first."""
    import torch

    x, y = tensors()

    def step(model, batch):
        predictions = model(batch[0])
        batch[0].zero_()
        return batch[1], predictions

    given = task(lambda: torch.utils.data.TensorDataset(x, y), step=step)
    assert bits(given, checkpoint) == bits(task(), checkpoint)
    assert x.abs().sum() > 0


def test_lazy_modules_get_their_variables_from_the_first_batch(checkpoint):
    """They have none to restore before."""
    from torch import nn

    def lazy():
        return nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.LazyBatchNorm1d(), nn.Dropout(0.5), nn.LazyLinear(3))

    assert bits(task(build_model=lazy), checkpoint) == bits(task(), checkpoint)


def test_saved_weights_can_be_loaded(trained, checkpoint, evaluated, tmp_path):
    """`weights.pt` is the state dict of the restored model."""
    import torch

    done = evaluated(task(), checkpoint)
    (path,) = tmp_path.glob("saved-*/worker-0-of-1/weights.pt")
    saved = torch.load(path, weights_only=True)
    assert all(torch.equal(saved[name], value) for name, value in trained.state_dict().items())
    assert done.weights_bytes == sum(value.nbytes for value in saved.values())


def test_predictions_are_saved_for_each_example(trained, checkpoint, evaluated, tmp_path):
    """In the order of the data."""
    from sidecar import results

    evaluated(task(predictions=True), checkpoint)
    read = results.read(next(tmp_path.glob("saved-*")))
    x, y = tensors()
    columns = read.predictions["test"]
    assert np.array_equal(columns["y"], y.numpy())
    assert np.allclose(columns["predictions"], trained(x).detach().numpy(), atol=1e-6)


def test_a_metric_that_needs_the_number_of_examples(checkpoint):
    """AUC keeps one score for each example, and all ranks know how many there are."""

    def step(model, batch):
        return (batch[1] > 0).long(), model(batch[0])[:, 1]

    given = task(step=step, metrics=lambda: [AUC()], loss=None)
    assert bits(given, checkpoint) == bits(given, checkpoint, 3)


def test_a_causal_language_model_needs_a_step_that_shifts():
    """Its labels are shifted inside the model; compared as they are, they would give a plausible wrong number."""
    import torch
    from torch import nn

    class TinyForCausalLM(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Embedding(7, 7)

        def forward(self, input_ids):
            return self.head(input_ids)

    tokens = torch.arange(20).reshape(4, 5) % 7
    rows = [{"input_ids": row, "labels": row} for row in tokens]
    given = {"build_model": TinyForCausalLM, "metrics": None}
    with pytest.raises(EvaluationError, match="TinyForCausalLM"):
        torch_evaluator(task(lambda: torch.utils.data.DataLoader(rows, batch_size=2), **given))
    shifted = given | {"step": lambda model, batch: (batch["labels"][:, 1:], model(batch["input_ids"])[:, :-1])}
    torch_evaluator(task(lambda: torch.utils.data.DataLoader(rows, batch_size=2), **shifted))


@pytest.mark.parametrize("with_sets", [False, True])
def test_a_harness_is_called_once_with_the_restored_model(trained, tmp_path, evaluated, with_sets):
    """It gets the model in the mode of eval() with the checkpoint's values, next to eval sets or alone."""
    import torch

    torch.save(trained.state_dict(), tmp_path / "step-1.pt")
    calls = []

    def harness(model):
        calls.append(model.training)
        with torch.no_grad():
            hits = model(tensors()[0]).argmax(1) == tensors()[1]
        return {"acc": hits.double().mean(), "examples": len(hits)}

    given = task(evaluate={"harness": harness}) if with_sets else Task(build_model=net, evaluate={"harness": harness})
    done = evaluated(given, tmp_path / "step-1.pt")
    assert isinstance(done, Done), done
    assert calls == [False]
    result = done.result
    assert result.examples["harness"] == EXAMPLES
    with torch.no_grad():
        right = trained.eval()(tensors()[0]).argmax(1) == tensors()[1]
    assert result.metrics["harness"]["acc"].value == float(right.double().mean())
    assert list(result.metrics) == ["test", "harness"] if with_sets else ["harness"]
    assert any("not checked for repeatability" in note for note in result.notes)


def test_a_set_with_its_own_metrics_loss_and_step(checkpoint):
    """Each set is measured as if it were alone: the same bits, names and directions, with 1 to 4 ranks."""
    from torch import nn

    from sidecar.metrics import MSE

    own = {"metrics": lambda: [MSE()], "step": lambda model, batch: (batch[0][:, 0], model(batch[0])[:, 0])}
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    sets = {
        "plain": dataset,
        "regression": EvalSet(dataset, **own),
        "smooth": EvalSet(dataset, loss=criterion),
    }
    alone = {
        "plain": task(),
        "regression": task(loss=None, **own),
        "smooth": task(metrics=None, loss=criterion),
    }
    expected = {name: result_of_ranks(one, checkpoint, 1)["test"].values for name, one in alone.items()}
    for ranks in (1, 2, 3, 4):
        found = result_of_ranks(task(eval_sets=sets), checkpoint, ranks)
        assert {name: result.values for name, result in found.items()} == expected
    assert {name: sorted(values) for name, values in expected.items()} == {
        "plain": ["accuracy", "loss"],
        "regression": ["mse"],
        "smooth": ["loss"],
    }
    with pytest.raises(TaskError, match=r"'other'.*'loss', 'accuracy', 'mse'"):
        torch_evaluator(task(eval_sets=sets, in_turn=["other"]))


def test_slices_have_equal_bits_for_any_number_of_ranks(checkpoint):
    """Functions and columns of batches of tensors; the loss has none."""
    import torch

    x, y = tensors()
    rows = [{"x": x[number], "kind": "ab"[number % 2], "labels": y[number]} for number in range(EXAMPLES)]
    slices = {"high": lambda batch, labels: (batch["x"][:, 0] > 0) & (labels > 0), "kind": "kind"}
    given = task(lambda: iter(rows), step=lambda model, batch: (batch["labels"], model(batch["x"])), slices=slices)
    found = [result_of_ranks(given, checkpoint, ranks)["test"].slices for ranks in (1, 2, 3)]
    assert found[0] == found[1] == found[2]
    assert found[0].keys() == {"high", "kind=a", "kind=b"}
    assert {name for one in found[0].values() for name in one} == {"accuracy", "loss"}
    chosen = task(lambda: torch.utils.data.TensorDataset(x[::2], y[::2]))
    alone = result_of_ranks(chosen, checkpoint, 1)["test"].values
    assert found[0]["kind=a"]["accuracy"] == alone["accuracy"]
    of_slice, same = ((each.value, each.lower, each.upper) for each in (found[0]["kind=a"]["loss"], alone["loss"]))
    assert of_slice == pytest.approx(same, rel=1e-6)


@pytest.mark.parametrize(
    "loss",
    [
        lambda torch: torch.nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]), ignore_index=1),
        lambda torch: torch.nn.CrossEntropyLoss(reduction="sum"),
        lambda torch: {"a": torch.nn.CrossEntropyLoss(), "b": torch.nn.MultiMarginLoss()},
    ],
    ids=["weights of classes", "sum", "outputs"],
)
@pytest.mark.parametrize("is_weighted", [False, True])
def test_slices_have_the_losses_of_their_examples(checkpoint, loss, is_weighted):
    """As a set that has only these, with weights of examples and with groups."""
    import torch

    x, y = tensors()
    given, criterion = (x, y, torch.linspace(0.5, 2, EXAMPLES))[: 3 if is_weighted else 2], loss(torch)
    made = {"loss": criterion, "metrics": None}
    if isinstance(criterion, dict):
        made["step"] = lambda model, batch: (
            dict.fromkeys("ab", batch[1]),
            dict.fromkeys("ab", model(batch[0])),
            *batch[2:],
        )
    high = (x[:, 0] > 0).numpy()
    parts = [
        EvalSet(
            lambda rows=rows: torch.utils.data.TensorDataset(*(part[rows] for part in given)),
            groups=np.arange(EXAMPLES)[rows] // 3,
            slices=slices,
        )
        for rows, slices in ((slice(None), {"high": high.tolist()}), (high, {}))
    ]
    whole, two, alone = (
        result_of_ranks(task(part, **made), checkpoint, ranks)["test"]
        for part, ranks in ((parts[0], 1), (parts[0], 2), (parts[1], 1))
    )
    assert whole.slices == two.slices
    assert whole.slices["high"].keys() == alone.values.keys()
    for name, number in alone.values.items():
        assert whole.slices["high"][name].value == pytest.approx(number.value, rel=1e-6)


def test_a_loss_has_the_interval_of_groups_weights_and_positions(checkpoint):
    """That of `LogLoss`, for any number of ranks."""
    import torch
    from torch.utils.data import TensorDataset

    x, y = tensors()
    groups, weights = np.arange(EXAMPLES) // 4, np.random.default_rng(1).exponential(size=EXAMPLES).astype(np.float32)
    for given, own in (((x, y), groups), ((x, y, weights), None), ((x, y, weights), groups)):
        made = task(
            EvalSet(lambda given=given: TensorDataset(*map(torch.as_tensor, given)), groups=own),
            metrics=lambda: [LogLoss(from_logits=True)],
        )
        found = [result_of_ranks(made, checkpoint, ranks)["test"].values for ranks in (1, 2)]
        assert found[0] == found[1]
        loss, same = found[0]["loss"], found[0]["log_loss"]
        assert loss.lower < loss.value < loss.upper
        assert (loss.lower, loss.upper) == pytest.approx((same.lower, same.upper), rel=1e-5)
