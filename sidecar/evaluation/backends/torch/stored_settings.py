"""Find settings that a checkpoint was saved with and that the model lacks, such as a number of attention heads.

Lightning stores `hyper_parameters`, transformers a `config.json`, and many scripts the arguments of their model.
Settings that change shapes fail in the restore, and a learning rate changes nothing. So a model with the stored
settings, and one with those of the model, get the restored values, and `batch_runner` compares what they compute.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from sidecar.evaluation.failures import mismatch
from sidecar.system.plain_text import listed

_STORED: Final = ("hyper_parameters", "hparams", "model_args", "model_config", "config", "cfg", "args")
_HELD: Final = ("hparams", "config", "cfg", "args")
_OF_FILES: Final = frozenset({"_name_or_path", "transformers_version", "dtype", "torch_dtype"})  # not of the model
_MOST_BYTES: Final = 1 << 20  # of a `config.json`


@dataclass(frozen=True, slots=True)
class Differing:
    """Hold the stored settings that differ from those that the model holds in one of its attributes."""

    held: str
    stored: Mapping[str, Any]
    own: Mapping[str, Any]

    @property
    def described(self) -> str:
        """The settings that differ, with both values."""
        names = [f"{name} = {value!r} ({self.own[name]!r} in the model)" for name, value in self.stored.items()]
        return f"the checkpoint was saved with {listed(names)}"

    @property
    def note(self) -> str:
        """A note for a result, if it is not known whether it matters."""
        return f"{self.described}; whether that changes numbers is not known"

    def remedy(self, model: nn.Module) -> str:
        """Return the line to write."""
        settings = ", ".join(f"{name}={value!r}" for name, value in self.stored.items())
        if self.held == "hparams":
            return f"Task(build_model=lambda: {type(model).__name__}({settings}))"
        return f"{settings} in the {type(getattr(model, self.held)).__name__} that build_model gives to the model"

    def built(self, model: nn.Module, settings: Mapping[str, Any]) -> nn.Module:
        """Return a new model of the same class with other settings. It raises what the class raises."""
        held = getattr(model, self.held)
        if self.held == "hparams":
            taken = inspect.signature(type(model)).parameters
            return type(model)(**{name: value for name, value in {**held, **settings}.items() if name in taken})
        changed = copy(held)
        for name, value in settings.items():
            if isinstance(changed, dict):
                changed[name] = value
            else:
                setattr(changed, name, value)
        return type(model)(changed)


def differing_settings(model: nn.Module, content: Any, path: Path) -> Differing | None:
    """Return the stored settings that differ; None if there are none, or if the model holds no settings."""
    held = next((name for name in _HELD if _values_in(getattr(model, name, None))), None)
    if held is None:
        return None
    own = _values_in(getattr(model, held))
    places = content if isinstance(content, Mapping) else {}
    for given in (*(places.get(name) for name in _STORED), _config_in(path)):
        stored = {name: value for name, value in _values_in(given).items() if name in own and value != own[name]}
        if stored:
            return Differing(held, stored, own)
    return None


def _values_in(settings: Any) -> dict[str, Any]:
    """Return the plain values in a mapping, or in the attributes of an object such as a `Namespace`, by name."""
    if settings is None or isinstance(settings, nn.Module | type):
        return {}
    given = settings if isinstance(settings, Mapping) else getattr(settings, "__dict__", {})
    return {
        name: value
        for name, value in given.items()
        if isinstance(name, str) and name not in _OF_FILES and isinstance(value, bool | int | float | str)
    }


def _config_in(path: Path) -> Any:
    file = path / "config.json"
    try:
        return json.loads(file.read_bytes()) if file.stat().st_size <= _MOST_BYTES else None
    except (OSError, ValueError, RecursionError):
        return None


class StoredSettings:
    """Compare a restored model with models that have the settings of its checkpoint.

    Attributes:
        notes: What is not known after the first batch.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._due: tuple[nn.Module, nn.Module, Differing] | None = None  # models with both settings
        self._harmless: list[Mapping[str, Any]] = []  # settings that differ, and change nothing
        self.notes: tuple[str, ...] = ()

    def see(self, content: Any, path: Path, give_values: Callable[[nn.Module], Any]) -> None:
        """Note the settings in a checkpoint. `give_values` gives a new model the restored values."""
        self._due, self.notes = None, ()
        differing = differing_settings(self._model, content, path)
        if differing is None or differing.stored in self._harmless:
            return
        try:
            one, other = (differing.built(self._model, settings) for settings in ({}, differing.stored))
            give_values(one)
            give_values(other)
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception:  # noqa: BLE001 - code of a user, which may be built in another way
            self.notes = (differing.note,)
            return
        self._due = one, other, differing

    def compare(self, differs: Callable[[nn.Module], bool]) -> None:
        """Raise `EvaluationError` if the settings of the checkpoint matter. It has an effect for the first batch alone.

        `differs` returns whether another model computes something else for it.
        """
        if self._due is None:
            return
        (one, other, differing), self._due = self._due, None
        if differs(one):  # build_model does more than to call the class
            self.notes = (differing.note,)
        elif differs(other):
            raise mismatch(
                f"{differing.described}, which gives other numbers with the same weights: build the model of "
                f"training, with {differing.remedy(self._model)}"
            )
        else:
            self._harmless.append(differing.stored)
