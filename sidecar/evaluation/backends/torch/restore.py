"""Restore a model from the content of a checkpoint, without guessing.

The entry of the content that holds the model's values is the one whose names are exactly those of the model, after
wrappers are taken off: `module.` of DistributedDataParallel, `_orig_mod.` of torch.compile, and one common prefix. If
none or several entries fit, the error names them. Of parameters that the model ties, one may be stored for all, as in
safetensors.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

from sidecar.evaluation.backends.torch.weight_files import Stored, listed
from sidecar.evaluation.failures import EvaluationError

_WRAPPERS: Final = ("module.", "_orig_mod.", "_forward_module.", "_fsdp_wrapped_module.")
_DEEPEST: Final = 3


@dataclass(frozen=True, slots=True)
class _Entry:
    """A mapping in the file that may hold the model's values, by its place such as `ema.model`."""

    place: str
    values: Mapping[str, Any]


def fits(model: nn.Module, stored: Stored) -> bool:
    """Return whether an entry of a checkpoint has exactly the names of the model."""
    own = _without_wrappers(model).state_dict()
    return any(_bind(entry.values, own) is not None for entry in _entries(stored.content, own))


def restore(model: nn.Module, stored: Stored, where: str | Callable[[Any], Any] | None) -> tuple[str, ...]:
    """Replace all values of the model by those in the content of a checkpoint, and return notes about the result.

    Args:
        model: The model.
        stored: What `load` returned.
        where: `Task.checkpoint`: the place of the values in the content, such as `ema`, or a function that takes the
            content and returns them; None: the place is found.

    Raises:
        EvaluationError: `mismatch` with the names that differ. The model is unchanged then.
    """
    model = _without_wrappers(model)
    own = model.state_dict()
    entry, bound = _bound(stored.content, where, own)
    wrong = [
        f"{name} is {tuple(value.shape)} in the checkpoint and {tuple(own[name].shape)} in the model"
        for name, value in bound.items()
        if isinstance(value, torch.Tensor) and isinstance(own[name], torch.Tensor) and value.shape != own[name].shape
    ]
    if wrong:
        raise EvaluationError("mismatch", f"shapes differ: {listed(wrong, '; ')}")
    bound = dict(stored.read(bound))
    _require_equal_tied(bound, own)
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
        entries = list(_entries(content, own))
    elif isinstance(where, str):
        entries = [_Entry(where, _parameters(_at(content, where), own))]
    else:
        entries = [_Entry("Task(checkpoint=…)", _parameters(_as_mapping(where(content)), own))]
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
    if (whole := _with_tied(plain, own)) is not None:
        return whole
    prefixes = {name[: -len(last)] for last in own for name in plain if name.endswith(f".{last}")} if own else set()
    fitting = []
    for prefix in sorted(prefixes):
        below = {name.removeprefix(prefix): value for name, value in plain.items() if name.startswith(prefix)}
        if (whole := _with_tied(below, own)) is not None:
            fitting.append(whole)
    return fitting[0] if len(fitting) == 1 else None


def _with_tied(values: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a value for each of the model's names; None if one is missing, or if there are others.

    A missing parameter has the value of another one if the model uses the same memory for both.
    """
    if values.keys() == own.keys():
        return dict(values)
    if not values or values.keys() - own.keys():
        return None
    stored = {_place(own[name]): value for name, value in values.items() if _place(own[name]) is not None}
    missing = {name: stored.get(_place(own[name])) for name in own.keys() - values.keys()}
    return None if any(value is None for value in missing.values()) else {**values, **missing}


def _require_equal_tied(bound: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raise `EvaluationError` if parameters that are one in the model differ in the checkpoint."""
    first: dict[tuple[Any, ...], str] = {}
    for name, value in own.items():
        if (place := _place(value)) is None:
            continue
        other = first.setdefault(place, name)
        if other != name and bound[other] is not bound[name] and not torch.equal(bound[other], bound[name]):
            raise EvaluationError(
                "mismatch", f"{other} and {name} are one parameter in the model, but differ in the checkpoint"
            )


def _place(value: Any) -> tuple[Any, ...] | None:
    """Return what is the same for tensors in the same memory; None for a value that takes none."""
    if not isinstance(value, torch.Tensor) or not value.numel() or value.is_meta:
        return None
    return value.device, value.data_ptr(), value.shape, value.stride()


def _unwrapped(name: str) -> str:
    """Return a name without the wrappers that are put around a whole model."""
    while prefix := next((prefix for prefix in _WRAPPERS if name.startswith(prefix)), ""):
        name = name.removeprefix(prefix)
    return name


def _entries(content: Any, own: Mapping[str, Any], place: str = "", depth: int = 0) -> Iterator[_Entry]:
    """Yield every mapping with named tensors in a content; optimizers name theirs by numbers."""
    if not isinstance(content, Mapping) or depth > _DEEPEST:
        return
    if any(isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in content.items()):
        yield _Entry(place or "the whole file", _parameters(content, own))
    for name, value in content.items():
        if isinstance(name, str):
            yield from _entries(value, own, f"{place}.{name}" if place else name, depth + 1)


def _parameters(content: Mapping[Any, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors of a mapping by name, and what else the model has a name for.

    torchtitan saves the model's tensors side by side with the optimizer.
    """
    return {
        name: value
        for name, value in content.items()
        if isinstance(name, str) and (isinstance(value, torch.Tensor) or _unwrapped(name) in own)
    }


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
        parts.append(f"missing there: {listed(missing)}")
    if surplus:
        parts.append(f"only there: {listed(surplus)}")
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
