"""Train with FSDP, and save sharded and beside the training, as torchtitan does.

    torchrun --nproc-per-node 2 dcp_train.py ckpts

Real handwritten digits of scikit-learn are the data.
"""

import gc
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ddp_task import build_model
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler
from torch_digits import digits

dist.init_process_group("gloo")
data = digits(training=True)
loader = DataLoader(data, 50, sampler=DistributedSampler(data))
torch.manual_seed(1)
model = build_model()
fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
optimizer = torch.optim.Adam(model.parameters(), 0.003)
of_savers = dist.new_group()  # a group of its own, since saving goes on beside the training
saving: Any = None
for epoch in range(1, 4):
    loader.sampler.set_epoch(epoch)
    for images, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    weights, moments = get_state_dict(model, optimizer)
    step = epoch * len(loader)
    if saving is not None:
        saving.result()
    state = {**weights, "optimizer": moments, "train_state": {"step": step}}
    saving = dcp.async_save(state, checkpoint_id=Path(sys.argv[1]) / f"step-{step}", process_group=of_savers)
saving.result()
del model, optimizer, weights, moments, state, saving, of_savers
gc.collect()  # frees what uses process groups: PyTorch may abort at exit if their threads still run
dist.destroy_process_group()
