"""A small network, its data and its tasks, as tensors and as data sets."""

from tests_torch import result_of_ranks

from sidecar import Task
from sidecar.metrics import Accuracy

EXAMPLES = 103


def net():
    from torch import nn

    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 3))


def tensors(examples=EXAMPLES):
    import torch

    x = torch.randn(examples, 8, generator=torch.Generator().manual_seed(2))
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


def dataset(examples=EXAMPLES):
    from torch.utils.data import TensorDataset

    return TensorDataset(*tensors(examples))


def task(source=dataset, **changes):
    from torch import nn

    given = {
        "build_model": net,
        "eval_sets": {"test": source},
        "metrics": lambda: [Accuracy()],
        "loss": nn.CrossEntropyLoss(),
        "batch_size": 16,
    }
    return Task(**given | changes)


def bits(task, checkpoint, ranks=1):
    """The bits of the numbers of a group."""
    return {name: value.hex for name, value in result_of_ranks(task, checkpoint, ranks)["test"].values.items()}
