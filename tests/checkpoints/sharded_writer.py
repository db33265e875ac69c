"""Two ranks of PyTorch that save one model together, as torchtitan does: each parameter in two parts (FSDP).

`python sharded_writer.py FOLDER` writes one checkpoint; `save` does the same in processes of its own.
"""

import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

STEP = 5
RANKS = 2


def model() -> nn.Module:
    """The same sizes as those of torch_writer.py."""
    return nn.Sequential(nn.Linear(30, 20), nn.BatchNorm1d(20), nn.Linear(20, 4))


def save(folder: Path, seed: int) -> None:
    """Train for one step and save, with two processes."""
    with tempfile.TemporaryDirectory() as meeting:
        torch.multiprocessing.spawn(_rank, (str(folder), seed, meeting), RANKS)


def _rank(rank: int, folder: str, seed: int, meeting: str) -> None:
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", f"file://{meeting}/store", rank=rank, world_size=RANKS)
    torch.manual_seed(seed)
    trained = model()
    fully_shard(trained, mesh=init_device_mesh("cpu", (RANKS,)))
    optimizer = torch.optim.AdamW(trained.parameters())
    trained(torch.randn(8, 30)).sum().backward()
    optimizer.step()
    values, others = get_state_dict(trained, optimizer)
    dcp.save({**values, "optimizer": others, "train_state": {"step": STEP}}, checkpoint_id=folder)
    whole = {name: value.full_tensor() if hasattr(value, "full_tensor") else value for name, value in values.items()}
    if rank == 0:
        torch.save(whole, f"{folder}.expected")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    save(Path(sys.argv[1]), seed=1)
