"""Train with DistributedDataParallel, and save with torch.save.

    torchrun --nproc-per-node 2 ddp_train.py ckpts

Real handwritten digits of scikit-learn are the data.
"""

import gc
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from ddp_task import build_model
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from torch_digits import digits

dist.init_process_group("gloo")
data = digits(training=True)
loader = DataLoader(data, 50, sampler=DistributedSampler(data))
model = DistributedDataParallel(build_model())
optimizer = torch.optim.Adam(model.parameters(), 0.003)
folder = Path(sys.argv[1])
folder.mkdir(exist_ok=True)
for epoch in range(1, 4):
    loader.sampler.set_epoch(epoch)
    for images, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    if dist.get_rank() == 0:
        step = epoch * len(loader)
        state = {"step": step, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, folder / f"step-{step}.pt")
del model
gc.collect()  # frees what uses the process group: PyTorch may abort at exit if its threads still run
dist.destroy_process_group()
