"""Models and steps as users have them, with hostile eyes: right for 1 to 4 ranks, or refused with the reason."""

import math

import numpy as np
import pytest
from tests_torch import result_of_ranks, torch_evaluator

from sidecar import Task
from sidecar.evaluation.failures import EvaluationError
from sidecar.metrics import MSE, Accuracy, Mean

pytestmark = pytest.mark.torch

EXAMPLES = 37


def net():
    from torch import nn

    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def tensors():
    import torch

    x = torch.randn(EXAMPLES, 4, generator=torch.Generator().manual_seed(2))
    return x, torch.arange(EXAMPLES) % 3


def dataset():
    from torch.utils.data import TensorDataset

    return TensorDataset(*tensors())


def task(**changes):
    from torch import nn

    given = {
        "build_model": net,
        "eval_sets": {"test": dataset},
        "metrics": lambda: [Accuracy()],
        "loss": nn.CrossEntropyLoss(),
        "batch_size": 8,
    }
    return Task(**given | changes)


def saved(build, path, seed=4):
    """A model with random weights, which a checkpoint holds."""
    import torch

    torch.manual_seed(seed)
    model = build()
    torch.save(model.state_dict(), path)
    return model.eval()


@pytest.fixture
def checkpoint(tmp_path):
    saved(net, tmp_path / "step-1.pt")
    return tmp_path / "step-1.pt"


def evaluate(given, checkpoint, ranks=(1, 2, 3, 4), **options):
    results = [result_of_ranks(given, checkpoint, count, **options)["test"] for count in ranks]
    assert [result.values for result in results[1:]] == [results[0].values] * (len(ranks) - 1)
    return results[0]


def loss_of(model, forward=None):
    import torch

    x, y = tensors()
    with torch.no_grad():
        return torch.nn.functional.cross_entropy((forward or model)(x).float(), y).item()


def one_by_one(given, *checkpoints):
    """The losses of several checkpoints that one worker evaluates."""
    evaluator = torch_evaluator(given)
    losses = []
    for path in checkpoints:
        evaluator.read(lambda: None)
        evaluator.restore(str(path))()
        evaluator.digest()
        losses.append(evaluator.compute(evaluator.evaluate(lambda: None))["test"].values["loss"].value)
    return losses


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


def cached(key):
    """A net with a cache in a plain attribute: of positions, which depend on shapes only, of batches, or of weights."""
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()
            self.cache = {}

        def forward(self, x):
            if key == "batches":
                return self.net(x - self.cache.setdefault(x.shape, x.mean(0)))
            if key == "positions":
                if len(x) not in self.cache:
                    self.cache[len(x)] = torch.linspace(0, 1, x.shape[1])
                return self.net(x + self.cache[len(x)])
            if "weight" not in self.cache:
                self.cache["weight"] = self.net[0].weight / self.net[0].weight.norm()
            return self.net(x + (x @ self.cache["weight"].T).mean(1, keepdim=True))

    return Net()


def test_a_cache_that_does_not_depend_on_weights(tmp_path):
    """Such as that of rotary positions."""
    paths = [tmp_path / "step-1.pt", tmp_path / "step-2.pt"]
    models = [saved(lambda: cached("positions"), path, seed) for seed, path in enumerate(paths)]
    given = task(build_model=lambda: cached("positions"))
    assert one_by_one(given, *paths) == pytest.approx([loss_of(model) for model in models], rel=1e-6)
    evaluate(given, paths[0])


def test_a_cache_of_earlier_weights(tmp_path):
    """A forward pass before the restore, or of an earlier checkpoint, has filled it: all numbers would be wrong."""
    saved(lambda: cached("weights"), tmp_path / "step-1.pt")
    with pytest.raises(EvaluationError, match="earlier weights") as caught:
        evaluate(task(build_model=lambda: cached("weights")), tmp_path / "step-1.pt", ranks=(1,))
    assert " cache" in str(caught.value)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_cache_of_earlier_batches(tmp_path, ranks):
    """The first worker's first batch is the one on which the model was tried, so another one must show the cache."""
    saved(lambda: cached("batches"), tmp_path / "step-1.pt")
    with pytest.raises(EvaluationError, match="earlier weights or batches") as caught:
        evaluate(task(build_model=lambda: cached("batches")), tmp_path / "step-1.pt", ranks=(ranks,))
    assert " cache" in str(caught.value)


