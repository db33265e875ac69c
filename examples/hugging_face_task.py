"""Define the task that evaluates what hugging_face_train.py saves.

    sidecar run ckpts --task hugging_face_task.py:task --once

Real handwritten digits of scikit-learn are the data.
"""

from typing import Any

from datasets import Dataset
from torch import nn
from torch_digits import digits
from transformers import ViTConfig, ViTForImageClassification

from sidecar import Task
from sidecar.metrics import Accuracy

SIZES: dict[str, Any] = {
    "image_size": 8,
    "patch_size": 2,
    "num_channels": 1,
    "num_labels": 10,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}


def build_model() -> ViTForImageClassification:
    """Return a small vision transformer, built from its description: nothing is downloaded."""
    return ViTForImageClassification(ViTConfig(**SIZES))


def images(*, training: bool) -> Dataset:
    """Return a dataset of Hugging Face with the columns that the model takes."""
    pixels, labels = digits(training=training).tensors
    columns = {"pixel_values": pixels.numpy(), "labels": labels.numpy()}
    return Dataset.from_dict(columns).with_format("torch")


def task() -> Task:
    """Return the task. Batches are passed to the model by name, without their labels."""
    return Task(
        build_model=build_model,
        eval_sets={"test": lambda: images(training=False)},
        metrics=lambda: [Accuracy()],
        loss=nn.CrossEntropyLoss(),
        batch_size=32,
    )
