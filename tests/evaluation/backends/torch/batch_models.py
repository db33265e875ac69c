"""Models and metrics that depend on how examples are divided into batches."""

from sidecar import Task
from sidecar.metrics import Accuracy, Sums

EXAMPLES = 61


def tensors(examples=EXAMPLES):
    import torch

    x = torch.randn(examples, 4, generator=torch.Generator().manual_seed(2))
    return x, (x.sum(1) > 0).long()


def dataset():
    from torch.utils.data import TensorDataset

    return TensorDataset(*tensors())


def mixed(kind, x):
    """Let each example depend on others of its batch: on all, or on its neighbour, which halves of 8 would not part."""
    if kind == "centred":
        return x - x.mean(0)
    return x + x[[min(row ^ 1, len(x) - 1) for row in range(len(x))]] if kind == "pairs" else x


def net(kind="plain"):
    """A net of two classes, with something of its own."""
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)
            if kind == "batch statistics":
                self.norm = nn.BatchNorm1d(8, track_running_stats=False)
            elif kind == "running statistics":
                self.norm = nn.BatchNorm1d(8)
            elif kind == "dropout":
                self.norm = nn.Dropout(0.2)

        def forward(self, x):
            x = mixed(kind, x)
            hidden = self.norm(self.first(x)) if hasattr(self, "norm") else self.first(x)
            if kind == "size":
                hidden = hidden / len(x)
            if kind == "dropout":
                hidden = torch.nn.functional.dropout(hidden, 0.2, training=True)
            if kind == "fixed":
                hidden = hidden.reshape(8, 8) if len(x) == 8 else hidden.reshape(5, 8)
            return self.last(torch.tanh(hidden))

    return Net()


def task(kind="plain", **changes):
    from torch import nn

    given = {
        "build_model": lambda: net(kind),
        "eval_sets": {"test": dataset},
        "metrics": lambda: [Accuracy()],
        "loss": nn.CrossEntropyLoss(),
        "batch_size": 8,
    }
    return Task(**given | changes)


def saved(model, path):
    import torch

    torch.save(model.state_dict(), path)
    return path


def texts():
    """Examples of different lengths, with their tokens from 1 on."""
    import torch

    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(2, 12, (EXAMPLES,), generator=generator).tolist()
    return [(torch.randint(1, 20, (length,), generator=generator), length % 3) for length in lengths]


def padded(examples):
    import torch

    tokens, labels = zip(*examples, strict=True)
    return torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True), torch.tensor(labels)


def reader(masked):
    from torch import nn

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.last = nn.Embedding(20, 8), nn.Linear(8, 3)

        def forward(self, tokens):
            embedded = self.embedding(tokens)
            if not masked:
                return self.last(embedded.mean(1))
            counts = (tokens > 0).unsqueeze(-1)
            return self.last((embedded * counts).sum(1) / counts.sum(1))

    return Reader()


def tagger():
    from torch import nn

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.last = nn.Embedding(20, 8), nn.Linear(8, 3)

        def forward(self, tokens):
            return self.last(self.embedding(tokens))

    return Tagger()


def auc(y, scores):
    return (scores[y == 1][:, None] > scores[y == 0][None]).mean()


def share(right, n, **_):
    return right / n


def counting_batches(value):
    return [Sums(lambda y, p: {"right": (p.argmax(1) == y).sum(), "n": len(y), "batches": 1}, value, name="right")]


def weighted(reduction="mean"):
    """A loss of one's own, as many repositories have it: a mean with its own divisor."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Weighted(nn.Module):
        def __init__(self):
            super().__init__()
            self.reduction = reduction

        def forward(self, predictions, y):
            losses, w = functional.cross_entropy(predictions, y, reduction="none"), torch.where(y == 1, 3.0, 1.0)
            if self.reduction == "mean":
                return (w * losses).sum() / w.sum()
            return (w * losses).sum() if self.reduction == "sum" else w * losses

    return Weighted()


def by_positives(predictions, y, reduction="mean"):
    from torch.nn import functional

    losses = functional.cross_entropy(predictions, y, reduction="none")
    return losses.sum() / (y == 1).sum() if reduction == "mean" else losses


def smooth_of_class():
    """A class of torch with a forward of one's own, which divides as torch does not."""
    from torch import nn

    class Smooth(nn.CrossEntropyLoss):
        def forward(self, predictions, y):
            return super().forward(predictions, y) * (2.0 if self.reduction == "mean" else 1.0)

    return Smooth()
