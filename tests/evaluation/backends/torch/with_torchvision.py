"""Try the metrics of detection with a real torchvision, which needs another torch than the one of the tests.

Run it by hand, since the environment takes 5.5 GB: `python3 -m venv tv && tv/bin/pip install torch==2.14.1
torchvision==0.29.1 torchmetrics==1.9.0 pycocotools && PYTHONPATH=.:tests/evaluation/backends/torch tv/bin/python
tests/evaluation/backends/torch/with_torchvision.py`. The table of the docs names the versions.
"""

from functools import partial

import torch
from every_torchmetric import BATCHES, BY_HAND, alone, of_ranks, parts_of
from torchmetrics import detection


def boxes(images):
    """Boxes of several images, and predictions near them."""
    drawn = torch.Generator().manual_seed(1)
    right, found = [], []
    for _ in range(images):
        count = int(torch.randint(1, 5, (1,), generator=drawn))
        corner, size = (torch.rand(count, 2, generator=drawn) * scale for scale in (20, 10))
        box = torch.cat([corner, corner + size + 2], 1)
        labels = torch.randint(0, 3, (count,), generator=drawn)
        near = box + 2 * torch.rand(count, 4, generator=drawn)
        right.append({"boxes": box, "labels": labels})
        found.append({"boxes": near, "labels": labels, "scores": torch.rand(count, generator=drawn)})
    return found, right


def main() -> None:
    """Compare one to four ranks with one process, and print a line for each class."""
    batches = list(zip(*(parts_of(each, BATCHES) for each in boxes(sum(BATCHES))), strict=True))
    for name in BY_HAND:
        kind = getattr(detection, name)
        results = [of_ranks(partial(kind), batches, ranks, BATCHES)[0] for ranks in (1, 2, 3, 4)]
        assert all(sorted(result) == sorted(alone(kind(), batches)) for result in results), name
        assert len({str(result) for result in results}) == 1, name
        print(name, "right:", results[0][0])  # noqa: T201 - a program for people


if __name__ == "__main__":
    main()
