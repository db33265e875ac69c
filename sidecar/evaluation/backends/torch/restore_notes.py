"""Say why a checkpoint does not fit a model, with the line to write, and what people should know of a restored one."""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import torch

from sidecar.evaluation.backends.torch.content import (
    CHOSEN,
    MAX_CONTAINERS,
    PATTERNS_SHOWN,
    WHOLE,
    Entry,
    is_state,
    parts_of,
    places_of,
)
from sidecar.evaluation.backends.torch.weight_sets import (
    COUNTER,
    Target,
    WeightSet,
    candidates,
    is_lazy,
    memory_of,
    names_of,
    surplus_values,
    without_wrappers,
)
from sidecar.evaluation.name_patterns import matches
from sidecar.system.plain_text import listed

_QUANTIZED: Final = re.compile(r"scale|amax|absmax|SCB|zero_?point|qzeros|quant_(?:map|state)", re.IGNORECASE)
_ADAPTER: Final = re.compile(r"lora|adapter|ia3", re.IGNORECASE)


def several(fitting: Sequence[WeightSet]) -> str:
    """Say which sets there are, and how to choose one."""
    lines = []
    for fit in fitting:
        if fit.entry.place == CHOSEN:
            lines.append(f"a function that returns the values below {fit.prefix!r} alone")
        elif fit.alone or fit.prefix:
            lines.append(f"Task(checkpoint={fit.place!r})")
        else:
            others = [other.prefix for other in fitting if other.prefix and other.entry.place == fit.entry.place]
            lines.append(f"Task(ignore={others!r}) for the names without a prefix")
    return (
        f"{' and '.join(fit.shown for fit in fitting[:PATTERNS_SHOWN])} in the checkpoint hold values for the whole "
        f"model: choose one with {' or '.join(lines[:PATTERNS_SHOWN])}"
    )


def difference(entries: Sequence[Entry], target: Target) -> str:
    """Describe how the entry with the most names in common differs from the model, and the line that may be missing."""
    ways = names_of(target)[::-1]
    found = [fit for entry in entries for names in ways for fit in candidates(entry, names, target)]
    if not found:
        return f"the names in {entries[0].place!r} are not distinct without the parts that wrappers add"
    best = max(found, key=lambda fit: (len(fit.bound), -len(fit.surplus), not fit.prefix))
    parts = [f"the model of Task(build_model=…) does not match {best.shown} in the checkpoint"]
    if best.missing:
        parts.append(f"missing there: {listed(sorted(best.missing))}")
    if best.surplus:
        parts.append(f"only there: {listed(list(best.surplus))}")
    return "; ".join([*parts, *_remedies(best, target.own)])


def _remedies(fit: WeightSet, own: Mapping[str, Any]) -> list[str]:
    """Return what may be meant by missing or surplus names, with the line to write."""
    if not fit.bound:
        return ["no name is the same: build the model of training"]
    if line := _computed_weights(fit):
        return [line]
    of_layers = [name for name in fit.surplus if "." in name or "weight" in name]  # not the model's own `logit_scale`
    if any(_QUANTIZED.search(name) for name in of_layers):
        return ["the values only there belong to quantized weights: build the quantized model, as training did"]
    shapes = [_shape(own[name]) for name in fit.missing]
    if any(_shape(value) in shapes for value in surplus_values(fit).values()):
        return ["build the model of training, or rename values with Task(checkpoint=lambda c: {…})"]
    is_adapter = any(_ADAPTER.search(name) for name in fit.surplus)
    unused_there = "the values that are only there have no effect on predictions"
    lines, reasons = [], []
    for names, others, setting, reason in (
        (fit.missing, own.keys() - fit.missing, "from_build_model", "training leaves the missing values out"),
        (
            fit.surplus,
            fit.bound,
            "ignore",
            "predictions are wanted without the adapter" if is_adapter else unused_there,
        ),
    ):
        if names:
            lines.append(f"{setting}={patterns_for(names, others)!r}")
            reasons.append(reason)
    if any(line.endswith("=[]") for line in lines):  # no few patterns describe these names
        return ["build the model of training"]
    return [f"either build the model of training, or, if {' and '.join(reasons)}, write Task({', '.join(lines)})"]


def _computed_weights(fit: WeightSet) -> str:
    """Return the line for weights that training computed from others, which the checkpoint holds; empty without any."""
    for name in sorted(fit.missing):
        place, _, leaf = name.rpartition(".")
        there = {one[len(place) + 1 :] if place else one for one in fit.surplus if one.startswith(place)}
        module, new = f"model.get_submodule({place!r})", f"parametrizations.{leaf}."
        if {f"{leaf}_orig", f"{leaf}_mask"} <= there:
            c = "c" if fit.entry.place == WHOLE else f"c[{fit.entry.place!r}]"
            base = "n.removesuffix('_orig')"
            return (
                f"training pruned {name}: write Task(checkpoint=lambda c: {{{base}: v * {c}.get({base} + '_mask', 1) "
                f"for n, v in {c}.items() if not n.endswith('_mask')}})"
            )
        for parts, line in (
            ({f"{leaf}_g", f"{leaf}_v"}, "weight_norm"),
            ({f"{leaf}_orig", f"{leaf}_u"}, "spectral_norm"),
            ({f"{new}original0", f"{new}original1"}, "parametrizations.weight_norm"),
            ({f"{new}original", f"{new}0._u"}, "parametrizations.spectral_norm"),
        ):
            if parts <= there:
                return f"training normalised {name}: let build_model call torch.nn.utils.{line}({module}, {leaf!r})"
    return ""


