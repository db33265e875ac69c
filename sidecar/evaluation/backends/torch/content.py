"""Find the parts of a checkpoint's content that may hold the values of a model: mappings and modules with tensors."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from sidecar.evaluation.failures import mismatch
from sidecar.system.plain_text import listed

PATTERNS_SHOWN: Final = 5
_EXTRA: Final = "_extra_state"
_STATES: Final = re.compile(
    r"(?:\w+_)?optim(?:izers?)?(?:_states?|_state_dicts?)?|(?:lr_)?schedulers?(?:_states?|_state_dicts?)?"
    r"|(?:grad_|amp_)?scalers?|rng_states?",
    re.IGNORECASE,
)
"""Keys of states of training that hold tensors of the sizes of the weights, or many of them, and never a model."""

WHOLE: Final = "the whole file"
CHOSEN: Final = "Task(checkpoint=…)"  # the place of what a function returned
_DEEPEST: Final = 5
MAX_CONTAINERS: Final = 20_000
_MAX_PARTS: Final = 64  # of a list: one of more parts holds values, not models


@dataclass(frozen=True, slots=True)
class Entry:
    """A mapping in the file that may hold the model's values, by its place such as `ema.model`.

    `versions`: what `state_dict()` says about the classes of modules, by their places. `others`: what is no tensor, for
    example the step; some modules save such values, too.
    """

    place: str
    values: Mapping[str, Any]
    versions: Mapping[str, Any] | None = None
    others: Mapping[str, Any] = field(default_factory=dict)


def chosen_entries(content: Any, where: str | Callable[[Any], Any] | None) -> list[Entry]:
    """Return the parts of a content that may hold the model's values."""
    if where is None:
        entries = list(entries_of(content))
    elif isinstance(where, str):
        entries = [_at(content, where)]
    else:
        entries = [_entry(CHOSEN, where(content))]
    if not entries:
        raise mismatch(_no_state_dict(content))
    return entries


def entries_of(content: Any) -> Iterator[Entry]:
    """Yield every part of a content with named tensors. The states of optimizers are left out."""
    waiting: list[tuple[Any, str, int]] = [(content, "", 0)]
    seen: set[int] = set()
    while waiting and len(seen) < MAX_CONTAINERS:
        inner, place, depth = waiting.pop(0)
        if id(inner) in seen:
            continue
        seen.add(id(inner))
        parts = parts_of(inner)
        if any(isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in parts.items()):
            yield _entry(place or WHOLE, inner)
        if depth < _DEEPEST and not isinstance(inner, nn.Module):
            waiting += [
                (value, f"{place}.{name}" if place else str(name), depth + 1)
                for name, value in parts.items()
                if not is_state(name) and _is_container(value)
            ]


def joined_entries(
    content: Any, where: str | Callable[[Any], Any] | None, parts_of_model: Collection[str]
) -> Iterator[Entry]:
    """Yield entries that hold the values of several parts of the model, each with the state dict of its own.

    For example, `{"encoder": …, "decoder": …}` are the parts `encoder` and `decoder`. `parts_of_model`: the first parts
    of the model's names. Anything else at such a place is left out.
    """
    at, within = ("", content) if where is None else (where, None)
    if isinstance(where, str):
        within, rest = _inner(content, where)
        within = None if rest else within
    elif where is not None:
        at, within = CHOSEN, where(content)
    for place, container in islice(places_of(within, str(at)), MAX_CONTAINERS if where is None else 1):
        parts = {str(name): value for name, value in parts_of(container).items() if str(name) in parts_of_model}
        if isinstance(container, nn.Module) or not any(_is_container(value) for value in parts.values()):
            continue
        values, versions = dict[str, Any](), dict[str, Any]()
        for name, part in parts.items():
            _flatten(name, part, values, versions, _DEEPEST)
        yield Entry(place or WHOLE, values, versions or None)


def _flatten(place: str, part: Any, values: dict[str, Any], versions: dict[str, Any], depth: int) -> None:
    """Add the tensors in a part to `values`, by their whole names, and what it says of classes to `versions`."""
    if not _is_container(part):
        if isinstance(part, torch.Tensor) or place.rpartition(".")[2] == _EXTRA:
            values[place] = part
        return
    inner = parts_of(part)
    for name, version in (getattr(inner, "_metadata", None) or {}).items():
        versions[f"{place}.{name}".rstrip(".")] = version
    for name, value in inner.items() if depth else ():
        _flatten(f"{place}.{name}", value, values, versions, depth - 1)


def is_state(name: Any) -> bool:
    """Return whether a key is that of a state of training, such as the optimizer's."""
    return isinstance(name, str) and _STATES.fullmatch(name.partition(".")[0]) is not None


def _is_container(value: Any) -> bool:
    return isinstance(value, Mapping | list | tuple | nn.Module) or (
        hasattr(value, "__dict__") and not isinstance(value, torch.Tensor | type) and not callable(value)
    )


