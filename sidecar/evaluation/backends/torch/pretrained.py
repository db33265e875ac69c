"""Restore folders of Hugging Face's libraries: by the loaders of transformers and peft, or with a line for the task.

A model of transformers is loaded by its own class where its names in files differ from those in the model, and an
adapter by peft. Folders with an adapter for another model, or with several models, are explained.

Sources: transformers 5 `core_model_loading.py`; peft `utils/save_and_load.py`; accelerate `checkpointing.py`.
`save_pretrained` writes the names of former releases, and some parts merged or split, so that old programs read new
files; only `from_pretrained` knows how to reverse that. transformers and peft are never imported here: only a task that
imported them can have a model of theirs.
"""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from sidecar.evaluation.failures import EvaluationError, mismatch, without_advice
from sidecar.evaluation.name_patterns import matches
from sidecar.protocol.weight_names import main_weights
from sidecar.system.plain_text import listed

_PROBLEMS: Final = ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs")
_ADAPTER: Final = ("adapter_model.safetensors", "adapter_model.bin")
_SCALES: Final = ("peft_type", "lora_alpha", "alpha", "alpha_pattern", "use_rslora", "use_dora", "fan_in_fan_out")
"""Attributes of an adapter's configuration that change what it computes, and neither names nor shapes of values."""

_FURTHER: Final = re.compile(r"(?:pytorch_)?model_([0-9]+)\.(safetensors|bin)")


def is_of_transformers(model: nn.Module) -> bool:
    """Return whether a model is one of transformers, which can load folders by itself."""
    return any(
        kind.__name__ == "PreTrainedModel" and kind.__module__.partition(".")[0] == "transformers"
        for kind in type(model).__mro__
    )


def is_of_peft(model: nn.Module) -> bool:
    """Return whether a model is one of peft, which can restore adapters."""
    return any(
        kind.__name__ == "PeftModel" and kind.__module__.partition(".")[0] == "peft" for kind in type(model).__mro__
    )


def load_by_transformers(
    model: Any, path: Path, *, from_build_model: Sequence[str] = (), ignore: Sequence[str] = ()
) -> Mapping[str, torch.Tensor]:
    """Return the values of a folder by the names of a model of transformers, as a new model of its class loads them.

    Raises `EvaluationError` (`mismatch`) if that leaves out a value, or finds one that the model does not have: then
    transformers would go on with random numbers. Names that match `from_build_model` may be missing, and are not
    returned; those that match `ignore` may be left out.
    """
    try:
        loaded, found = type(model).from_pretrained(
            path, config=model.config, local_files_only=True, output_loading_info=True
        )
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # a disk, and not what transformers says about the folder
        reason = next(iter(without_advice(str(error)).splitlines()), "") or type(error).__name__
        raise mismatch(f"from_pretrained cannot load {path.name}: {reason}") from error
    allowed = {"missing_keys": from_build_model, "unexpected_keys": ignore}
    for problem in _PROBLEMS:
        names = [str(name) for name in found.get(problem) or ()]
        if names := [name for name in names if not matches(name, allowed.get(problem, ()))]:
            raise mismatch(
                f"the model of Task(build_model=…) does not match {path.name}: from_pretrained tells of "
                f"{problem.replace('_', ' ')} {listed(sorted(names))}"
            )
    missing = {str(name) for name in found.get("missing_keys") or ()}
    values: Mapping[str, torch.Tensor] = loaded.state_dict()
    return {name: value for name, value in values.items() if name not in missing} if missing else values


def is_adapter(path: Path) -> bool:
    """Return whether a folder holds an adapter of peft and no whole model."""
    return path.is_dir() and main_weights(_names(path)) in (*_ADAPTER, None) and _has_adapter(path)


def _has_adapter(path: Path) -> bool:
    return any(name in _ADAPTER for name in _names(path))


def _names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []


def explain(path: Path, restored: Callable[[], tuple[str, ...]]) -> tuple[str, ...]:
    """Call a function that restores a folder, and return its notes, with one about further models in the folder.

    Raises `EvaluationError` with the line to write if the folder holds an adapter, or a further model that may be
    meant.
    """
    others = [name for name in _names(path) if _FURTHER.fullmatch(name)]
    try:
        notes = restored()
    except EvaluationError as error:
        if error.kind != "mismatch":
            raise
        if is_adapter(path):
            raise mismatch(_about_adapter(path)) from error
        if others:
            raise mismatch(f"{error}; {_about_further(others)}") from error
        raise
    return (*notes, f"the folder also holds {listed(others)}, which was not used") if others else notes


def restore_adapter(model: Any, path: Path) -> None:
    """Restore the adapter in a folder into a model of peft, with all of its values or none.

    Raises `EvaluationError` (`mismatch`) if the folder has other values, or scales them in another way.
    """
    peft: Any = sys.modules["peft"]
    saved = peft.PeftConfig.from_pretrained(str(path))
    own = model.peft_config[model.active_adapter]
    for name in _SCALES:
        there, here = getattr(saved, name, None), getattr(own, name, None)
        if there != here:
            raise EvaluationError(
                "mismatch",
                f"the adapter in {path.name} has {name} = {there!r}, and the model of Task(build_model=…) {here!r}: "
                f"build it with peft.PeftConfig.from_pretrained of a checkpoint",
            )
    values = peft.load_peft_weights(str(path), device="cpu")
    expected = {name: value.shape for name, value in peft.get_peft_model_state_dict(model).items()}
    found = {name: value.shape for name, value in values.items()}
    if found != expected:
        differing = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
        raise EvaluationError(
            "mismatch", f"the adapter in {path.name} does not match that of the model in {listed(differing)}"
        )
    peft.set_peft_model_state_dict(model, values)


def _about_adapter(path: Path) -> str:
    return (
        f"{path.name} holds only an adapter of peft, which has no values for the base model: let build_model return "
        f"peft.get_peft_model(base, config)"
    )


def _about_further(names: Sequence[str]) -> str:
    """Say that a folder of accelerate's `save_state` holds several models, and how to restore another one."""
    name = names[0]
    load = (
        f"safetensors.torch.load_file(path + '/{name}')"
        if name.endswith(".safetensors")
        else f"torch.load(path + '/{name}', weights_only=True)"
    )
    return (
        f"the folder also holds {listed(list(names))}, a further model that accelerate saved: if it is meant, write "
        f"Task(restore=lambda model, path: model.load_state_dict({load}))"
    )