def test_weights_that_are_merged_in_the_mode_of_evaluation(tmp_path):
    """As `loralib` does in `train(False)`, and undoes in `train()`."""
    import torch
    from torch import nn

    class Lora(nn.Linear):
        def __init__(self, *sizes):
            self.merged = False
            super().__init__(*sizes)
            self.a, self.b = nn.Parameter(torch.randn(2, sizes[0])), nn.Parameter(torch.randn(sizes[1], 2))

        def train(self, mode=True):
            super().train(mode)
            if self.merged == mode:
                self.weight.data += (-1 if mode else 1) * (self.b @ self.a)
                self.merged = not mode
            return self

        def forward(self, x):
            return super().forward(x) + (0 if self.merged else x @ self.a.T @ self.b.T)

    def build():
        return nn.Sequential(Lora(4, 8), nn.Tanh(), nn.Linear(8, 3))

    models = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        models.append(build())
        torch.save(models[-1].state_dict(), tmp_path / f"step-{seed}.pt")
    losses = one_by_one(task(build_model=build), tmp_path / "step-1.pt", tmp_path / "step-2.pt")
    assert losses == pytest.approx([loss_of(model) for model in models], rel=1e-5)


def test_outputs_in_the_same_buffer_each_time(tmp_path):
    """Outputs of several batches are added at once: those of the first would have the values of the last."""
    import torch
    from torch import nn

    class Buffered(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()
            self.out = torch.zeros(8, 3)

        def forward(self, x):
            self.out[: len(x)] = self.net(x)
            return self.out[: len(x)]

    model = saved(Buffered, tmp_path / "step-1.pt")
    numbers = evaluate(task(build_model=Buffered), tmp_path / "step-1.pt").values
    x, y = tensors()
    with torch.no_grad():
        right = sum((model(a).argmax(1) == b).sum().item() for a, b in zip(x.split(8), y.split(8), strict=True))
    assert numbers["accuracy"].value == right / EXAMPLES


def test_views_of_a_larger_output(checkpoint):
    """Not contiguous, and a part of a tensor that lives longer."""

    def step(model, batch):
        x, y = batch
        return y, model(x.repeat(2, 1)).T.flip(1)[:, : len(y)].flip(1).T

    numbers, plain = evaluate(task(step=step), checkpoint).values, evaluate(task(), checkpoint).values
    assert numbers["accuracy"] == plain["accuracy"]
    assert numbers["loss"].value == pytest.approx(plain["loss"].value, rel=1e-6)


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_a_generator_of_the_task_is_refused(checkpoint, kind):
    """It cannot be seeded from outside, so a result would depend on how the batches are divided."""
    import torch

    own = {"torch": torch.Generator().manual_seed(3), "numpy": np.random.default_rng(3)}[kind]

    def step(model, batch):
        x, y = batch
        noise = torch.rand(x.shape, generator=own) if kind == "torch" else torch.from_numpy(own.random(x.shape)).float()
        return y, model(x + noise)

    with pytest.raises(EvaluationError, match="cannot be seeded"):
        evaluate(task(step=step), checkpoint)


def test_a_generator_that_a_step_seeds_each_time(checkpoint):
    """The same noise for each batch of one size: repeatable, and a note says that the size matters."""
    import torch

    own = torch.Generator()

    def step(model, batch):
        x, y = batch
        return y, model(x + torch.rand(x.shape, generator=own.manual_seed(len(x))))

    (note,) = evaluate(task(step=step), checkpoint).notes
    assert "another batch size" in note


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


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # of torch.compile's own imports
@pytest.mark.parametrize("wrapper", ["DataParallel", "compile", "compile in place", "compiled step"])
def test_wrapped_and_compiled_models(checkpoint, wrapper):
    """Plain weights are restored into them. What is compiled runs as it was written, and a note says so."""
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


def outputs(form):
    """A net of two outputs, in several forms; and the keys of the outputs."""
    from dataclasses import dataclass

    from torch import nn

    class Output(dict):
        __getattr__ = dict.__getitem__

    @dataclass
    class Parts:
        kind: object
        size: object

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, x):
            scores = self.net(x)
            kind, size = scores, scores.sum(1)
            made = {"dict": dict, "output": Output}
            if form in made:
                return made[form](kind=kind, size=size)
            return {"tuple": (kind, size), "list": [kind, size], "data class": Parts(kind, size)}[form]

    return Two


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
    """Logits of a language model may take gigabytes. Only those of batches 0, 1 and 2 are compared with halves."""
    from sidecar.evaluation.backends.torch import step

    converted = []

    def noting(tensor):
        converted.append(tuple(tensor.shape))
        return to_numpy(tensor)

    to_numpy = step.to_numpy
    monkeypatch.setattr(step, "to_numpy", noting)
    evaluate(task(metrics=None) if only_loss else task(), checkpoint, ranks=(1,))
    assert (converted.count((8, 3)) == 3) == only_loss
