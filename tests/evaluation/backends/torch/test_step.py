"""Models and steps as users have them, with hostile eyes: right for 1 to 4 ranks, or refused with the reason."""

import math

import pytest
from evaluation.backends.torch.models import (
    evaluate,
    loss_of,
    net,
    one_by_one,
    outputs,
    saved,
    task,
    tensors,
)
from tests_torch import torch_evaluator

from sidecar.evaluation.failures import EvaluationError
from sidecar.metrics import MSE, Accuracy, Mean

pytestmark = pytest.mark.torch


def test_autocast_inside_a_step(tmp_path):
    """Equal to torch under autocast; no weights of an earlier checkpoint stay in autocast's cache."""
    import torch

    models = [saved(net, tmp_path / f"step-{seed}.pt", seed) for seed in (1, 2)]

    def step(model, batch):
        with torch.autocast("cpu", torch.bfloat16):
            return batch[1], model(batch[0])

    def forward(model):
        def run(x):
            with torch.autocast("cpu", torch.bfloat16):
                return torch.cat([model(part) for part in x.split(8)])

        return run

    expected = [loss_of(model, forward(model)) for model in models]
    paths = [tmp_path / "step-1.pt", tmp_path / "step-2.pt"]
    assert one_by_one(task(step=step), *paths) == pytest.approx(expected, rel=1e-6)
    evaluate(task(step=step), paths[0])


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_predictions_of_eight_bits_are_widened(tmp_path, dtype):
    """Every value of such a type is one of float32, in which loss and metrics are computed."""
    import torch

    model = saved(net, tmp_path / "step-1.pt")
    given = task(step=lambda m, b: (b[1], m(b[0]).to(getattr(torch, dtype))))
    found = evaluate(given, tmp_path / "step-1.pt")
    expected = loss_of(model, lambda x: torch.cat([model(p).to(getattr(torch, dtype)).float() for p in x.split(8)]))
    assert found.values["loss"].value == pytest.approx(expected, rel=1e-6)
    assert found.notes == ()
    with pytest.raises(EvaluationError, match=dtype):
        torch_evaluator(task(eval_sets={"test": lambda: (torch.zeros(9, 4).to(getattr(torch, dtype)), torch.ones(9))}))


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_models_of_other_types(tmp_path, dtype):
    import torch

    kind = getattr(torch, dtype)
    model = saved(lambda: net().to(kind), tmp_path / "step-1.pt")
    given = task(build_model=lambda: net().to(kind), step=lambda m, b: (b[1], m(b[0].to(kind))))
    expected = loss_of(model, lambda x: torch.cat([model(part.to(kind)) for part in x.split(8)]))
    assert evaluate(given, tmp_path / "step-1.pt").values["loss"].value == pytest.approx(expected, rel=1e-6)
    with pytest.raises(EvaluationError, match="float32 and the model") as caught:
        torch_evaluator(task(build_model=lambda: net().to(kind)))
    assert dtype in str(caught.value)


def test_views_of_a_larger_output(checkpoint):
    """Not contiguous, and a part of a tensor that lives longer."""

    def step(model, batch):
        x, y = batch
        return y, model(x.repeat(2, 1)).T.flip(1)[:, : len(y)].flip(1).T

    numbers, plain = evaluate(task(step=step), checkpoint).values, evaluate(task(), checkpoint).values
    assert numbers["accuracy"] == plain["accuracy"]
    assert numbers["loss"].value == pytest.approx(plain["loss"].value, rel=1e-6)


def test_a_step_that_computes_gradients(tmp_path):
    """Forces are the gradients of an energy; that is impossible in the mode of inference."""
    import torch
    from torch import nn

    def forces(model, batch):
        x = batch[0].requires_grad_()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(model(x).sum(), x)
        return torch.zeros(len(x), 4), gradient

    model = saved(net, tmp_path / "step-1.pt")
    x, _ = tensors()
    expected = forces(model, (x, None))[1].square().mean().item()
    given = task(step=forces, loss=nn.MSELoss(), metrics=lambda: [MSE()])
    assert evaluate(given, tmp_path / "step-1.pt").values["loss"].value == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("kind", ["penalty", "norms"])
