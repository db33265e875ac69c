"""Restore checkpoints into a model that two processes divide, and compare their parts with its values.

Run as `python divided_restore.py FOLDER`, where FOLDER holds checkpoints of `model(seed=1)`.
"""

import sys
from pathlib import Path


def model(seed):
    """Linear layers with rows that two processes share unequally, one row alone, a tied weight and buffers."""
    import torch
    from torch import nn

    torch.manual_seed(seed)
    layers = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 1), nn.Linear(4, 7))
    layers[4].weight = layers[0].weight
    return layers


def compare(rank, folder):
    """Restore each checkpoint in this process. Raises `AssertionError` for parts that differ."""
    import torch
    from torch import distributed as dist
    from torch.distributed.fsdp import fully_shard

    from sidecar.evaluation.backends.torch.restore import restore
    from sidecar.evaluation.backends.torch.tensors import local_part
    from sidecar.evaluation.backends.torch.weight_files import load

    dist.init_process_group("gloo", init_method=f"file://{folder}/.meeting", rank=rank, world_size=2)
    expected = model(1).state_dict()
    for path in sorted(path for path in Path(folder).iterdir() if not path.name.startswith(".")):
        divided = model(2)
        divided[4].weight = divided[0].weight
        fully_shard(divided)
        restore(divided, load(str(path)), None)
        values = divided.state_dict()
        parts = {name: local_part(value) for name, value in values.items()}
        assert sum(part is not None for part in parts.values()) == 9  # all but the buffers
        wrong = [n for n, part in parts.items() if part and not torch.equal(part.values, expected[n][part.region])]
        wrong += [n for n, part in parts.items() if not part and not torch.equal(values[n], expected[n])]
        assert not wrong, (path.name, wrong)
        held = sum(part.values.numel() for part in parts.values() if part)
        whole = sum(value.numel() for value in expected.values())
        assert held < 0.7 * whole, (held, whole)


if __name__ == "__main__":
    from torch.multiprocessing import spawn

    sys.path.insert(0, str(Path(__file__).parents[4]))
    spawn(compare, args=(sys.argv[1],), nprocs=2)
