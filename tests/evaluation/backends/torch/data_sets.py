"""Small data sets of PyTorch in every form, and the truth about them."""

import multiprocessing
import os
from collections import namedtuple
from dataclasses import dataclass

import pytest
from tests_torch import result_of_ranks

from sidecar import Task
from sidecar.evaluation.failures import EvaluationError
from sidecar.metrics import Accuracy

BATCH = 8


def net():
    from torch import nn

    return nn.Linear(4, 3)


def tensors(examples):
    import torch

    x = torch.randn(examples, 4, generator=torch.Generator().manual_seed(2))
    return x, torch.arange(examples) % 3


def dataset(examples=33):
    from torch.utils.data import TensorDataset

    return TensorDataset(*tensors(examples))


def loader(examples=33, **options):
    from torch.utils.data import DataLoader

    return DataLoader(dataset(examples), **{"batch_size": BATCH} | options)


def task(source, **changes):
    from torch import nn

    given = {
        "build_model": net,
        "eval_sets": {"test": source},
        "metrics": lambda: [Accuracy()],
        "loss": nn.CrossEntropyLoss(),
        "batch_size": BATCH,
    }
    return Task(**given | changes)


def truth(checkpoint, examples=33, chosen=None):
    """Loss and accuracy of a plain loop of torch over these examples as one batch."""
    import torch

    model = net()
    model.load_state_dict(torch.load(checkpoint))
    x, y = tensors(examples)
    if chosen is not None:
        x, y = x[chosen], y[chosen]
    with torch.inference_mode():
        predictions = model(x)
        loss = torch.nn.functional.cross_entropy(predictions, y).item()
    return loss, (predictions.argmax(1) == y).sum().item() / len(y)


def evaluate(given, checkpoint, ranks=(1, 2, 3, 4)):
    """Evaluate with several numbers of ranks, which must give equal bits; return the numbers and notes of one rank."""
    results = [result_of_ranks(given, checkpoint, count)["test"] for count in ranks]
    assert [result.values for result in results[1:]] == [results[0].values] * (len(ranks) - 1)
    return results[0]


def assert_right(given, checkpoint, expected, ranks=(1, 2, 3, 4)):
    result = evaluate(given, checkpoint, ranks)
    loss, accuracy = expected
    assert result.values["loss"].value == pytest.approx(loss, rel=1e-6)
    assert result.values["accuracy"].value == accuracy
    return result


def refused(given, checkpoint=None):
    with pytest.raises(EvaluationError) as caught:
        result_of_ranks(given, checkpoint, 1)
    return caught.value


def Streamed(examples=33):  # noqa: N802 - a class that needs torch
    from torch.utils.data import IterableDataset

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(zip(*tensors(examples), strict=True))

    return Stream()


def children():
    """Processes of this one that run or were not reaped, but for the one that tracks resources."""
    with open(f"/proc/self/task/{os.getpid()}/children") as file:  # noqa: PTH123
        started = {int(pid) for pid in file.read().split()}
    tracker = multiprocessing.resource_tracker._resource_tracker._pid
    return started - {tracker}


Point = namedtuple("Point", "x y")  # noqa: PYI024 - a plain one, as in torch's documentation


@dataclass
class Example:
    """A batch that is a data class."""

    features: object
    target: object


def structures():
    """Batches by form: a collate function, and a step for it."""

    def nested(examples):
        x, y = stacked(examples)
        return {"inputs": {"left": x[:, :2], "right": [x[:, 2:]]}, "targets": (y,), "texts": [str(n.item()) for n in y]}

    def of_nested(model, batch):
        import torch

        assert batch["texts"] == [str(n.item()) for n in batch["targets"][0]]
        return batch["targets"][0], model(torch.cat([batch["inputs"]["left"], batch["inputs"]["right"][0]], 1))

    return {
        "named tuple": (lambda e: Point(*stacked(e)), None),
        "data class": (lambda e: Example(*stacked(e)), lambda m, b: (b.target, m(b.features))),
        "dict": (lambda e: dict(zip("xy", stacked(e), strict=True)), lambda m, b: (b["y"], m(b["x"]))),
        "nested": (nested, of_nested),
    }


def stacked(examples):
    import torch

    return torch.stack([x for x, _ in examples]), torch.stack([y for _, y in examples])


class DatasetOf:
    """A dataset of given examples."""

    def __init__(self, examples):
        self.examples = examples

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, at):
        return self.examples[at]


def counted_reads(examples=160):
    """A dataset of 20 batches that notes the examples that are read."""
    reads = []

    class Counted:
        def __len__(self):
            return examples

        def __getitem__(self, index):
            reads.append(index)
            return dataset(examples)[index]

    return Counted, reads


def batches_of(reads):
    return {index // BATCH for index in reads}
