"""Batches that are objects of the user's or of a library: hashed, copied, moved and passed to the step."""

import argparse
import copy
from collections import UserDict, namedtuple
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import attr
import pytest
from evaluation.backends.torch import models
from tests_torch import result_of_ranks, torch_evaluator

from sidecar import Task
from sidecar.evaluation.failures import EvaluationError
from sidecar.metrics import Accuracy

pytestmark = pytest.mark.torch

EXAMPLES = 53


class Batch:
    """A batch of graphs: nodes, the graph of each node, and a label for each graph."""

    def __init__(self, x, graph, y):
        self.x, self.graph, self.y = x, graph, y


class Moving(Batch):
    """A batch with a method that moves it to a device."""

    def to(self, device):  # noqa: D102
        return Moving(self.x.to(device), self.graph.to(device), self.y.to(device))


class MovingInPlace(Batch):
    """Moves itself, and returns nothing."""

    def to(self, device):  # noqa: D102
        for name, value in vars(self).items():
            setattr(self, name, value.to(device))


class MovingOtherwise(Batch):
    """Has a method `to` that takes something else."""

    def to(self, *, place):  # noqa: D102
        raise NotImplementedError(place)


class Slotted:
    """Has no dict of attributes."""

    __slots__ = ("graph", "x", "y")

    def __init__(self, x, graph, y):
        self.x, self.graph, self.y = x, graph, y


class Stored:
    """As in PyTorch Geometric: attributes lie in a store that refers to its owner."""

    def __init__(self, x, graph, y):
        self.__dict__["_store"] = SimpleNamespace(mapping={"x": x, "graph": graph, "y": y}, owner=self)

    def __getattr__(self, name):
        try:
            return self.__dict__["_store"].mapping[name]
        except KeyError:
            raise AttributeError(name) from None

    def __deepcopy__(self, memo):
        return type(self)(*(copy.deepcopy(self._store.mapping[name], memo) for name in ("x", "graph", "y")))


class StoredWithKeys(Stored):
    """Is read like a mapping."""

    def keys(self):  # noqa: D102
        return list(self._store.mapping)

    def __getitem__(self, key):
        return self._store.mapping[key]


class StoredAsDict(Stored):
    """A batch that returns its content as a dict."""

    def to_dict(self):  # noqa: D102
        return dict(self._store.mapping)


@dataclass(frozen=True)
class Frozen:
    """A batch whose attributes cannot be assigned."""

    x: Any
    graph: Any
    y: Any


@dataclass
class Computing:
    """A data class whose constructor takes other arguments than it has fields."""

    x: Any
    graph: Any
    y: Any

    def __init__(self, x, graph, y):
        self.x, self.graph, self.y = x, graph, y


@attr.s(auto_attribs=True, slots=True, frozen=True)
class Attrs:
    """A batch whose class was made with attrs."""

    x: Any
    graph: Any
    y: Any


class AsDict(UserDict):
    """Like `BatchEncoding`, with a constructor of its own."""

    def __init__(self, x, graph, y):
        super().__init__(x=x, graph=graph, y=y)

    def __getattr__(self, name):
        if name not in self.__dict__.get("data", {}):
            raise AttributeError(name)
        return self.data[name]


class Linked(Batch):
    """A batch with an attribute that refers to the batch itself."""

    def __init__(self, x, graph, y):
        super().__init__(x, graph, y)
        self.parent, self.device = [self], x.device


Named = namedtuple("Named", "x graph y")  # noqa: PYI024 - as users write it


class MovingNamed(Named):
    """As `PackedSequence`: a part stays where it is."""

    def to(self, device):  # noqa: D102
        return type(self)(self.x.to(device), self.graph, self.y.to(device))


def namespace(x, graph, y):
    return argparse.Namespace(x=x, graph=graph, y=y)


KINDS = [
    *(
        Batch,
        Moving,
        MovingInPlace,
        MovingOtherwise,
        Slotted,
        Stored,
        StoredWithKeys,
        StoredAsDict,
        Frozen,
        Computing,
        Attrs,
        AsDict,
    ),
    *(Linked, Named, MovingNamed, namespace),
]


def graphs():
    import torch

    generator = torch.Generator().manual_seed(3)
    nodes = [torch.randn(2 + at % 5, 4, generator=generator) for at in range(EXAMPLES)]
    return [(x, int(x.sum() > 0)) for x in nodes]


def net():
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(4)
            self.out = nn.Linear(4, 2)

        def forward(self, batch):
            made = torch.zeros(len(batch.y), 2).index_add(0, batch.graph, self.out(batch.x))
            batch.x.mul_(2)  # a model may change its input
            return made

    return Net()


