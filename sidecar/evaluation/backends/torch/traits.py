"""Describe PyTorch to the daemon and the commands. Imports no framework."""

from typing import Final

from sidecar.errors import TaskError
from sidecar.evaluation.framework_traits import FrameworkTraits
from sidecar.evaluation.task import Task

_TEMPLATE: Final = """\
\"\"\"Define how `sidecar` evaluates checkpoints. Only worker processes import this file.\"\"\"

from torch import nn

from sidecar import Task
from sidecar.metrics import Accuracy
{imported}

{builder}def test_set():
    # Return a Dataset or a DataLoader of torch, a dataset of Hugging Face .with_format("torch"), or arrays (x, y).
    raise NotImplementedError("{file}: return your test set in test_set()")


def task():
    return Task(
        build_model=build_model,
        eval_sets={{"test": test_set}},
        metrics=lambda: [Accuracy()],
        loss=nn.CrossEntropyLoss(),
        batch_size=64,
    )
"""


def _require(task: Task) -> None:
    if task.load is not None:
        raise TaskError("Task(load=…, predict=…) needs framework = 'python', found framework = 'torch'")
    if task.build_model is None:
        raise TaskError("framework = 'torch' needs Task(build_model=…), a function that returns a torch.nn.Module")


TRAITS: Final = FrameworkTraits(
    name="torch",
    detected_by=(
        *("torch", "torchvision", "torchaudio", "torchtext", "torchmetrics", "torchtitan", "torchtune"),
        *("lightning", "pytorch_lightning", "transformers", "accelerate", "timm", "peft", "diffusers"),
        "sidecar.lm",
    ),
    detected_alone="torch",
    environment={
        "OMP_WAIT_POLICY": "PASSIVE",  # threads that wait by spinning would take the time of the training next to them
        # Threads wait 10,000 turns, some microseconds, before they sleep: the next operation mostly begins sooner.
        "GOMP_SPINCOUNT": "10000",
        # Freed tensors stay in the process. glibc would return each one above 32 MiB to the kernel, and the pages of
        # the next one would have to be cleared again. The worker returns what is free after each evaluation.
        "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
        "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # the setting with which matrix products on a GPU are repeatable
        "TOKENIZERS_PARALLELISM": "false",  # threads of tokenizers, which loaders fork
    },
    options=("gpu_memory_mb", "model_parallel"),
    divides_models=True,
    formats=("torch_zip", "pretrained_folder", "safetensors", "dcp"),
    template=_TEMPLATE,
    require=_require,
)
