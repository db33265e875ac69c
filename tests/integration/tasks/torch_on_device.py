"""A language model of transformers in the type that PRECISION names; its worker's log tells on what it computes."""

import json
import os
import sys
from dataclasses import replace

import divided_lm
import torch

LIMIT = "get_per_process_memory_fraction"


def build_model():
    """Return the model, whose weights get the type when they are restored."""
    return divided_lm.build_model().to(getattr(torch, os.environ.get("PRECISION", "float32")))


def step(model, batch):
    """Return labels, and scores of the last token; tell the device of the values that this process has."""
    rows, labels = batch
    own = next(model.parameters())
    own = own.to_local() if hasattr(own, "to_local") else own
    seen = {
        "device": str(own.device),
        "type": str(own.dtype),
        "gpus": torch.cuda.device_count(),
        "part": torch.cuda.get_per_process_memory_fraction() if own.is_cuda and hasattr(torch.cuda, LIMIT) else None,
    }
    sys.stdout.write(f"SEEN {json.dumps(seen)}\n")
    return labels, model(rows).logits[:, -1].float()


task = replace(divided_lm.task, build_model=build_model, step=step)