def _shape(value: Any) -> tuple[int, ...] | None:
    return tuple(value.shape) if isinstance(value, torch.Tensor) and not is_lazy(value) else None


def patterns_for(names: Collection[str], others: Collection[str]) -> list[str]:
    """Return few patterns that describe all of the names and none of the others; empty if there are none."""
    left, found = set(names), list[str]()
    parts = {name: name.split(".") for name in names}
    likely = dict.fromkeys(
        (sorted(names) if len(names) == 1 else [])
        + [".".join(part[:depth]) + "." for depth in (1, 2, 3) for part in parts.values() if len(part) > depth]
        + [f"*.{one}.*" for part in parts.values() for one in part[1:-1]]
        + [f"*.{part[-1]}" for part in parts.values() if len(part) > 1]
        + sorted(names)
    )
    usable = [pattern for pattern in likely if not any(matches(name, [pattern]) for name in others)]
    while left and len(found) < PATTERNS_SHOWN:
        best = max(usable, key=lambda pattern: sum(matches(name, [pattern]) for name in left), default=None)
        if best is None or not any(matches(name, [best]) for name in left):
            return []
        found.append(best)
        left = {name for name in left if not matches(name, [best])}
    return [] if left else found


def type_notes(fit: WeightSet, target: Target) -> tuple[str, ...]:
    """Return a note if values are stored with another type than the model has, since they are converted."""
    pairs = {
        (str(value.dtype).removeprefix("torch."), str(used.dtype).removeprefix("torch."))
        for name, value in fit.bound.items()
        if isinstance(value, torch.Tensor)
        and isinstance(used := target.own[name], torch.Tensor)
        and value.dtype != used.dtype
    }
    place = fit.place or WHOLE
    return tuple(
        f"weights are stored as {stored} in {place} and evaluated as {used}, the model's type"
        for stored, used in sorted(pairs)
    )


def kept_notes(fit: WeightSet, target: Target) -> tuple[str, ...]:
    """Return notes about values that are not from the checkpoint, and about values in it that were left out."""
    notes = []
    if fit.from_build_model:
        names = sorted(fit.from_build_model)
        notes.append(f"values of build_model, which the checkpoint lacks (from_build_model): {listed(names)}")
    elif target.kept.patterns:
        notes.append("the checkpoint holds all values: from_build_model had no effect")
    if fit.ignored:
        notes.append(f"values of the checkpoint that were left out (ignore): {listed(list(fit.ignored))}")
    elif target.ignore:
        notes.append("the checkpoint holds no value that ignore names")
    return tuple(notes)


def unused_notes(content: Any, fit: WeightSet, target: Target) -> tuple[str, ...]:
    """Return a note if the content holds further values that look like those of the model: maybe they were meant."""
    shapes = {
        without_wrappers(name): tuple(value.shape)
        for name, value in target.own.items()
        if isinstance(value, torch.Tensor) and not is_lazy(value) and value.is_floating_point()
    }
    used = {memory_of(value) for value in fit.bound.values()}
    places = list(dict.fromkeys(_alike(content, shapes, used, target.ignore))) if shapes else []
    if places:
        note = f"the checkpoint also holds values like those of the model in {listed(places)}, which were not used"
        return (f"{note}; Task(checkpoint=…) chooses",)
    others = [name for name in fit.entry.values if not without_wrappers(name).startswith(fit.prefix)]
    others = [name for name in others if not name.startswith(fit.prefix) and name.rpartition(".")[2] != COUNTER]
    others = [name for name in others if not matches(name, target.ignore)]
    return (f"values without the prefix {fit.prefix!r} were not used: {listed(others)}",) if others else ()


def _alike(
    content: Any, shapes: Mapping[str, tuple[int, ...]], used: Collection[Any], ignore: Sequence[str]
) -> Iterator[str]:
    """Yield the places of further values with at least half of the model's names, or with all of its shapes."""
    wanted = Counter(shapes.values())
    for place, part in islice(places_of(content), MAX_CONTAINERS):
        values = parts_of(part)
        if isinstance(part, list | tuple):
            values = dict(enumerate(part))
        left = {
            without_wrappers(str(name)): tuple(value.shape)
            for name, value in values.items()
            if isinstance(value, torch.Tensor)
            and not is_state(name)
            and not matches(str(name), ignore)
            and memory_of(value) not in used
        }
        if len(left) * 2 < len(shapes):
            continue
        same: Counter[str] = Counter()
        groups: dict[str, list[tuple[int, ...]]] = {}
        for name, shape in left.items():
            groups.setdefault(name.partition(".")[0] if "." in name else "", []).append(shape)
            for start in (0, *(at + 1 for at, character in enumerate(name) if character == ".")):
                if shapes.get(name[start:]) == shape:
                    same[name[:start]] += 1
        by_name = [prefix for prefix, count in same.items() if count * 2 >= len(shapes)]
        whole = [group for group, found in groups.items() if wanted <= Counter(found)]
        if not by_name and not whole and wanted <= Counter(left.values()):
            whole = [""]
        for prefix in dict.fromkeys([*(prefix.rstrip(".") for prefix in by_name), *([] if by_name else whole)]):
            yield repr(".".join(one for one in (place, prefix) if one)) if place or prefix else WHOLE
