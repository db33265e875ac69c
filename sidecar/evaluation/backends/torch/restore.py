"""Restore a model from a file of `torch.save`, without running what the file holds, and without guessing.

`torch.load(weights_only=True)` builds tensors and plain containers only. The entry of the file that holds the model's
values is the one whose names are exactly those of the model, after wrappers are taken off: `module.` of
DistributedDataParallel, `_orig_mod.` of torch.compile, and one common prefix. If none or several entries fit, the error
names them.
"""

import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

from sidecar.evaluation.failures import EvaluationError

_WRAPPERS: Final = ("module.", "_orig_mod.", "_forward_module.", "_fsdp_wrapped_module.")
_DEEPEST: Final = 3
_NAMES_SHOWN: Final = 5
_RUNNING_MODULES: Final = frozenset(
    {"os", "posix", "nt", "sys", "subprocess", "shutil", "importlib", "runpy", "pty", "ctypes", "socket", "pickle"}
)
_RUNNING_BUILTINS: Final = frozenset(
    f"builtins.{name}" for name in ("eval", "exec", "compile", "open", "__import__", "getattr", "setattr", "delattr")
)
"""With the modules above: functions that no training saves, and that attacks by pickles call."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A mapping in the file that may hold the model's values, by its place such as `ema.model`."""

    place: str
    values: Mapping[str, Any]


def load(path: str) -> Any:
    """Return the content of a file of `torch.save`. Tensors are mapped into memory, and read when they are used.

    Raises `EvaluationError` for content that `weights_only=True` refuses, with the names of what it refuses.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        names = sorted(_refused_names(path))
        if not names:
            raise EvaluationError("mismatch", f"{path} cannot be loaded: {_first_line(error)}") from error
        if running := [name for name in names if _runs_code(name)]:
            raise EvaluationError(
                "mismatch",
                f"{path} calls {_listed(running)} when it is unpickled, as attacks do: it was not loaded. Find out who "
                f"wrote it, and save model.state_dict() alone",
            ) from error
        imports = "".join(sorted(f"import {name.rpartition('.')[0]}; " for name in names[:1]))
        raise EvaluationError(
            "mismatch",
            f"{path} holds {_listed(names)}, which torch.load(weights_only=True) does not build, since that could run "
            f"code: save model.state_dict() alone, or, if you trust the file, write at the top of the task's file: "
            f"{imports}torch.serialization.add_safe_globals([{', '.join(names[:_NAMES_SHOWN])}])",
        ) from error


def restore(model: nn.Module, content: Any, where: str | Callable[[Any], Any] | None) -> tuple[str, ...]:
    """Replace all values of the model by those in the content of a file, and return notes about the result.

    Args:
        model: The model.
        content: What `load` returned.
        where: `Task.checkpoint`: the place of the values in the content, such as `ema`, or a function that takes the
            content and returns them; None: the place is found.

    Raises:
        EvaluationError: `mismatch` with the names that differ. The model is unchanged then.
    """
    model = _without_wrappers(model)
    own = model.state_dict()
    entry, bound = _bound(content, where, own)
    wrong = [
        f"{name} is {tuple(value.shape)} in the checkpoint and {tuple(own[name].shape)} in the model"
        for name, value in bound.items()
        if isinstance(value, torch.Tensor) and isinstance(own[name], torch.Tensor) and value.shape != own[name].shape
    ]
    if wrong:
        raise EvaluationError("mismatch", f"shapes differ: {_listed(wrong, '; ')}")
    model.load_state_dict(bound, strict=True)
    return _type_notes(entry, bound, own)


def _without_wrappers(model: nn.Module) -> nn.Module:
    """Return the model inside of DataParallel and torch.compile."""
    while isinstance(inner := getattr(model, "_orig_mod", None), nn.Module) or isinstance(model, nn.DataParallel):
        model = inner if isinstance(inner, nn.Module) else model.module
    return model


def _bound(
    content: Any, where: str | Callable[[Any], Any] | None, own: Mapping[str, Any]
) -> tuple[_Entry, dict[str, Any]]:
    """Return the entry that holds the model's values, and these under the model's names."""
    if where is None:
        entries = list(_entries(content))
    elif isinstance(where, str):
        entries = [_Entry(where, _at(content, where))]
    else:
        entries = [_Entry("Task(checkpoint=…)", _as_mapping(where(content)))]
    if not entries:
        raise EvaluationError(
            "mismatch", f"the checkpoint holds no state dict: it is a {type(content).__name__} without named tensors"
        )
    fitting = [(entry, bound) for entry in entries if (bound := _bind(entry.values, own)) is not None]
    if len(fitting) > 1:
        places = [repr(entry.place) for entry, _ in fitting]
        raise EvaluationError(
            "mismatch",
            f"{' and '.join(places)} in the checkpoint both hold values for the whole model: choose one with "
            f"Task(checkpoint={places[0]})",
        )
    if not fitting:
        raise EvaluationError("mismatch", _difference(entries, own))
    return fitting[0]


def _bind(values: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the values by the model's names; None if they are not exactly those of the model."""
    plain = {_unwrapped(name): value for name, value in values.items()}
    if plain.keys() == own.keys():
        return plain
    prefixes = {name[: -len(last)] for last in own for name in plain if name.endswith(f".{last}")} if own else set()
    fitting = []
    for prefix in sorted(prefixes):
        below = {name.removeprefix(prefix): value for name, value in plain.items() if name.startswith(prefix)}
        if below.keys() == own.keys():
            fitting.append(below)
    return fitting[0] if len(fitting) == 1 else None


