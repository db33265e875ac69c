"""Handle the nested structures of tensors that loaders yield, and that models take and return.

Structures are traversed as `torch.utils.data` does: mappings, tuples, named tuples, lists and data classes have parts.
So do other objects that hold tensors, such as batches of graphs. Everything else that is not a tensor is a leaf of its
own: texts, numbers, and other objects of the user.
"""

import copy
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sidecar.evaluation.backends.torch.batch_objects import (
    attributes,
    copied,
    has_own_move,
    moved_by_itself,
    parts_of_object,
)
from sidecar.evaluation.failures import task_error


def map_leaves(function: Callable[[Any], Any], structure: Any, is_leaf: Callable[[Any], bool] = lambda _: False) -> Any:
    """Return the structure with a function applied to each leaf. Types of containers are kept if they can be made.

    Objects that are no containers are leaves here, also if they hold tensors, and so is what `is_leaf` says.
    """
    if is_leaf(structure):
        return function(structure)
    if isinstance(structure, Mapping):
        parts = {name: map_leaves(function, part, is_leaf) for name, part in structure.items()}
        return _like(structure, parts)
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return type(structure)(*(map_leaves(function, part, is_leaf) for part in structure))
    if isinstance(structure, tuple | list):
        return _sequence_like(structure, [map_leaves(function, part, is_leaf) for part in structure])
    if dataclasses.is_dataclass(structure) and not isinstance(structure, type):
        names = [field.name for field in dataclasses.fields(structure)]
        changed = copy.copy(structure)  # no `replace`, since `__init__` may compute something else
        for name in names:
            object.__setattr__(changed, name, map_leaves(function, getattr(structure, name), is_leaf))
        return changed
    return function(structure)


def is_short_integer(dtype: torch.dtype) -> bool:
    """Return whether differences or squares of usual values of a type wrap around: integers of 8, 16 or 32 bits."""
    is_integer = not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)
    return is_integer and dtype.itemsize < torch.int64.itemsize


def leaves(structure: Any, _above: tuple[int, ...] = ()) -> Iterator[Any]:
    """Yield the leaves of a structure in order; those of a mapping in the order of its keys as texts. None is none."""
    if isinstance(structure, Mapping):
        for name in sorted(structure, key=str):
            yield from leaves(structure[name], _above)
    elif isinstance(structure, tuple | list):
        for part in structure:
            yield from leaves(part, _above)
    elif dataclasses.is_dataclass(structure) and not isinstance(structure, type):
        for field in dataclasses.fields(structure):
            yield from leaves(getattr(structure, field.name), _above)
    elif structure is not None and id(structure) not in _above:  # an object may refer to the one that holds it
        parts = parts_of_object(structure)
        if parts is None:
            yield structure
        else:
            yield from leaves(parts, (*_above, id(structure)))


