"""Evaluate a network of equal blocks, as language models have: for workers of several processes, which divide it."""

import os
from pathlib import Path

import torch
from torch import nn

from sidecar import Task
from sidecar.metrics import Accuracy

EXAMPLES = 45  # so that two workers have other numbers of batches


class Block(nn.Module):
    """One block, whose sizes two processes share unequally; it draws random numbers only in training."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 33), nn.Linear(33, 16)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the same shape."""
        return x + self.drop(self.down(torch.relu(self.up(self.norm(x)))))


class Net(nn.Module):
    """Blocks between an embedding and a head, with a buffer that checkpoints lack and a parameter without rows."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.blocks, self.head = (
            nn.Embedding(50, 16),
            nn.ModuleList(Block() for _ in range(3)),
            nn.Linear(16, 5),
        )
        self.gain = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 16), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores (n, 5) of token ids (n, 7)."""
        if "_SIDECAR_FOLLOWER_PROCESS" in os.environ and Path(os.environ["WITHOUT_MEMORY"]).exists():
            raise MemoryError("a test takes it")
        x = self.embed(x) * self.scale * self.gain
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def test_set() -> torch.utils.data.Dataset:
    """Return token ids, and labels."""
    drawn = torch.Generator().manual_seed(5)
    ids, labels = (
        torch.randint(0, most, size, generator=drawn) for most, size in ((50, (EXAMPLES, 7)), (5, (EXAMPLES,)))
    )
    return torch.utils.data.TensorDataset(ids, labels)


task = Task(
    build_model=Net,
    eval_sets={"test": test_set},
    metrics=lambda: [Accuracy()],
    loss=nn.CrossEntropyLoss(),
    batch_size=8,
)
