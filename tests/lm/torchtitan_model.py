"""A small model with the interface and the names of torchtitan's `models/llama3`, which needs triton to be imported."""

import torch
from torch import nn


class Attention(nn.Module):
    """Causal attention within the documents of a mask."""

    def __init__(self, size):
        super().__init__()
        self.qkv_linear = nn.ModuleDict({name: nn.Linear(size, size, bias=False) for name in ("wq", "wk", "wv")})
        self.wo = nn.Linear(size, size, bias=False)

    def forward(self, x, mask):
        """Return what each token attends to."""
        q, k, v = (self.qkv_linear[name](x) for name in ("wq", "wk", "wv"))
        return self.wo(nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask))


class Layer(nn.Module):
    """Attention and a feed-forward network."""

    def __init__(self, size):
        super().__init__()
        self.attention, self.attention_norm = Attention(size), nn.RMSNorm(size)
        self.feed_forward = nn.ModuleDict({"w1": nn.Linear(size, size, bias=False)})

    def forward(self, x, mask):
        """Return the residual stream after this layer."""
        x = x + self.attention(self.attention_norm(x), mask)
        return x + self.feed_forward["w1"](x).tanh()


class Llama3Model(nn.Module):
    """Scores of the next token; positions and masks are arguments, as torchtitan's trainer gives them."""

    def __init__(self):
        super().__init__()
        self.tok_embeddings = nn.Embedding(65, 32)
        self.layers = nn.ModuleDict({str(number): Layer(32) for number in range(2)})
        self.norm, self.lm_head = nn.RMSNorm(32), nn.Linear(32, 65, bias=False)

    def get_attention_masks(self, positions):
        """Return a mask: a position of 0 begins a document."""
        documents = (positions == 0).cumsum(1)
        is_before = positions.new_ones(positions.shape[1], positions.shape[1]).tril().bool()
        return is_before & (documents[:, :, None] == documents[:, None, :])

    def forward(self, tokens, positions=None, attention_masks=None):
        """Return scores for each token."""
        assert attention_masks is not None, "torchtitan's FlexAttention demands a mask"
        x = self.tok_embeddings(tokens) + torch.sin(positions[..., None] * torch.linspace(0.1, 1, 32))
        for layer in self.layers.values():
            x = layer(x, attention_masks)
        return self.lm_head(self.norm(x))


class Config:
    """The configuration of a model."""

    def build(self):
        """Return the model."""
        return Llama3Model()


def debugmodel(attn_backend):
    """Return the configuration of the debug model."""
    assert attn_backend in ("flex", "varlen"), "torchtitan has no other for language models"
    return Config()


llama3_configs = {"debugmodel": debugmodel}