def test_a_step_that_asks_for_the_gradients_of_the_weights(tmp_path, kind):
    """A penalty on trained weights, and the norm of each example's gradient: the flags are those of the model."""
    import torch

    def value(model, x, y):
        if kind == "penalty":
            return sum(one.square().sum() for one in model.parameters() if one.requires_grad)
        with torch.enable_grad():
            loss = torch.nn.functional.cross_entropy(model(x), y)
            gradients = torch.autograd.grad(loss, [one for one in model.parameters() if one.requires_grad])
        return torch.sqrt(sum(one.square().sum() for one in gradients))

    def build():
        model = net()
        next(model.parameters()).requires_grad_(requires_grad=False)
        return model

    def values(model, x, y):
        return torch.stack([value(model, *each) for each in zip(x[:, None], y[:, None], strict=True)])

    model = saved(build, tmp_path / "step-1.pt")
    given = task(
        build_model=build,
        step=lambda model, batch: (batch[1], values(model, *batch)),
        loss=None,
        metrics=lambda: [Mean(lambda _, p: p, name="value")],
    )
    right = values(model, *tensors()).double().mean().item()
    assert evaluate(given, tmp_path / "step-1.pt").values["value"].value == pytest.approx(right, rel=1e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # of torch.compile's own imports
@pytest.mark.parametrize("wrapper", ["DataParallel", "compile", "compile in place", "compiled step"])
def test_wrapped_and_compiled_models(checkpoint, wrapper):
    """Plain weights are restored into them. Compiled modules run as they were written, and a note says so."""
    import torch
    from torch import nn

    def build():
        model = net()
        if wrapper == "DataParallel":
            return nn.DataParallel(model)
        if wrapper == "compile":
            return torch.compile(model)
        if wrapper == "compile in place":
            model.compile()
        return model

    step = torch.compile(lambda m, b: (b[1], m(b[0]))) if wrapper == "compiled step" else None
    try:
        result = evaluate(task(build_model=build, step=step), checkpoint)
    finally:
        torch.compiler.set_stance("default")
    assert result.values == evaluate(task(), checkpoint).values
    assert any("torch.compile" in note for note in result.notes) == (wrapper in ("compile", "compile in place"))


def test_parameters_that_are_tensors_of_inference(checkpoint):
    """A model that was built in the mode of inference: such tensors count no changes, so they are hashed."""
    import torch

    from sidecar.evaluation.backends.torch import repeatability

    def build():
        with torch.inference_mode():
            return net()

    def restore(model, path):
        with torch.inference_mode():
            model.load_state_dict(torch.load(path))

    given = task(build_model=build, restore=restore)
    assert evaluate(given, checkpoint).values == evaluate(task(), checkpoint).values

    model = build()
    before = repeatability.versions(model)
    repeatability.require_unchanged(model, before)
    with torch.inference_mode():
        model[0].bias += 1e-3
    with pytest.raises(EvaluationError) as caught:
        repeatability.require_unchanged(model, before)
    assert "0.bias" in str(caught.value)


@pytest.mark.parametrize("form", ["dict", "tuple", "list", "output"])
def test_several_outputs_with_metrics_for_each(tmp_path, form):
    import torch

    model = saved(outputs(form), tmp_path / "step-1.pt")
    keys = ("kind", "size") if form in ("dict", "output") else (0, 1)

    def step(model, batch):
        x, y = batch
        return dict(zip(keys, (y, y.float()), strict=True)), model(x)

    given = task(
        build_model=outputs(form),
        step=step,
        loss=None,
        metrics=lambda: {keys[0]: [Accuracy()], keys[1]: [MSE()]},
    )
    numbers = evaluate(given, tmp_path / "step-1.pt").values
    x, y = tensors()
    with torch.no_grad():
        scores = model.net(x)
    assert numbers[f"{keys[0]}_accuracy"].value == (scores.argmax(1) == y).double().mean().item()
    squares = (scores.sum(1).double() - y) ** 2
    assert numbers[f"{keys[1]}_mse"].value == pytest.approx(squares.mean().item(), rel=1e-5)


def test_several_outputs_without_a_choice(tmp_path):
    """One loss of one tensor: the message says how to choose."""
    saved(outputs("dict"), tmp_path / "step-1.pt")
    with pytest.raises(EvaluationError, match="one tensor of predictions"):
        evaluate(task(build_model=outputs("dict"), metrics=None), tmp_path / "step-1.pt")


def test_a_step_without_a_model_output(checkpoint):
    """A loss per example as the only number: `Mean` of what the step returns."""
    given = task(step=lambda m, b: (b[1], m(b[0]).logsumexp(1)), metrics=lambda: [Mean()], loss=None)
    number = evaluate(given, checkpoint).values["mean"].value
    assert math.isfinite(number)


@pytest.mark.parametrize("only_loss", [True, False])
def test_predictions_stay_on_the_device_if_only_the_loss_needs_them(checkpoint, monkeypatch, only_loss):
    """Logits of a language model may take gigabytes. Only those of the first eight batches are compared with halves."""
    from sidecar.evaluation.backends.torch import step

    converted = []

    def noting(tensor):
        converted.append(tuple(tensor.shape))
        return to_numpy(tensor)

    to_numpy = step.to_numpy
    monkeypatch.setattr(step, "to_numpy", noting)
    evaluate(task(metrics=None) if only_loss else task(), checkpoint, ranks=(1,))
    assert (converted.count((8, 3)) == 4) == only_loss
