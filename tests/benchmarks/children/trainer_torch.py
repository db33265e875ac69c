"""The training loop of `trainer.py` with PyTorch. `trainer_torch.py THREADS` (0: PyTorch's default)."""

import itertools
import sys
import time
from pathlib import Path

import torch
from answers import serve
from conv_torch import BATCH, conv_net, tensors
from torch import nn

if threads := int(sys.argv[1]):
    torch.set_num_threads(threads)
model = conv_net()
optimizer = torch.optim.Adam(model.parameters())
criterion = nn.CrossEntropyLoss()
x, y = tensors()
batches = [(x[at : at + BATCH], y[at : at + BATCH]) for at in range(0, 2048, BATCH)]
numbers = itertools.count(1)


def train(seconds, save_to=None):
    """Save if told to, train for so long; seconds and CPU seconds of a step, without the save."""
    if save_to is not None:
        Path(save_to).mkdir(parents=True, exist_ok=True)
        content = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(content, Path(save_to, f"step-{next(numbers)}.pt"))
    begin, computing, steps = time.monotonic(), time.process_time(), 0
    while time.monotonic() - begin < seconds:
        for inputs, labels in batches:
            optimizer.zero_grad()
            loss = criterion(model(inputs), labels)
            loss.backward()
            optimizer.step()
        float(loss)
        steps += len(batches)
    return {"step": (time.monotonic() - begin) / steps, "cpu": (time.process_time() - computing) / steps}


serve(train)
