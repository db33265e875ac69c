"""Compute the numbers of a checkpoint again with PyTorch, in one process on the whole eval set, by a plain loop.

No code of the daemon takes part, so that its errors cannot hide themselves.
"""  # noqa: INP001 - a script next to others, not a package

from collections.abc import Sequence
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from sidecar.commands.demo.digits_torch import build_model, test_set


def measure(original: Path, saves: Sequence[Path]) -> dict[str, float]:
    """Return accuracy and mean log loss of the weights in `original`, a file that the training job saved.

    Raises `ValueError` unless each worker's saved weights are the same, to the bit.
    """
    weights = torch.load(original, weights_only=True)["model"]
    for save in saves:
        saved = torch.load(save / "weights.pt", weights_only=True)
        if weights.keys() != saved.keys() or not all(torch.equal(weights[name], saved[name]) for name in weights):
            raise ValueError(f"the weights that a worker saved in {save} are not those of {original.name}")
    model = build_model().eval()
    model.load_state_dict(weights)
    images, labels = test_set().tensors
    with torch.inference_mode():
        logits = model(images).double()
    right = int((logits.argmax(dim=1) == labels).sum())
    return {"accuracy": right / len(labels), "loss": float(cross_entropy(logits, labels))}
