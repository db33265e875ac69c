"""Evaluate batches whose parts are lists of examples of different sizes."""

import pytest
from evaluation.backends.torch import batch_models, models
from evaluation.backends.torch.data_sets import assert_right, evaluate, net, task, tensors, truth

from sidecar import Task
from sidecar.metrics import Mean

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


CLASSES, IGNORED, IMAGES = 4, 255, 29


def scene(number):
    """An image and a mask of a size of their own, in which a tenth of the points has no class."""
    import torch

    drawn = torch.Generator().manual_seed(number)
    size = 8 + number % 4, 9 + number % 3
    mask = torch.randint(0, CLASSES, size, generator=drawn)
    mask[torch.rand(size, generator=drawn) < 0.1] = IGNORED
    return torch.rand(3, *size, generator=drawn), mask


def segmenter():
    import torch

    torch.manual_seed(4)
    return torch.nn.Conv2d(3, CLASSES, 3, padding=1)


def scenes(**changes):
    """A task of all scenes, whose images and masks are lists."""
    from torch import nn
    from torch.utils.data import DataLoader

    examples = [scene(number) for number in range(IMAGES)]
    collate = lambda batch: tuple(map(list, zip(*batch, strict=True)))  # noqa: E731
    given = {
        "build_model": segmenter,
        "eval_sets": {"test": lambda: DataLoader(examples, batch_size=8, collate_fn=collate)},
        "loss": nn.CrossEntropyLoss(ignore_index=IGNORED),
    }
    return Task(**given | changes)


def dice(found, mask, of=1):
    """Twice the common points of a class by the points of both, in one image."""
    found, mask = found[mask != IGNORED] == of, mask[mask != IGNORED] == of
    return 2 * float((found & mask).sum()) / max(1.0, float(found.sum() + mask.sum()))


def test_images_of_different_sizes_with_ignored_points(tmp_path):
    """Padded with the ignored class or a row for each point: loss and IoU; and the mean of a value for each image."""
    import torch
    from torch.nn import functional
    from torchmetrics.classification import MulticlassJaccardIndex

    path = batch_models.saved(segmenter(), tmp_path / "step-1.pt")

    def padded(model, batch):
        height, width = (max(image.shape[at] for image in batch[0]) for at in (1, 2))
        y = torch.full((len(batch[0]), height, width), IGNORED)
        scores = torch.zeros(len(batch[0]), CLASSES, height, width)
        for at, (image, mask) in enumerate(zip(*batch, strict=True)):
            y[at, : mask.shape[0], : mask.shape[1]] = mask
            scores[at, :, : mask.shape[0], : mask.shape[1]] = model(image[None])[0]
        return y, scores

    def by_point(model, batch):
        scores = [model(image[None])[0].flatten(1).T for image in batch[0]]
        return torch.cat([mask.flatten() for mask in batch[1]]), torch.cat(scores)

    def by_image(model, batch):
        values = [dice(model(image[None])[0].argmax(0), mask) for image, mask in zip(*batch, strict=True)]
        return torch.ones(len(values)), torch.tensor(values, dtype=torch.float64)

    def jaccard():
        return [MulticlassJaccardIndex(CLASSES, ignore_index=IGNORED)]

    of_points = [evaluate(scenes(step=step, metrics=jaccard), path, (1, 2, 3)) for step in (padded, by_point)]
    of_images = evaluate(scenes(step=by_image, loss=None, metrics=lambda: [Mean(name="dice")]), path, (1, 2, 3)).values
    model = segmenter().double()
    with torch.no_grad():
        pairs = [(model(image.double()[None])[0], mask) for image, mask in map(scene, range(IMAGES))]
    scores = torch.cat([score.flatten(1).T for score, _ in pairs])
    y = torch.cat([mask.flatten() for _, mask in pairs])
    scores, y = scores[y != IGNORED], y[y != IGNORED]
    loss = functional.cross_entropy(scores, y).item()
    common = [((scores.argmax(1) == of) & (y == of)).sum() for of in range(CLASSES)]
    either = [((scores.argmax(1) == of) | (y == of)).sum() for of in range(CLASSES)]
    iou = sum(float(one / both) for one, both in zip(common, either, strict=True)) / CLASSES
    for found in of_points:
        numbers = {name: found.values[name].value for name in found.values}
        assert numbers == pytest.approx({"loss": loss, "multiclassjaccardindex": iou}, rel=1e-6)
    assert any("rows for 29 examples" in note for note in of_points[1].notes)
    expected = [dice(score.argmax(0), mask) for score, mask in pairs]
    assert 0 < sum(expected) < IMAGES
    assert of_images["dice"].value == pytest.approx(sum(expected) / IMAGES, rel=1e-12)
