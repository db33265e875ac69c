"""The training job of the demo with PyTorch: one process of a DistributedDataParallel job, to be read and copied.

It saves checkpoints, as any training job does, and ends early if the sidecar advises it. Start it with torchrun:

    torchrun --nproc-per-node 2 train_torch.py --checkpoints ckpts
"""

import argparse
import gc
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from sidecar.commands.demo.digits_torch import build_model, training_set
from sidecar.early_stop import should_stop

BATCH_SIZE: Final = 32  # for each process
LEARNING_RATE: Final = 5e-4  # low, so that the accuracy rises over several checkpoints before it falls
SEED: Final = 1
LOG_EVERY: Final = 10  # steps
KEPT: Final = 3  # checkpoints


def main(arguments: list[str]) -> None:
    """Train for a number of steps and save a checkpoint every `--save-every` steps."""
    parser = argparse.ArgumentParser(description="Train on handwritten digits.")
    parser.add_argument("--checkpoints", type=Path, required=True, help="directory to save checkpoints in")
    parser.add_argument("--steps", type=int, default=960, help="how long to train")
    parser.add_argument("--save-every", type=int, default=120, help="steps between two checkpoints")
    parser.add_argument(
        "--pause", type=float, default=0.0, help="seconds to sleep per step, as if the network were larger"
    )
    options = parser.parse_args(arguments)

    dist.init_process_group("gloo")
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    model = DistributedDataParallel(build_model())
    optimizer = torch.optim.Adam(model.parameters(), LEARNING_RATE)
    loss = nn.CrossEntropyLoss()
    first = restore_latest(options.checkpoints, model, optimizer)

    batches = own_batches()
    for step in range(first + 1, options.steps + 1):
        images, labels = next(batches)
        optimizer.zero_grad()
        loss(model(images), labels).backward()  # gradients are averaged over the processes here
        optimizer.step()
        time.sleep(options.pause)
        if step % options.save_every == 0:
            if dist.get_rank() == 0:
                save(options.checkpoints, step, model, optimizer)
            if is_told_to_stop(options.checkpoints):
                say(f"step {step}: the sidecar saw no improvement any more")
                break
        if step % LOG_EVERY == 0 or step == options.steps:
            say(f"step {step} of {options.steps}")
    dist.barrier()
    del model
    gc.collect()  # frees what uses the process group: PyTorch may abort at exit if its threads still run
    dist.destroy_process_group()


def is_told_to_stop(checkpoints: Path) -> bool:
    """Return whether the sidecar advises to stop. One process asks for all, so that they make the same steps."""
    answer = [dist.get_rank() == 0 and should_stop(checkpoints) is not None]
    dist.broadcast_object_list(answer, src=0)
    return bool(answer[0])


def own_batches() -> Iterator[Any]:
    """Yield this process's batches of the training data for ever, in another order in each epoch."""
    data = training_set()
    sampler = DistributedSampler(data, seed=SEED, drop_last=True)  # right for training, never for an evaluation
    loader = DataLoader(data, BATCH_SIZE, sampler=sampler, drop_last=True)
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def save(checkpoints: Path, step: int, model: Any, optimizer: Any) -> None:
    """Save the state under another name, then rename it: nobody sees a part of it. Keep the newest few."""
    checkpoints.mkdir(parents=True, exist_ok=True)
    state = {"step": step, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
    unfinished = checkpoints / f".step-{step}.pt"
    torch.save(state, unfinished)
    unfinished.rename(checkpoints / f"step-{step}.pt")
    for old in by_step(checkpoints)[:-KEPT]:
        old.unlink()


def restore_latest(checkpoints: Path, model: Any, optimizer: Any) -> int:
    """Continue an interrupted job where it last saved. Return the number of steps that it has made."""
    saved = by_step(checkpoints)
    if not saved:
        return 0
    state = torch.load(saved[-1], weights_only=True)
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step: int = state["step"]
    return step


def by_step(checkpoints: Path) -> list[Path]:
    """Return the saved checkpoints, oldest first."""
    return sorted(checkpoints.glob("step-*.pt"), key=lambda path: int(path.stem.removeprefix("step-")))


def say(line: str) -> None:
    """Print a line and flush it; one process speaks for all."""
    if dist.get_rank() == 0:
        sys.stdout.write(line + os.linesep)
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
