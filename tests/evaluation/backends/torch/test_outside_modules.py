"""Modules with parameters that a task uses next to its model: their values are those of no checkpoint."""

import functools

import pytest
from tests_torch import result_of_ranks, torch_evaluator

from sidecar import Task
from sidecar.evaluation.failures import EvaluationError
from sidecar.metrics import Mean

pytestmark = pytest.mark.torch

EXAMPLES = 41


def data():
    import torch
    from torch.utils.data import TensorDataset

    x = torch.randn(EXAMPLES, 6, generator=torch.Generator().manual_seed(2))
    return TensorDataset(x, x[:, :3].argmax(1))


def net(inputs=6, outputs=3):
    from torch import nn

    return nn.Linear(inputs, outputs)


def task(**changes):
    from torch import nn

    given = {"build_model": net, "eval_sets": {"test": data}, "loss": nn.CrossEntropyLoss(), "batch_size": 8}
    return Task(**given | changes)


def with_step(use):
    """A task whose step calls a function of (model, x) that uses another module."""
    return task(step=lambda model, batch: (batch[1], use(model, batch[0])))


class Holder:
    """A callable object, as steps with settings are written."""

    def __init__(self, embed):
        self.embed = embed

    def __call__(self, model, batch):
        """As a function of a step."""
        return batch[1], model(self.embed(batch[0]))


EMBED = None


def through_a_global(model, batch):
    return batch[1], model(EMBED(batch[0]))


@pytest.mark.parametrize("way", ["closure", "function", "object", "partial", "default", "global", "loss", "list"])
def test_parameters_outside_of_the_model_are_refused(monkeypatch, way):
    """No file is read for them, so they are as they were made: another number than that of training."""
    import torch

    embed = net(6, 6)
    monkeypatch.setitem(globals(), "EMBED", embed)

    def through(model, x):
        return model(embed(x))

    several = [embed]
    given = {
        "closure": with_step(lambda model, x: model(embed(x))),
        "function": with_step(through),
        "object": task(step=Holder(embed)),
        "partial": task(step=functools.partial(lambda one, model, batch: (batch[1], model(one(batch[0]))), embed)),
        "default": task(step=lambda model, batch, one=embed: (batch[1], model(one(batch[0])))),
        "global": task(step=through_a_global),
        "loss": task(loss=lambda p, y: embed(torch.cat([p, p], 1))[:, 0] + y),
        "list": with_step(lambda model, x: model(several[0](x))),
    }[way]
    with pytest.raises(EvaluationError, match="no checkpoint restores them") as caught:
        torch_evaluator(given)
    name = {"global": "EMBED", "partial": "Linear", "default": "one", "list": "several[0]"}.get(way, "embed")
    assert f"uses {name}, a Linear" in str(caught.value)
    embed.requires_grad_(False)  # what the message says of values that are right
    torch_evaluator(given)


def test_the_remedy_has_the_number_of_training(tmp_path):
    """A file with the parts `head` and `embed` is restored into the module that holds both."""
    import torch
    from torch import nn

    torch.manual_seed(3)
    embed, head = net(6, 6), net()
    torch.save({"head": head.state_dict(), "embed": embed.state_dict(), "step": 5}, tmp_path / "step-5.pt")
    given = task(
        build_model=lambda: nn.ModuleDict({"head": net(), "embed": net(6, 6)}),
        step=lambda model, batch: (batch[1], model["head"](model["embed"](batch[0]))),
    )
    x, y = data().tensors
    right = nn.functional.cross_entropy(head(embed(x)), y).item()
    for ranks in (1, 2):
        found = result_of_ranks(given, tmp_path / "step-5.pt", ranks)["test"]
        assert found.values["loss"].value == pytest.approx(right, rel=1e-6)
        assert not found.notes


def test_modules_without_values_of_their_own_are_left_alone():
    """The model itself as a global variable, activations, and parameters that are constants."""
    from torch import nn

    model, activation = net(), nn.ReLU()
    fixed = net(3, 3).requires_grad_(requires_grad=False)
    step = lambda _, batch: (batch[1], fixed(activation(model(batch[0]))))  # noqa: E731 - as users write it
    torch_evaluator(task(build_model=lambda: model, step=step))


def test_a_name_of_an_attribute_is_no_variable(monkeypatch):
    """`batch.EMBED` does not read the global variable EMBED."""
    monkeypatch.setitem(globals(), "EMBED", net())

    def step(model, batch):
        return batch[1], model(getattr(batch, "EMBED", batch[0]) if not hasattr(batch, "x") else batch.EMBED)

    torch_evaluator(task(step=step))


@pytest.mark.parametrize("kind", ["torchmetrics", "own", "seeded", "one network"])
def test_a_metric_with_random_parameters_is_refused(kind):
    """A perceptual distance in a network that nothing was loaded into."""
    import torch

    torchmetrics = pytest.importorskip("torchmetrics")

    class Distance(torchmetrics.Metric):
        full_state_update = False

        def __init__(self, network):
            super().__init__()
            self.network = network
            self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")
            self.add_state("count", torch.tensor(0), dist_reduce_fx="sum")

        def update(self, preds, target):
            with torch.no_grad():
                self.total += self.network(preds)[:, 0].sum() + target.sum()
            self.count += len(preds)

        def compute(self):
            return self.total / self.count

    shared = net(3, 2)

    def own():
        network = net(3, 2)
        return [Mean(lambda y, p: network(torch.as_tensor(p))[:, 0].detach().numpy() + y, name="own")]

    def seeded():
        torch.manual_seed(0)
        return [Distance(net(3, 2))]

    metrics = {
        "torchmetrics": lambda: [Distance(net(3, 2))],
        "own": own,
        "seeded": seeded,
        "one network": lambda: [Distance(shared)],
    }[kind]
    if kind in ("seeded", "one network"):
        torch_evaluator(task(metrics=metrics))
        return
    with pytest.raises(EvaluationError, match=r"random numbers, in .*network\.weight"):
        torch_evaluator(task(metrics=metrics))
