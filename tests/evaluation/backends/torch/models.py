"""Small models of PyTorch, their checkpoints and their tasks."""

import pytest
from tests_torch import result_of_ranks, torch_evaluator

from sidecar import Task
from sidecar.metrics import Accuracy

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


def checkpoint_of(build):
    """Return a fixture: the path of random weights of such a model."""

    @pytest.fixture
    def checkpoint(tmp_path):
        saved(build, tmp_path / "step-1.pt")
        return tmp_path / "step-1.pt"

    return checkpoint


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
