"""Handle the nested structures of tensors that loaders yield, and that models take and return.

Structures are traversed as `torch.utils.data` does: mappings, tuples, named tuples, lists and data classes have parts.
Everything else that is not a tensor is a leaf of its own: texts, numbers, and objects of the user.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def map_leaves(function: Callable[[Any], Any], structure: Any) -> Any:
    """Return the structure with a function applied to each leaf. Types of containers are kept if they can be made."""
    if isinstance(structure, Mapping):
        parts = {name: map_leaves(function, part) for name, part in structure.items()}
        return _like(structure, parts)
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return type(structure)(*(map_leaves(function, part) for part in structure))
    if isinstance(structure, tuple | list):
        return type(structure)([map_leaves(function, part) for part in structure])
    if dataclasses.is_dataclass(structure) and not isinstance(structure, type):
        names = [field.name for field in dataclasses.fields(structure) if field.init]
        return dataclasses.replace(
            structure, **{name: map_leaves(function, getattr(structure, name)) for name in names}
        )
    return function(structure)


def leaves(structure: Any) -> Iterator[Any]:
    """Yield the leaves of a structure in order; those of a mapping in the order of its keys as texts. None is none."""
    if isinstance(structure, Mapping):
        for name in sorted(structure, key=str):
            yield from leaves(structure[name])
    elif isinstance(structure, tuple | list):
        for part in structure:
            yield from leaves(part)
    elif dataclasses.is_dataclass(structure) and not isinstance(structure, type):
        for field in dataclasses.fields(structure):
            yield from leaves(getattr(structure, field.name))
    elif structure is not None:
        yield structure


def moved(structure: Any, device: torch.device) -> Any:
    """Return copies of all tensors on the device. The originals are used again, and a model may change its inputs."""

    def move(leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biufc":
            leaf = torch.from_numpy(np.array(leaf))  # a copy, since a view may be read-only
            return leaf.to(device)
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return leaf.clone() if leaf.device == device else leaf.to(device, non_blocking=True)

    return map_leaves(move, structure)


def to_numpy(tensor: torch.Tensor) -> NDArray[Any]:
    """Return the values of a tensor; those of a type that numpy lacks, such as bfloat16, as float32, which is exact."""
    plain = tensor.detach().cpu()
    if plain.is_sparse or plain.is_quantized:
        plain = plain.to_dense() if plain.is_sparse else plain.dequantize()
    if plain.is_floating_point() and plain.dtype not in (torch.float16, torch.float32, torch.float64):
        plain = plain.float()
    return plain.resolve_conj().resolve_neg().numpy()


def bits_of(tensor: torch.Tensor) -> NDArray[Any]:
    """Return an array with the type, the shape and the bytes of a tensor, to hash them."""
    if tensor.is_sparse or tensor.is_quantized:
        return to_numpy(tensor)
    plain = tensor.detach().cpu().contiguous()
    try:
        return plain.numpy()
    except TypeError:  # a type that numpy lacks: its bytes, with its name in the shape of the array's type
        raw = plain.reshape(-1).view(torch.uint8).numpy()
        return raw.view(np.dtype([(str(plain.dtype), np.uint8, plain.element_size())])).reshape(plain.shape)


def finite_rows(structure: Any) -> list[NDArray[np.bool_]]:
    """Return a bool (n,) for each tensor of floats (n, …) in a structure: whether that row is finite."""
    return [_finite(leaf) for leaf in leaves(structure) if isinstance(leaf, torch.Tensor) and _has_rows_of_floats(leaf)]


def _finite(tensor: torch.Tensor) -> NDArray[np.bool_]:
    finite = torch.isfinite(tensor).reshape(len(tensor), math.prod(tensor.shape[1:])).all(dim=1)
    rows: NDArray[np.bool_] = finite.cpu().numpy()
    return rows


def _has_rows_of_floats(tensor: torch.Tensor) -> bool:
    return tensor.ndim > 0 and (tensor.is_floating_point() or tensor.is_complex()) and not tensor.is_sparse


def _like(original: Mapping[Any, Any], parts: dict[Any, Any]) -> Any:
    """Return a mapping of the original's type, such as `BatchEncoding`; a dict if that cannot be made from a dict."""
    if type(original) is dict:
        return parts
    try:
        made = type(original)(parts)  # type: ignore[call-arg]
    except Exception:  # noqa: BLE001 - any class of a user
        return parts
    return made if isinstance(made, Mapping) and made.keys() == parts.keys() else parts
