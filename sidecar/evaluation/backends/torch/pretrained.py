"""Restore a model of transformers by its own loader, where its names in files differ from those in the model.

Source: transformers 5 `core_model_loading.py`. `save_pretrained` writes the names of former releases, and some parts
merged or split, so that old programs read new files; only `from_pretrained` knows how to reverse that. transformers is
never imported here: only a task that imported it can have a model of it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sidecar.evaluation.backends.torch.weight_files import listed
from sidecar.evaluation.failures import EvaluationError

_PROBLEMS = ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs")


def is_of_transformers(model: nn.Module) -> bool:
    """Return whether a model is one of transformers, which can load folders by itself."""
    return any(
        kind.__name__ == "PreTrainedModel" and kind.__module__.partition(".")[0] == "transformers"
        for kind in type(model).__mro__
    )


def load_by_transformers(model: Any, path: Path) -> Mapping[str, torch.Tensor]:
    """Return the values of a folder by the names of a model of transformers, as a new model of its class loads them.

    Raises `EvaluationError` (`mismatch`) if that leaves out a value, or finds one that the model does not have: then
    transformers would go on with random numbers.
    """
    loaded, found = type(model).from_pretrained(
        path, config=model.config, local_files_only=True, output_loading_info=True
    )
    for problem in _PROBLEMS:
        if names := [str(name) for name in found.get(problem) or ()]:
            raise EvaluationError(
                "mismatch",
                f"the model of Task(build_model=…) does not match {path.name}: from_pretrained tells of "
                f"{problem.replace('_', ' ')} {listed(sorted(names))}",
            )
    values: Mapping[str, torch.Tensor] = loaded.state_dict()
    return values