def task(made, examples=None, **options):
    import torch
    from torch import nn
    from torch.utils.data import DataLoader

    def collate(items):
        x = torch.cat([x for x, _ in items])
        graph = torch.cat([torch.full((len(x),), at) for at, (x, _) in enumerate(items)])
        return made(x, graph, torch.tensor([y for _, y in items]))

    given = graphs() if examples is None else examples
    return Task(
        build_model=net,
        eval_sets={"test": lambda: DataLoader(given, batch_size=8, collate_fn=collate)},
        **{
            "step": lambda model, batch: (batch.y, model(batch)),
            "metrics": lambda: [Accuracy()],
            "loss": nn.CrossEntropyLoss(),
            **options,
        },
    )


checkpoint = models.checkpoint_of(net)


@pytest.mark.parametrize("made", KINDS, ids=lambda made: made.__name__)
@pytest.mark.drawn(4)
def test_graphs_in_any_object(checkpoint, made):
    """The numbers are those of the graphs one by one, for 1, 2 and 3 ranks."""
    import torch
    from torch.nn import functional

    model = net()
    with torch.no_grad():
        scores = torch.stack([model.out(x).sum(0) for x, _ in graphs()])
    y = torch.tensor([label for _, label in graphs()])
    results = [
        result_of_ranks(task(made), checkpoint, ranks, cache_bytes=ranks % 2 << 20)["test"] for ranks in (1, 2, 3)
    ]
    assert len({result.values["loss"].hex for result in results}) == 1
    assert results[0].values["accuracy"].value == (scores.argmax(1) == y).double().mean().item()
    assert results[0].values["accuracy"].lower is not None
    assert results[0].values["loss"].value == pytest.approx(functional.cross_entropy(scores, y).item(), rel=1e-6)


@pytest.mark.parametrize("made", KINDS, ids=lambda made: made.__name__)
def test_their_content_is_compared(made):
    """The fingerprint of a set is that of the tensors in its batches."""
    other = graphs()
    other[1][0][0, 0] += 1e-6
    streams = [torch_evaluator(task(made, examples)).read(lambda: None) for examples in (None, None, other)]
    assert streams[0] == streams[1] != streams[2]


def test_objects_without_tensors_are_refused():
    """Nothing says what the content of such an object is."""

    class Opaque:
        __slots__ = ()

    with pytest.raises(EvaluationError, match="Opaque"):
        torch_evaluator(task(lambda x, graph, y: {"batch": Batch(x, graph, y), "other": Opaque()}))


def test_an_object_without_a_step_names_the_line():
    """The message has the step for an object with labels."""
    with pytest.raises(EvaluationError, match="Batch") as caught:
        torch_evaluator(task(Batch, step=None))
    assert "step=lambda model, batch: (batch.y, model(batch))" in str(caught.value)


def test_other_plain_values_are_compared():
    """Devices, dates, paths and members of enumerations are compared as they are written."""
    import datetime as dt
    import enum
    from pathlib import Path

    import torch

    colour = enum.Enum("Colour", "red green")

    def read(*values):
        made = lambda x, graph, y: Batch(x, [graph, *values], y)  # noqa: E731
        step = lambda model, batch: (batch.y, model(Batch(batch.x, batch.graph[0], batch.y)))  # noqa: E731
        return torch_evaluator(task(made, step=step)).read(lambda: None)

    usual = (torch.device("cpu"), torch.float32, dt.date(2020, 1, 1), Path("a"), colour.red, 1j, slice(3), None)
    assert read(*usual) == read(*usual) != read(*usual[:-4], colour.green, *usual[-3:])


@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:The PyTorch API of nested")
def test_sparse_and_nested_tensors():
    """Tensors of any layout are hashed by their values."""
    import torch

    def read(change):
        dense = torch.eye(3)
        dense[0, 0] += change
        nested = torch.nested.nested_tensor([dense[0], dense[1, :2]])
        made = lambda x, graph, y: Batch(x, [graph, dense.to_sparse(), dense.to_sparse_csr(), nested], y)  # noqa: E731
        step = lambda model, batch: (batch.y, model(Batch(batch.x, batch.graph[0], batch.y)))  # noqa: E731
        return torch_evaluator(task(made, step=step)).read(lambda: None)

    assert read(0) == read(0) != read(1)


@pytest.mark.parametrize("made", KINDS, ids=lambda made: made.__name__)
def test_every_tensor_is_moved(made):
    """A copy is on the other device, of the same type, and the original stays where it is."""
    import torch

    from sidecar.evaluation.backends.torch.tensors import leaves, moved

    batch = made(torch.ones(3, 4), torch.zeros(3).long(), torch.zeros(2).long())
    there = moved({"batches": [batch]}, torch.device("meta"))["batches"][0]
    assert type(there) is type(batch)
    kinds = {leaf.device.type for leaf in leaves(there) if isinstance(leaf, torch.Tensor)}
    assert kinds == ({"meta", "cpu"} if made is MovingNamed else {"meta"})
    assert {leaf.device.type for leaf in leaves(batch) if isinstance(leaf, torch.Tensor)} == {"cpu"}
