"""Evaluate batches whose parts are lists of examples of different sizes."""

import pytest
from evaluation.backends.torch import models
from evaluation.backends.torch.data_sets import (
    assert_right,
    net,
    task,
    tensors,
    truth,
)

pytestmark = pytest.mark.torch


checkpoint = models.checkpoint_of(net)


def test_ragged_lists_as_in_detection(checkpoint):
    """`tuple(zip(*batch))`, as in torchvision's references: images of different sizes, and a dict of boxes for each."""
    import torch
    from torch.utils.data import DataLoader

    class Images:
        def __len__(self):
            return 33

        def __getitem__(self, index):
            x, y = (part[index] for part in tensors(33))
            image = torch.zeros(1, 4, 3 + index % 5) + x[:, None]
            return image, {"boxes": torch.zeros(index % 4, 4), "label": y, "path": f"{index}.png"}

    def step(model, batch):
        images, targets = batch
        assert all(image.shape[2] in range(3, 8) for image in images)
        x = torch.stack([image[0, :, 0] for image in images])
        return torch.stack([target["label"] for target in targets]), model(x)

    source = lambda: DataLoader(Images(), batch_size=8, collate_fn=lambda batch: tuple(zip(*batch, strict=True)))  # noqa: E731
    assert_right(task(source, step=step), checkpoint, truth(checkpoint))
