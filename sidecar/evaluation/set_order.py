"""Find vocabularies whose order is that of a `set` of texts, which differs from process to process.

Python hashes texts with a seed that is random in each process, and workers have the seed 0. So
`{word: number for number, word in enumerate(set(words))}` is alike on all workers, and unlike that of the process that
trained the model. A set is a table in which the place of a text follows from its hash: a long list in the order of
these places came from a set, as any other order has it by chance only. Source: CPython, `Objects/setobject.c`.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from types import FunctionType, ModuleType
from typing import Any, Final

_FEWEST: Final = 32  # texts: an order of so many is no chance
_COMPARED: Final = 4096  # of longer ones
_SHARE: Final = 0.8  # of neighbours that ascend; collisions displace some, and half of them ascend by chance
_TABLES: Final = 5  # sizes of tables that a set of so many texts may have, each twice the one before
_DEEPEST: Final = 4
_MOST_OBJECTS: Final = 5000
_MOST_SHOWN: Final = 3
_MOST_VALUES: Final = 64  # of a list or dict that are looked into
_SEED: Final = "0"  # what workers have, unless the daemon's environment gives another one


def notes_on_sets(roots: Mapping[str, Any], seed: str | None = None) -> tuple[str, ...]:
    """Return a note for the reader of the result if something below the roots, given by name, came from a set.

    A seed that the user has chosen may be that of training. `seed`: that of this process, if not its environment's.
    """
    if (os.environ.get("PYTHONHASHSEED") if seed is None else seed) != _SEED:
        return ()
    found = list(dict.fromkeys(place for place, texts in _lists_in(roots) if has_order_of_set(texts)))
    if not found:
        return ()
    shown = ", ".join(found[:_MOST_SHOWN]) + (", …" if len(found) > _MOST_SHOWN else "")
    note = (
        f"{shown}: in the order of a set of texts, which is another one in each process, and so in training: number "
        f"sorted(…) instead of set(…), here and in training, or load what training saved"
    )
    return (note,)


def has_order_of_set(texts: list[str]) -> bool:
    """Return whether texts are in the order in which a set of them is iterated by this process."""
    hashes = [hash(text) for text in texts[:_COMPARED]]
    if len(texts) < _FEWEST or len(set(hashes)) < len(hashes):
        return False
    return any(
        _ascending([each & ((1 << bits) - 1) for each in hashes]) >= _SHARE
        for bits in range(len(texts).bit_length(), len(texts).bit_length() + _TABLES)
    )


def _ascending(places: list[int]) -> float:
    return sum(one <= other for one, other in pairwise(places)) / (len(places) - 1)


def _lists_in(roots: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Yield the lists of texts below the roots, each with its place, as far as few steps lead to it."""
    waiting = [(name, value, 0) for name, value in roots.items()]
    seen: set[int] = set()
    for place, value, depth in waiting:  # it grows
        if id(value) in seen or len(seen) >= _MOST_OBJECTS:
            continue
        seen.add(id(value))
        if isinstance(value, list | tuple | Mapping) and (texts := _texts_of(value)):
            yield place, texts
        elif depth < _DEEPEST:
            waiting += [(f"{place}{step}", inner, depth + 1) for step, inner in _parts_of(value)]


def _texts_of(value: Iterable[Any]) -> list[str]:
    texts = []
    for item in value:
        if not isinstance(item, str):
            return []
        texts.append(item)
    return texts if len(texts) >= _FEWEST else []


def _parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an object holds, with the step that leads to it in Python."""
    if isinstance(value, str | bytes | int | float | ModuleType | type):
        return
    if isinstance(value, Mapping):
        yield from ((f"[{key!r:.40}]", part) for key, part in list(value.items())[:_MOST_VALUES])
    elif isinstance(value, list | tuple):
        yield from ((f"[{index}]", part) for index, part in enumerate(value[:_MOST_VALUES]))
    elif isinstance(value, FunctionType):
        names = value.__code__.co_freevars
        for name, cell in zip(names, value.__closure__ or (), strict=True):
            try:
                yield f".{name}", cell.cell_contents
            except ValueError:  # it is empty
                continue
    else:
        yield from ((f".{name}", part) for name, part in getattr(value, "__dict__", {}).items())


def globals_of(modules: Iterable[str]) -> dict[str, Any]:
    """Return the global variables of loaded modules by name, except modules and what Python defines."""
    found: dict[str, Any] = {}
    for name in modules:
        for variable, value in list(vars(sys.modules[name]).items()) if name in sys.modules else ():
            if not variable.startswith("__") and not isinstance(value, ModuleType):
                found.setdefault(variable, value)
    return found