def parts_of(container: Any) -> Mapping[Any, Any]:
    """Return the parts of a container by key, number or attribute; of a module its values by name."""
    if isinstance(container, nn.Module):
        return container.state_dict()
    if isinstance(container, Mapping):
        return container if isinstance(container, dict) else _items_of(container)
    if isinstance(container, list | tuple):
        return dict(enumerate(container)) if len(container) <= _MAX_PARTS else {}
    return vars(container) if _is_container(container) else {}


def _items_of(container: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Return the items of a mapping of another class, such as a configuration with values that cannot be read."""
    try:
        return dict(container.items())
    except Exception:  # noqa: BLE001 - any class that the task allows
        return {}


def _entry(place: str, container: Any) -> Entry:
    """Return the tensors of a mapping or module by name, and the extra states of modules.

    Other values stand next to the tensors in some files, such as the step. Raises `EvaluationError` for anything else.
    """
    if not isinstance(container, Mapping | nn.Module) and not parts_of(container):
        raise mismatch(f"Task(checkpoint=…) must lead to a state dict, found {type(container).__name__}")
    parts = parts_of(container)
    values = {
        name: value
        for name, value in parts.items()
        if isinstance(name, str)
        and (isinstance(value, torch.Tensor | np.ndarray) or name.rpartition(".")[2] == _EXTRA)
        and not isinstance(value, np.generic)
    }
    others = {name: value for name, value in parts.items() if isinstance(name, str) and name not in values}
    return Entry(place, values, getattr(parts, "_metadata", None), others)


def _at(content: Any, where: str) -> Entry:
    """Return the values at a place such as `ema.model`, or below a prefix of names, such as `ema_model`.

    Raises `EvaluationError` if there is neither.
    """
    inner, names = _inner(content, where)
    if not names:
        return _entry(where or WHOLE, inner)
    prefix = ".".join(names)
    if not prefix.endswith("."):
        prefix += "."
    found = _entry(where, inner) if isinstance(inner, Mapping | nn.Module) else Entry(where, {})
    below = {name.removeprefix(prefix): value for name, value in found.values.items() if name.startswith(prefix)}
    if not below and (start := prefix[:-1]):
        below = {name.removeprefix(start): value for name, value in found.values.items() if name.startswith(start)}
    if not below:
        raise mismatch(f"Task(checkpoint={where!r}) is not in the checkpoint, which holds {_held(inner)}")
    versions = None
    if isinstance(found.versions, Mapping):
        versions = {
            f"{name}.".removeprefix(prefix).rstrip("."): value
            for name, value in found.versions.items()
            if isinstance(name, str) and f"{name}.".startswith(prefix)
        }
    return Entry(where, below, versions)


def _inner(content: Any, where: str) -> tuple[Any, list[str]]:
    """Return what lies at a place as far as it exists in the content, and the rest of the place."""
    inner, names = content, where.split(".") if where else []
    while names:
        parts = {str(name): value for name, value in parts_of(inner).items()}
        joined = next((n for n in range(len(names), 0, -1) if ".".join(names[:n]) in parts), 0)
        if not joined:
            break
        inner, names = parts[".".join(names[:joined])], names[joined:]
    return inner, names


def _held(inner: Any) -> str:
    """Describe the names in a content for a message: its keys, or the beginnings of names."""
    if not parts_of(inner):
        return f"a {type(inner).__name__}"
    keys = [str(name) for name in parts_of(inner)]
    short = keys if len(keys) <= PATTERNS_SHOWN else dict.fromkeys(key.partition(".")[0] for key in keys)
    return listed([repr(key) for key in short])


def _no_state_dict(content: Any) -> str:
    """Say that a content has no named tensors, and how to save them."""
    kind = type(content).__name__
    arrays = [place for place, part in places_of(content) if isinstance(part, Mapping) and _named(part, np.ndarray)]
    if arrays:
        at = "c" if not arrays[0] else "c" + "".join(f"[{key!r}]" for key in arrays[0].split("."))
        return (
            f"the checkpoint holds arrays of numpy and no tensors: write Task(checkpoint=lambda c: {{name: "
            f"torch.as_tensor(value) for name, value in {at}.items()}})"
        )
    if isinstance(content, list | tuple) and any(isinstance(part, torch.Tensor) for part in content):
        return f"the checkpoint holds no state dict: it is a {kind} of tensors without names: save model.state_dict()"
    return f"the checkpoint holds no state dict: it is a {kind} without named tensors: save model.state_dict()"


def _named(part: Mapping[Any, Any], kind: type) -> bool:
    return any(isinstance(name, str) and isinstance(value, kind) for name, value in part.items())


def places_of(content: Any, place: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the containers of a content with their places."""
    yield place, content
    if depth < _DEEPEST and not isinstance(content, nn.Module):
        for name, part in parts_of(content).items():
            if _is_container(part) and not is_state(name):
                yield from places_of(part, f"{place}.{name}" if place else str(name), depth + 1)
