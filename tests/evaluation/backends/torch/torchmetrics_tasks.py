"""Tasks with metrics of torchmetrics, and the numbers of one process."""

from typing import ClassVar

from sidecar import Task

EXAMPLES = 103

BATCH = 16


def tensors():
    import torch

    x = torch.randn(EXAMPLES, 3, generator=torch.Generator().manual_seed(2))
    return x, (x.argmax(1) + (x[:, 0] > 0.9).long()) % 3


def task(metrics, predict=lambda x: x.softmax(1), labels=lambda y, _x: y):
    """A task whose model returns its input, with predictions and labels made of it."""
    from torch import nn
    from torch.utils.data import TensorDataset

    return Task(
        build_model=lambda: nn.Sequential(nn.Identity(), nn.Linear(1, 1)),
        eval_sets={"test": lambda: TensorDataset(*tensors())},
        metrics=metrics,
        step=lambda _model, batch: (labels(batch[1], batch[0]), predict(batch[0])),
        batch_size=BATCH,
    )


def alone(metric, predict=lambda x: x.softmax(1), labels=lambda y, _x: y):
    """Return what torchmetrics says in one process over all batches."""
    x, y = tensors()
    for of_x, of_y in zip(x.split(BATCH), y.split(BATCH), strict=True):
        metric.update(predict(of_x), labels(of_y, of_x))
    return metric.compute()


def number(value):
    return float.fromhex(value.hex)


def scores(x):
    return x[:, 0].sigmoid()


def positive(y, _x):
    return (y == 1).long()  # 52 of 103: an area has no interval if fewer than 20 examples have one of the labels


def add_all(self, preds, _target):
    self.total = self.total + preds.sum()


def keep_the_last(self, preds, _target):
    self.total = preds.sum()


def add_a_variance(self, preds, _target):
    self.total = self.total + preds.var()


def exchanged(self, target, preds):
    self.total = self.total + preds.sum() + 0 * target.sum()


def add_random(self, preds, _target):
    import torch

    self.total = self.total + preds.sum() * torch.rand(())


def listed():
    """Keeps all it sees in a list of Python, as wrappers of other libraries do."""
    import torch
    import torchmetrics

    class Listed(torchmetrics.Metric):
        seen: ClassVar[list] = []

        def update(self, preds, target):
            self.seen.append(preds + target)

        def reset(self):
            super().reset()
            self.seen = []

        def compute(self):
            return torch.cat(self.seen).median()

    return Listed()


def own(called=add_all, reduction="sum", first=0.0):
    """A metric of the user's own: the sum of all predictions."""
    import torch
    import torchmetrics

    class Own(torchmetrics.Metric):
        update = called

        def __init__(self):
            super().__init__()
            self.add_state("total", torch.tensor(first), dist_reduce_fx=reduction)

        def compute(self):
            return self.total

    return Own()
