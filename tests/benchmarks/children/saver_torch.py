"""A training process without the training: `torch.save` of model and optimizer, whenever it is told to.

`saver_torch.py [TASK]`: the task's module has `build_model` or `conv_net`.
"""

import importlib
import sys
import time
from pathlib import Path

import torch
from answers import serve

task = importlib.import_module(sys.argv[1] if len(sys.argv) > 1 else "conv_torch")
model = task.task().build_model()
optimizer = torch.optim.Adam(model.parameters())
for parameter in model.parameters():
    parameter.grad = torch.zeros_like(parameter)
optimizer.step()  # makes the moments


def save(folder, step):
    generator = torch.Generator().manual_seed(step)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    path = Path(folder, f"step-{step}.pt")
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    return {"path": str(path), "saved": time.monotonic()}


serve(save)
