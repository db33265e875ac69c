"""The training loop of `trainer.py` with PyTorch. `trainer_torch.py THREADS [FOLDER]` (0: PyTorch's default).

With a folder, each step reads its batch from a file there, from the disk.
"""

import itertools
import os
import sys
import time
from pathlib import Path

import numpy as np
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
files = []
if sys.argv[2:]:
    for number, (inputs, _) in enumerate(batches):
        files.append(Path(sys.argv[2], f"batch-{number}"))
        inputs.numpy().tofile(files[-1])
    os.sync()


def batch(number):
    """Return a batch, read from its file if there are files. The kernel keeps nothing of it for the next time."""
    inputs, labels = batches[number]
    if files:
        with files[number].open("rb") as file:
            inputs = torch.from_numpy(np.fromfile(file, np.float32).reshape(inputs.shape))
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return inputs, labels


def waited():
    """Return the seconds for which the threads of this process were ready to run and did not."""
    return sum(int(each.read_text().split()[1]) for each in Path("/proc/self/task").glob("*/schedstat")) / 1e9


def train(seconds, save_to=None):
    """Save if told to, train for so long; seconds and CPU seconds of a step, without the save."""
    if save_to is not None:
        Path(save_to).mkdir(parents=True, exist_ok=True)
        content = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(content, Path(save_to, f"step-{next(numbers)}.pt"))
    begin, computing, waiting, steps = time.monotonic(), time.process_time(), waited(), 0
    while time.monotonic() - begin < seconds:
        for number in range(len(batches)):
            inputs, labels = batch(number)
            optimizer.zero_grad()
            loss = criterion(model(inputs), labels)
            loss.backward()
            optimizer.step()
        float(loss)
        steps += len(batches)
    return {
        "step": (time.monotonic() - begin) / steps,
        "cpu": (time.process_time() - computing) / steps,
        "wait": (waited() - waiting) / steps,
    }


serve(train)