def moved(structure: Any, device: torch.device) -> Any:
    """Return copies of all tensors on the device. The originals are used again, and a model may change its inputs."""

    def move(leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biufc":
            leaf = torch.from_numpy(np.array(leaf))  # a copy, since a view may be read-only
            return leaf.to(device)
        if isinstance(leaf, torch.Tensor):
            return leaf.clone() if leaf.device == device else leaf.to(device, non_blocking=True)
        if has_own_move(leaf) or parts_of_object(leaf) is not None:
            return _moved_object(leaf, device)
        return leaf

    return map_leaves(move, structure, is_leaf=has_own_move)


def _moved_object(value: Any, device: torch.device) -> Any:
    """Return a copy of an object on the device, moved by its own method `to` if it has one."""
    duplicate, seen = copied(value), set[int]()
    if (there := moved_by_itself(duplicate, device)) is not None:
        return there

    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.to(device)
        if (there := moved_by_itself(leaf, device)) is not None:
            return there
        if id(leaf) not in seen and parts_of_object(leaf) is not None:  # an object may refer to the one that holds it
            seen.add(id(leaf))
            for name, part in attributes(leaf).items():
                object.__setattr__(leaf, name, map_leaves(move, part, is_leaf=has_own_move))
        return leaf

    if any(leaf.device != device for leaf in leaves(duplicate) if isinstance(leaf, torch.Tensor)):
        move(duplicate)
    return duplicate


def rows_in(leaf: Any) -> int:
    """Return the length of the first dimension of a tensor or an array; 0 without dimensions."""
    if isinstance(leaf, torch.Tensor) and leaf.is_nested:
        return leaf.size(0)  # it has no shape
    return len(leaf) if leaf.ndim else 0


def to_numpy(tensor: torch.Tensor) -> NDArray[Any]:
    """Return the values of a tensor; those of a type that numpy lacks, such as bfloat16, as float32, which is exact."""
    if tensor.is_meta:
        raise task_error(f"a tensor {tuple(tensor.shape)} is on the device 'meta' and has no values: build it on 'cpu'")
    plain = tensor.detach().cpu()
    if plain.is_nested:
        plain = plain.to_padded_tensor(0.0)
    if plain.layout != torch.strided or plain.is_quantized:
        plain = plain.dequantize() if plain.is_quantized else plain.to_dense()
    if plain.is_floating_point() and plain.dtype not in (torch.float16, torch.float32, torch.float64):
        plain = plain.float()
    return plain.resolve_conj().resolve_neg().numpy()


def widened(leaf: Any) -> Any:
    """Return a tensor of a float type of 8 bits as float32, which is exact: torch computes little with the former."""
    is_narrow = isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.element_size() == 1
    return leaf.float() if is_narrow else leaf


@dataclasses.dataclass(frozen=True, slots=True)
class LocalPart:
    """Hold the part of a tensor that this process has, if processes divide the tensor among them (`DTensor`).

    `region`: its places in each dimension of the whole. `values`: in the memory of the tensor; None if it is not to be
    changed.
    """

    region: tuple[slice, ...]
    values: torch.Tensor | None


def local_part(tensor: Any) -> LocalPart | None:
    """Return the part of a tensor that this process has; None if the tensor is not divided."""
    if not hasattr(tensor, "__create_chunk_list__"):
        return None
    (chunk,) = tensor.__create_chunk_list__()
    region = tuple(slice(first, first + size) for first, size in zip(chunk.offsets, chunk.sizes, strict=True))
    return LocalPart(region, tensor.detach().to_local())


def local_values(tensor: Any) -> Any:
    """Return the values of a tensor that this process has, in the same memory: all, unless it is divided."""
    return tensor.detach().to_local() if hasattr(tensor, "__create_chunk_list__") else tensor


def bits_of(tensor: torch.Tensor) -> NDArray[Any]:
    """Return an array with the type, the shape and the bytes of a tensor, or of the part held here, to hash them."""
    tensor = local_values(tensor)
    if tensor.is_nested:
        return np.concatenate([bits_of(part).reshape(-1).view(np.uint8) for part in tensor.unbind()])
    if parts := _sparse_parts(tensor):
        return np.concatenate([bits_of(part).reshape(-1).view(np.uint8) for part in parts])
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        return to_numpy(tensor)
    plain = tensor.detach().cpu().contiguous()
    try:
        return plain.numpy()
    except TypeError:  # a type that numpy lacks: its bytes, with its name in the shape of the array's type
        raw = plain.reshape(-1).view(torch.uint8).numpy()
        return raw.view(np.dtype([(str(plain.dtype), np.uint8, plain.element_size())])).reshape(plain.shape)


def values_in(tensor: torch.Tensor) -> int:
    """Return the number of values that a tensor holds, of a sparse one without its zeros."""
    parts = _sparse_parts(tensor)
    return parts[-1].numel() if parts else tensor.numel()


def _sparse_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the indices and the values of a sparse tensor, which may be too large as a whole; else nothing."""
    if tensor.layout == torch.sparse_coo:
        tensor = tensor.detach().coalesce()
        return tensor.indices(), tensor.values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return ()


def finite_rows(structure: Any) -> list[NDArray[np.bool_]]:
    """Return a bool (n,) for each tensor of floats (n, …) in a structure: whether that row is finite."""
    return [_finite(leaf) for leaf in leaves(structure) if isinstance(leaf, torch.Tensor) and _has_rows_of_floats(leaf)]


@contextmanager
def types_of_outputs(model: nn.Module) -> Iterator[set[str]]:
    """Collect the types of the tensors that a model's modules return in a block, such as those under autocast."""
    types: set[str] = set()

    def note(_module: nn.Module, _arguments: Any, output: Any) -> None:
        types.update(str(leaf.dtype) for leaf in leaves(output) if isinstance(leaf, torch.Tensor))

    takes_hooks = (module for module in model.modules() if not isinstance(module, torch.jit.ScriptModule))
    hooks = [module.register_forward_hook(note) for module in takes_hooks]
    try:
        yield types
    finally:
        for hook in hooks:
            hook.remove()


def types_of_device(device: torch.device) -> tuple[str, ...]:
    """Return the types in which a device may compute products of float32."""
    return () if device.type == "cpu" else ("tfloat32",)


def part_of(structure: Any, place: slice, examples: int) -> Any:
    """Return some of the examples of a batch. Raises `ValueError` for parts whose rows are not the examples."""
    if isinstance(structure, torch.Tensor | np.ndarray):
        rows = rows_in(structure)
        if structure.ndim and (rows != examples or getattr(structure, "layout", torch.strided) != torch.strided):
            raise ValueError(f"{rows} rows for {examples} examples, or rows that cannot be divided")
        return structure[place] if structure.ndim else structure
    if isinstance(structure, Mapping):
        return _like(structure, {name: part_of(part, place, examples) for name, part in structure.items()})
    if isinstance(structure, tuple | list):
        if _is_list_of(structure, examples):
            return structure[place]
        parts = [part_of(part, place, examples) for part in structure]
        return type(structure)(*parts) if hasattr(structure, "_fields") else type(structure)(parts)
    if structure is None or isinstance(structure, str | bytes | bool | int | float):
        return structure
    raise ValueError(f"a batch holds an object of {type(structure).__name__}, which cannot be divided")


def _is_list_of(parts: Any, examples: int) -> bool:
    """Return whether a list holds a structure for each example, instead of tensors with rows for all."""
    if len(parts) != examples or hasattr(parts, "_fields"):
        return False
    arrays = [leaf for leaf in leaves(parts) if isinstance(leaf, torch.Tensor | np.ndarray) and leaf.ndim]
    return not arrays or any(rows_in(array) != examples for array in arrays)


def _finite(tensor: torch.Tensor) -> NDArray[np.bool_]:
    finite = torch.isfinite(widened(tensor)).reshape(len(tensor), math.prod(tensor.shape[1:])).all(dim=1)
    rows: NDArray[np.bool_] = finite.cpu().numpy()
    return rows


def _has_rows_of_floats(tensor: torch.Tensor) -> bool:
    is_of_floats = tensor.ndim > 0 and (tensor.is_floating_point() or tensor.is_complex())
    return is_of_floats and tensor.layout == torch.strided and not (tensor.is_nested or tensor.is_meta)


def _sequence_like(original: Any, parts: list[Any]) -> Any:
    """Return a tuple or list of the original's type; a plain one if that cannot be made from a list."""
    try:
        return type(original)(parts)
    except TypeError:  # such as `torch.Size`, or a class with another constructor
        return tuple(parts) if isinstance(original, tuple) else parts


def _like(original: Mapping[Any, Any], parts: dict[Any, Any]) -> Any:
    """Return a mapping of the original's type, such as `BatchEncoding`; a dict if that cannot be made."""
    if type(original) is dict:
        return parts
    for make in (lambda original, parts: type(original)(parts), _filled):
        try:
            made = make(original, parts)
        except Exception:  # noqa: BLE001, S112 - any class of a user
            continue
        if isinstance(made, Mapping) and made.keys() == parts.keys():
            return made
    return parts


def _filled(original: Any, parts: dict[Any, Any]) -> Any:
    """Return a copy of a mapping whose constructor takes something else."""
    duplicate = copy.copy(original)
    for name, part in parts.items():
        duplicate[name] = part
    return duplicate
