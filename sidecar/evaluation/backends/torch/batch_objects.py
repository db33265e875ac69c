"""Look into the objects that collate functions return: graph batches, classes of attrs, namespaces.

Such an object is read as a dict of its parts, so that its content can be hashed and compared between workers. It is
copied and moved as a whole, with its own method `to` if it has one, and passed to `Task(step=…)` or to the model.
"""

import copy
import inspect
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import torch

_DEEPEST: Final = 16
_PLAIN: Final = (str, bytes, bool, int, float, complex, np.ndarray, np.generic, torch.Tensor, type, type(None))

Parts = Mapping[Any, Any]


def parts_of_object(value: Any) -> Parts | None:
    """Return the parts of an object that holds tensors, by name; None for other objects.

    These are what `coo()` of a sparse matrix, edges and features of a graph of DGL, `to_dict()`, `keys()` with
    `__getitem__`, or the attributes say, in this order.
    """
    return _parts(value, _DEEPEST)


def has_own_move(value: Any) -> bool:
    """Return whether a container or another object has a method `to(device)`, such as `PackedSequence`."""
    return not isinstance(value, _PLAIN) and callable(getattr(type(value), "to", None))


def copied(value: Any) -> Any:
    """Return a copy of an object with copies of its tensors, if it can be copied so far."""
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001 - any class of a user: tensors with a history, handles of a library
        return value.clone() if inspect.ismethod(getattr(value, "clone", None)) else copy.copy(value)


def moved_by_itself(value: Any, device: torch.device) -> Any:
    """Return what `value.to(device)` returns, or the value itself if the method moves in place.

    None: the object has no such method, or one that takes something else.
    """
    if not has_own_move(value):
        return None
    try:
        there = value.to(device)
    except TypeError:
        return None
    return value if there is None else there


def attributes(value: Any) -> Parts:
    """Return the attributes of an object, also those in slots."""
    return dict(_slots(value)) | dict(getattr(value, "__dict__", {}))


def _parts(value: Any, depth: int) -> Parts | None:
    if isinstance(value, _PLAIN) or not depth or callable(value):
        return None
    for read in (_sparse, _graph, _to_dict, _keys, attributes):
        try:
            parts = read(value)
        except Exception:  # noqa: BLE001, S112 - a method of any class, which may need arguments
            continue
        if isinstance(parts, Mapping) and parts and any(_holds_tensor(part, depth - 1) for part in parts.values()):
            return parts
    return None


def _holds_tensor(value: Any, depth: int) -> bool:
    if isinstance(value, torch.Tensor | np.ndarray):
        return True
    if isinstance(value, Mapping):
        return any(_holds_tensor(part, depth) for part in value.values())
    if isinstance(value, list | tuple):
        return any(_holds_tensor(part, depth) for part in value)
    return _parts(value, depth) is not None


def _sparse(value: Any) -> Parts | None:
    """Return the entries of a matrix of torch_sparse, whose attributes are caches that fill when it is used."""
    if not hasattr(value, "sparse_sizes"):
        return None
    return {"coo": value.coo(), "sizes": value.sparse_sizes()}


def _graph(value: Any) -> Parts | None:
    """Return edges and features of a graph of DGL, whose attributes are handles."""
    if not (hasattr(value, "ndata") and hasattr(value, "edata")):
        return None
    return {
        "edges": value.edges(),
        "nodes": value.batch_num_nodes(),
        "ndata": dict(value.ndata),
        "edata": dict(value.edata),
    }


def _to_dict(value: Any) -> Any:
    return value.to_dict() if inspect.ismethod(getattr(value, "to_dict", None)) else None


def _keys(value: Any) -> Parts | None:
    if not hasattr(value, "keys") or not hasattr(value, "__getitem__"):
        return None
    keys = value.keys() if callable(value.keys) else value.keys
    return {key: value[key] for key in keys}


def _slots(value: Any) -> Iterator[tuple[str, Any]]:
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name, getattr(value, name)
