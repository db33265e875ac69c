"""Describe the training jobs that the demo can start: with TensorFlow, with PyTorch, or of a language model."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sidecar.commands.demo.folder import Folder
from sidecar.commands.demo.texts import write

TASKS: Final = ("chief", "worker")
"""The processes of the job. A daemon runs beside each of them."""

LOCAL: Final = "127.0.0.1"
_HERE: Final = Path(__file__).parent

Environments = dict[str, dict[str, str]]
"""Variables by task, the same for a training process and the daemon beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """Describe a training job and its checkpoints.

    Attributes:
        title: The name of the framework, for people.
        story: What happens, for people.
        task_file: The file of the task that the daemons evaluate with; None if their settings say it.
        prepare: Writes what is evaluated, and the settings, before anything is started.
        best: The number that chooses the best checkpoint, as eval set and metric, and `max` or `min`.
        run: The name of the run.
        train: The command that starts one training process, without the options of the program.
        takes_sigterm: Whether a training process ends at SIGTERM.
        packages: The modules that it needs, by the names of their packages.
        extra: The extra of this package that installs them.
        environments: Returns the environments of a job, given two free ports.
    """

    title: str
    story: str
    task_file: Path | None
    prepare: Callable[[Folder], None] | None = None
    best: tuple[str, str, Callable[..., str]] = ("test", "accuracy", max)
    run: str = "digits"
    train: Sequence[str]
    takes_sigterm: bool
    packages: Mapping[str, str]
    extra: str
    environments: Callable[[Sequence[int]], Environments]


def _tf_configs(ports: Sequence[int]) -> Environments:
    cluster = {task: [f"{LOCAL}:{port}"] for task, port in zip(TASKS, ports, strict=True)}
    return {
        task: {
            "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": task, "index": 0}}),
            "KERAS_BACKEND": "tensorflow",
            "TF_CPP_MIN_LOG_LEVEL": "2",  # errors: the end of a log should say what went wrong
        }
        for task in TASKS
    }


def _torchrun_options(ports: Sequence[int]) -> Environments:
    """Return the options of torchrun as Kubeflow's operator gives them to the pods of a PyTorchJob."""
    job = {
        "PET_NNODES": str(len(TASKS)),
        "PET_NPROC_PER_NODE": "1",
        "PET_MASTER_ADDR": LOCAL,
        "PET_MASTER_PORT": str(ports[0]),
    }
    return {
        task: job | {"PET_NODE_RANK": str(rank), "SIDECAR_NODE": f"{task}-0", "SIDECAR_HOST": LOCAL}
        for rank, task in enumerate(TASKS)
    }


def _language_model(ports: Sequence[int]) -> Environments:
    own = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return {task: variables | own for task, variables in _torchrun_options(ports).items()}


_DIGITS: Final = "A chief and a worker learn handwritten digits. Some labels are wrong, so they overfit."

FRAMEWORKS: Final = {
    "tensorflow": Framework(
        title="TensorFlow",
        story=_DIGITS,
        task_file=_HERE / "digits.py",
        train=(sys.executable, str(_HERE / "train.py")),
        takes_sigterm=False,  # MultiWorkerMirroredStrategy makes it ignore SIGTERM
        packages={"tensorflow": "tensorflow", "keras": "keras", "scikit-learn": "sklearn"},
        extra="demo",
        environments=_tf_configs,
    ),
    "torch": Framework(
        title="PyTorch",
        story=_DIGITS,
        task_file=_HERE / "digits_torch.py",
        train=(
            *(sys.executable, "-m", "torch.distributed.run"),
            str(_HERE / "train_torch.py"),
        ),
        takes_sigterm=True,
        packages={"torch": "torch", "scikit-learn": "sklearn"},
        extra="torch-demo",
        environments=_torchrun_options,
    ),
    "lm": Framework(
        title="transformers",
        story="A chief and a worker train a tiny language model on the sources of Python and the chapters of pydoc.",
        task_file=None,
        prepare=write,
        best=("texts", "bits_per_byte", min),
        run="python",
        train=(sys.executable, "-m", "torch.distributed.run", str(_HERE / "train_lm.py")),
        takes_sigterm=True,
        packages={"torch": "torch", "transformers": "transformers", "lm-eval": "lm_eval"},
        extra="lm",
        environments=_language_model,
    ),
}
"""The jobs by the value of `sidecar demo --framework`."""