def _unwrapped(name: str) -> str:
    """Return a name without the wrappers that are put around a whole model."""
    while prefix := next((prefix for prefix in _WRAPPERS if name.startswith(prefix)), ""):
        name = name.removeprefix(prefix)
    return name


def _entries(content: Any, place: str = "", depth: int = 0) -> Iterator[_Entry]:
    """Yield every mapping with named tensors in a content; optimizers name theirs by numbers."""
    if not isinstance(content, Mapping) or depth > _DEEPEST:
        return
    values = {name: value for name, value in content.items() if isinstance(name, str)}
    tensors = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
    if tensors:
        yield _Entry(place or "the whole file", values)
    for name, value in values.items():
        yield from _entries(value, f"{place}.{name}" if place else name, depth + 1)


def _at(content: Any, place: str) -> Mapping[str, Any]:
    """Return the mapping at a place such as `ema.model`. Raises `EvaluationError` if it is not there."""
    inner = content
    for name in place.split("."):
        if not isinstance(inner, Mapping) or name not in inner:
            names = ", ".join(map(repr, inner)) if isinstance(inner, Mapping) else f"a {type(inner).__name__}"
            raise EvaluationError(
                "mismatch", f"Task(checkpoint={place!r}) is not in the checkpoint, which holds {names}"
            )
        inner = inner[name]
    return _as_mapping(inner)


def _as_mapping(values: Any) -> Mapping[str, Any]:
    if not isinstance(values, Mapping):
        raise EvaluationError(
            "mismatch", f"Task(checkpoint=…) must lead to a state dict, found {type(values).__name__}"
        )
    return values


def _difference(entries: list[_Entry], own: Mapping[str, Any]) -> str:
    """Describe how the entry with the most names in common differs from the model."""
    named = [(entry, {_unwrapped(name) for name in entry.values}) for entry in entries]
    best, names = max(named, key=lambda pair: len(pair[1] & own.keys()))
    missing, surplus = sorted(own.keys() - names), sorted(names - own.keys())
    parts = [f"the model of Task(build_model=…) does not match {best.place!r} in the checkpoint"]
    if missing:
        parts.append(f"missing there: {_listed(missing)}")
    if surplus:
        parts.append(f"only there: {_listed(surplus)}")
    return "; ".join(parts)


def _type_notes(entry: _Entry, bound: Mapping[str, Any], own: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a note if values are stored with another type than the model has, since they are converted."""
    pairs = {
        (str(value.dtype).removeprefix("torch."), str(own[name].dtype).removeprefix("torch."))
        for name, value in bound.items()
        if isinstance(value, torch.Tensor) and isinstance(own[name], torch.Tensor) and value.dtype != own[name].dtype
    }
    return tuple(
        f"weights are stored as {stored} in {entry.place} and evaluated as {used}, the model's type"
        for stored, used in sorted(pairs)
    )


def _refused_names(path: str) -> list[str]:
    try:
        return list(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    except Exception:  # noqa: BLE001 - the file is untrusted, and the first error says enough
        return []


def _runs_code(name: str) -> bool:
    """Return whether a global, such as `posix.system`, runs code or commands that the file names."""
    return name.partition(".")[0] in _RUNNING_MODULES or name in _RUNNING_BUILTINS


def _listed(names: list[str], separator: str = ", ") -> str:
    more = f"{separator}and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return separator.join(names[:_NAMES_SHOWN]) + more


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
