"""Print a plain loop's numbers of a checkpoint, loaded as the library's own authors load it: {"right": …, "loss": …}.

`python plain_loop.py KIND CHECKPOINT`, in a copy of examples/.
"""

import json
import sys
from pathlib import Path

import torch
from torch import nn
from torch_digits import digits


def of_ddp(path):
    """Load a checkpoint of the DDP example with torch.load."""
    from ddp_task import build_model

    model = build_model()
    model.load_state_dict(torch.load(path, weights_only=True)["model"])
    return model


def of_lightning(path):
    """By Lightning's own function, which gives the class its values."""
    from lightning_task import Digits

    return Digits.load_from_checkpoint(path, weights_only=True).net


def of_hugging_face(path):
    """By transformers' own function."""
    from transformers import ViTForImageClassification

    model = ViTForImageClassification.from_pretrained(path)
    return lambda images: model.eval()(images).logits


def of_dcp(path):
    """By torch's own conversion to a file of torch.save."""
    from ddp_task import build_model
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    file = Path(f"{path.name}-converted.pt")
    dcp_to_torch_save(path, file)
    model = build_model()
    values = torch.load(file, weights_only=True)
    model.load_state_dict({name: values[name] for name in model.state_dict()})
    return model


def main():
    """Print the hits and the loss of one checkpoint as JSON."""
    kind, path = sys.argv[1], Path(sys.argv[2])
    model = globals()[f"of_{kind}"](path)
    right, loss = 0, 0.0
    with torch.no_grad():
        for images, labels in torch.utils.data.DataLoader(digits(training=False), 32):
            logits = model(images)
            right += int((logits.argmax(1) == labels).sum())
            loss += float(nn.functional.cross_entropy(logits.double(), labels, reduction="sum"))
    sys.stdout.write(json.dumps({"right": right, "loss": loss / 397}) + "\n")


if __name__ == "__main__":
    main()
