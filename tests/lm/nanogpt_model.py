"""A small model with the interface of nanoGPT's `model.py`, which the recipe imports as `model`."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional


@dataclass
class GPTConfig:
    """The sizes of a model."""

    block_size: int = 64
    vocab_size: int = 65
    n_layer: int = 2
    n_head: int = 2
    n_embd: int = 32
    dropout: float = 0.0
    bias: bool = False


class GPT(nn.Module):
    """Token and position embeddings, layers of attention, and scores of all tokens only if there are targets."""

    def __init__(self, config):
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        layer = {"dim_feedforward": 4 * config.n_embd, "dropout": config.dropout, "batch_first": True}
        self.h = nn.ModuleList(
            nn.TransformerEncoderLayer(config.n_embd, config.n_head, **layer) for _ in range(config.n_layer)
        )
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx, targets=None):
        """Return scores and the loss; without targets only the scores of the last token."""
        length = idx.shape[1]
        x = self.wte(idx) + self.wpe(torch.arange(length))
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        for block in self.h:
            x = block(x, src_mask=mask, is_causal=True)
        if targets is None:
            return self.lm_head(x[:, [-1]]), None
        logits = self.lm_head(x)
        return logits, functional.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
