"""Train with DistributedDataParallel until the sidecar sees no improvement any more.

    torchrun --nproc-per-node 2 early_stop_train.py ckpts
    SIDECAR_EARLY_STOP_PATIENCE=5 sidecar run ckpts --task ddp_task.py:task

A file becomes visible on two machines at two moments. So one process asks, and all make the same steps.
"""

import gc
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from ddp_task import build_model
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from torch_digits import digits

from sidecar.early_stop import should_stop

EPOCHS = 200  # if nobody stops it before
PAUSE_SECONDS = 0.0  # after each epoch, as if the network were larger


def is_told_to_stop(checkpoints: Path) -> bool:
    """Return whether the signal is there. Process 0 asks, and passes the answer on."""
    answer = torch.tensor(dist.get_rank() == 0 and should_stop(checkpoints) is not None, dtype=torch.uint8)
    dist.broadcast(answer, src=0)
    return bool(answer)


dist.init_process_group("gloo")
data = digits(training=True)
loader = DataLoader(data, 50, sampler=DistributedSampler(data))
model = DistributedDataParallel(build_model())
optimizer = torch.optim.Adam(model.parameters(), 0.003)
folder = Path(sys.argv[1])
folder.mkdir(exist_ok=True)
for epoch in range(1, EPOCHS + 1):
    loader.sampler.set_epoch(epoch)
    for images, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    if dist.get_rank() == 0:
        step = epoch * len(loader)
        torch.save({"step": step, "model": model.module.state_dict()}, folder / f"step-{step}.pt")
    time.sleep(PAUSE_SECONDS)
    if is_told_to_stop(folder):
        print(f"process {dist.get_rank()} stops after epoch {epoch}")
        break
del model
gc.collect()  # frees what uses the process group: PyTorch may abort at exit if its threads still run
dist.destroy_process_group()
