"""Evaluate a language model of transformers: for workers of several processes, which divide it by its own plan."""

import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig

from sidecar import Task
from sidecar.metrics import Accuracy


def build_model() -> nn.Module:
    """Return a Llama of two layers, with a vocabulary that two processes share unequally."""
    sizes = {"vocab_size": 301, "hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 64}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    return AutoModelForCausalLM.from_config(LlamaConfig(**sizes, **heads))


def test_set() -> torch.utils.data.Dataset:
    """Return rows of tokens; the last one is to be predicted."""
    tokens = torch.randint(0, 301, (45, 12), generator=torch.Generator().manual_seed(5))
    return torch.utils.data.TensorDataset(tokens[:, :-1], tokens[:, -1])


task = Task(
    build_model=build_model,
    eval_sets={"test": test_set},
    metrics=lambda: [Accuracy()],
    loss=nn.CrossEntropyLoss(),
    batch_size=8,
    step=lambda model, batch: (batch[1], model(batch[0]).logits[:, -1]),
)
