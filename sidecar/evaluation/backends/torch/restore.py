"""Restore a model from the content of a checkpoint: all that `load_state_dict(strict=True)` accepts, without guessing.

A *set* of weights is a part of the content whose names are exactly those of the model, after the names of wrappers are
taken off at any level, such as `module.` of DistributedDataParallel and `_orig_mod.` of torch.compile, and one common
prefix. Parts of the model may have state dicts of their own, such as `{"encoder": …, "decoder": …}`. If none or several
sets fit, the error names them and the line to write. Of parameters that the model ties, one may be stored for all, as
in safetensors.

Modules may convert what they load, such as values of an earlier version of their class. Then only `load_state_dict`
knows which names fit. It is tried on the model itself, twice, with different values in the model before: a value that
differs afterwards is not from the checkpoint. After a failed restore the model may hold any values, so each restore
proves that all of them are set.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from sidecar.evaluation.backends.torch.content import Entry, chosen_entries, entries_of, joined_entries
from sidecar.evaluation.backends.torch.restore_notes import (
    difference,
    kept_notes,
    patterns_for,
    several,
    type_notes,
    unused_notes,
)
from sidecar.evaluation.backends.torch.tensors import LocalPart, bits_of, local_part, local_values
from sidecar.evaluation.backends.torch.weight_files import DIVIDED, Stored
from sidecar.evaluation.backends.torch.weight_sets import (
    BATCHES,
    Kept,
    Target,
    WeightSet,
    candidates,
    different,
    is_lazy,
    memory_of,
    names_of,
    other_shapes,
    place_of,
    sets_that_fit,
    surplus_values,
    values_of,
    without_wrappers,
)
from sidecar.evaluation.failures import mismatch, without_advice
from sidecar.system.plain_text import listed

_BYTES: Final = (torch.int8, torch.uint8)  # types of quantized weights
_MAX_TRIALS: Final = 6
_FILLS: Final = ((0.731, 91, 1), (-1.414, 37, 0))  # of the two trials: for floats, integers and booleans


def fits(model: nn.Module, stored: Stored, kept: Kept | None = None, ignore: Sequence[str] = ()) -> bool:
    """Return whether an entry of a checkpoint has exactly the names of the model."""
    target = Target.of(model, kept, ignore)
    return any(sets_that_fit(entry, target) for entry in entries_of(stored.content))


def restore(
    model: nn.Module,
    stored: Stored,
    where: str | Callable[[Any], Any] | None,
    *,
    kept: Kept | None = None,
    ignore: Sequence[str] = (),
) -> tuple[str, ...]:
    """Replace all values of the model by those in the content of a checkpoint, and return notes about the result.

    `where`: `Task.checkpoint`: the place of the values in the content, such as `ema`, or a prefix of names, or a
    function that takes the content and returns them; None: the place is found. `kept`: values of `build_model` for
    those that the checkpoint lacks. `ignore`: patterns of names in the checkpoint that the model lacks. Raises
    `EvaluationError` of kind `mismatch` with the names that differ.
    """
    target = Target.of(model, kept, ignore)
    entries = chosen_entries(stored.content, where)
    fitting = different([fit for entry in entries for fit in sets_that_fit(entry, target)])
    if not fitting:
        parts = {each.partition(".")[0] for name in target.own for each in (name, without_wrappers(name))}
        joined = list(joined_entries(stored.content, where, parts))
        fitting = different([fit for entry in joined for fit in sets_that_fit(entry, target)])
        entries = [*entries, *joined]
    fitting = [fit for fit in fitting if not other_shapes(fit, target.own)] or fitting
    if len(fitting) > 1:
        raise mismatch(several(fitting))
    if fitting and not (wrong := other_shapes(fitting[0], target.own)):
        fit = _load(target, stored, fitting[0])
    elif (converted := _load_by_conversion(target, stored, entries, fitting)) is not None:
        fit = converted
    elif fitting:
        raise mismatch(f"shapes differ: {listed(wrong, separator='; ')}")
    else:
        raise mismatch(difference(entries, target))
    notes = type_notes(fit, target) + kept_notes(fit, target)
    return notes if where is not None else notes + unused_notes(stored.content, fit, target)


def _load(target: Target, stored: Stored, fit: WeightSet) -> WeightSet:
    """Load a set that fits by names and shapes. Raises `EvaluationError` if a value is not set by it."""
    own, converts = target.own, _converts(target.model, of_torch=False)
    bound = dict(stored.read(fit.bound, _wanted(target.own, in_place=not converts)))
    _require_same_kind(bound, own)
    _require_equal_tied(bound, own)
    given = {name: own[name] for name in fit.from_build_model}
    if problem := _loaded(target.model, {**bound, **given}, fit.versions):
        raise mismatch(f"torch cannot load {fit.shown}: {problem}")
    if converts:
        changed = [name for name, value in bound.items() if not _is_equal(own[name], value)]
        if changed:
            lost = _not_from(target, {**bound, **given}, fit.versions) - fit.from_build_model
            _require_set(lost & set(changed), fit)
    _put_back(target, fit.from_build_model)
    return fit


def _load_by_conversion(
    target: Target, stored: Stored, entries: Sequence[Entry], fitting: Sequence[WeightSet]
) -> WeightSet | None:
    """Load what torch accepts, though names or shapes are not those of the model; None if torch accepts nothing.

    Raises `EvaluationError` if it accepts several sets, or accepts one and leaves values as they were.
    """
    if not _converts(target.model, of_torch=True):
        return None
    own, ways = target.own, names_of(target)
    possible = [*fitting, *(fit for entry in entries for names in ways for fit in candidates(entry, names, target))]
    possible.sort(key=lambda fit: len(fit.missing) + len(fit.surplus))
    accepted: list[tuple[WeightSet, dict[str, Any]]] = []
    tried: set[frozenset[tuple[str, Any]]] = set()
    for fit in possible:
        given = {**fit.bound, **surplus_values(fit)}
        key = frozenset((name, memory_of(value)) for name, value in given.items())
        if not given or key in tried or len(tried) == _MAX_TRIALS:
            continue
        tried.add(key)
        values = dict(stored.read(given, _wanted(own, in_place=False))) | {
            name: own[name] for name in fit.from_build_model
        }
        if not _loaded(target.model, values, fit.versions):
            accepted.append((fit, values))
    if len(accepted) > 1:
        raise mismatch(several([fit for fit, _ in accepted]))
    if not accepted:
        return None
    fit, values = accepted[0]
    named = {name: value for name, value in values.items() if name in own}
    _require_same_kind(named, own)
    _require_equal_tied(named, own)
    lost = _not_from(target, values, fit.versions) - fit.from_build_model
    counters = frozenset(name for name in lost if name.endswith(BATCHES) and name in target.kept.values)
    allowed = frozenset(target.kept.names(lost))
    _require_set(lost - counters - allowed, fit)
    _put_back(target, fit.from_build_model | counters | allowed)
    return replace(fit, from_build_model=fit.from_build_model | allowed)


def _converts(model: nn.Module, *, of_torch: bool) -> bool:
    """Return whether a module changes what it loads. `of_torch`: torch's own modules count, too."""

    def counts(function: Any) -> bool:
        return of_torch or not str(getattr(function, "__module__", "")).startswith("torch.")

    for module in model.modules():
        methods = (type(module)._load_from_state_dict, type(module).load_state_dict)  # noqa: SLF001
        plain = (nn.Module._load_from_state_dict, nn.Module.load_state_dict)  # noqa: SLF001
        hooks = (*module._load_state_dict_pre_hooks.values(), *module._load_state_dict_post_hooks.values())  # noqa: SLF001
        if any(method is not own and counts(method) for method, own in zip(methods, plain, strict=True)):
            return True
        if any(counts(getattr(hook, "hook", hook)) for hook in hooks):
            return True
    return False


def _loaded(model: nn.Module, values: Mapping[str, Any], versions: Mapping[str, Any] | None) -> str:
    """Let torch load values strictly. Return why it refuses them in one line, or nothing.

    Values of divided tensors are the parts for this process: they are copied here, and torch sees that names are there.
    """
    given: Any = OrderedDict(values)
    for name in _parts(own := values_of(model)):
        if name in values and values[name] is not own[name]:
            local_values(own[name]).copy_(values[name])
            given[name] = own[name]
    if versions is not None:
        given._metadata = OrderedDict(versions)  # noqa: SLF001 - where load_state_dict looks for it
    try:
        model.load_state_dict(given, strict=True)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - modules of the user convert values
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        details = [without_advice(line) for line in lines[1:]] or [without_advice(line) for line in lines]
        more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
        return (details[0] if details else "") + more or type(error).__name__
    return ""


def _parts(own: Mapping[str, Any]) -> dict[str, LocalPart]:
    """Return the parts of the divided tensors of a model that this process has, by name."""
    return {name: part for name, value in own.items() if (part := local_part(value)) is not None}


def _wanted(own: Mapping[str, Any], *, in_place: bool) -> dict[str, LocalPart]:
    """Return the parts that are to be read: into the model if `in_place`, except values that are one in the model."""
    read_into: set[int] = set()
    wanted = {}
    for name, part in _parts(own).items():
        assert part.values is not None, "it is that of a tensor"
        is_free = in_place and part.values.data_ptr() not in read_into
        wanted[name] = part if is_free else replace(part, values=None)
        read_into.add(part.values.data_ptr())
    return wanted


def _not_from(target: Target, values: Mapping[str, Any], versions: Mapping[str, Any] | None) -> set[str]:
    """Load values twice into a model with different values before, and return the names that depend on these."""
    seen: list[dict[str, bytes]] = []
    for fill in _FILLS:
        for value in target.own.values():
            _fill(value, fill)
        if problem := _loaded(target.model, values, versions):
            raise mismatch(f"torch loads the checkpoint only once: {problem}")
        now = values_of(target.model)
        seen.append({name: _bits(value) for name, value in now.items() if isinstance(value, torch.Tensor)})
    return {name for name in seen[0] if seen[0][name] != seen[1].get(name)}


def _fill(value: Any, numbers: tuple[float, int, int]) -> None:
    if not isinstance(value, torch.Tensor) or is_lazy(value) or value.is_quantized or value.is_meta:
        return
    if value.layout != torch.strided:  # torch cannot fill it
        return
    number, integer, truth = numbers
    value = local_values(value)
    with torch.no_grad():
        is_number = value.is_floating_point() or value.is_complex()
        value.detach().fill_(number if is_number else truth if value.dtype == torch.bool else integer)


def _bits(value: torch.Tensor) -> bytes:
    return b"" if is_lazy(value) else hashlib.blake2b(np.ascontiguousarray(bits_of(value)).tobytes()).digest()


def _is_equal(now: Any, stored: Any) -> bool:
    """Return whether a model's value is the stored one, converted to its type."""
    now = local_values(now)
    if not isinstance(now, torch.Tensor) or not isinstance(stored, torch.Tensor) or now.shape != stored.shape:
        return not isinstance(now, torch.Tensor)
    wanted = stored.to(dtype=now.dtype, device=now.device)
    if now.layout != torch.strided:
        return np.array_equal(bits_of(now), bits_of(wanted))
    return torch.equal(now, wanted) or bool(((now == wanted) | ((now != now) & (wanted != wanted))).all())  # noqa: PLR0124


def _require_set(lost: Collection[str], fit: WeightSet) -> None:
    """Raise `EvaluationError` if torch accepts a set that leaves values of the model as they were."""
    if lost:
        raise mismatch(
            f"load_state_dict accepts {fit.shown}, but leaves {listed(sorted(lost))} as build_model made them: save "
            f"them, or, if that is meant, write Task(from_build_model={patterns_for(lost, fit.bound.keys() - lost)!r})"
        )


def _put_back(target: Target, names: Collection[str]) -> None:
    """Give values back that the model was built with; an earlier checkpoint may have replaced them."""
    with torch.no_grad():
        for name in names:
            if name in target.kept.values:
                target.own[name].detach().copy_(target.kept.values[name])


def _require_same_kind(bound: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raise `EvaluationError` for values that torch would convert to other numbers.

    It drops a half of complex values and fractions in the place of integers, and takes quantized weights for numbers,
    without their scale.
    """
    for name, value in bound.items():
        if isinstance(value, np.ndarray):
            raise mismatch(
                f"{name} is an array of numpy in the checkpoint, which load_state_dict refuses: write "
                f"Task(checkpoint=lambda c: {{name: torch.as_tensor(value) for name, value in c.items()}}), with the "
                f"place of the arrays"
            )
        if type(value).__name__ in ("DTensor", "ShardedTensor"):
            raise mismatch(f"the checkpoint holds {DIVIDED}")
        if not (isinstance(value, torch.Tensor) and isinstance(own[name], torch.Tensor)):
            continue
        if value.is_complex() and not own[name].is_complex():
            raise mismatch(f"{name} is complex in the checkpoint and real in the model: build the model of training")
        stored, used = (str(each.dtype).removeprefix("torch.") for each in (value, own[name]))
        if value.dtype in _BYTES and value.ndim and own[name].is_floating_point():
            raise mismatch(
                f"{name} is {stored} in the checkpoint and {used} in the model: it is quantized, and lacks its scale. "
                f"Quantize the model in build_model as training did, or write Task(checkpoint=lambda c: {{name: value "
                f"* scale, …}}) with the scale of each value"
            )
        if value.is_floating_point() and not _is_float(own[name]) and bool((value.double() % 1 != 0).any()):
            raise mismatch(
                f"{name} is {stored} in the checkpoint and {used} in the model, which has no fractions: build the "
                f"model of training"
            )


def _is_float(value: torch.Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()


def _require_equal_tied(bound: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raise `EvaluationError` if parameters that are one in the model differ in the checkpoint."""
    first: dict[tuple[Any, ...], str] = {}
    for name in bound:
        if (place := place_of(own[name])) is None:
            continue
        other = first.setdefault(place, name)
        if other != name and bound[other] is not bound[name] and not torch.equal(bound[other], bound[name]):
            raise mismatch(f"{other} and {name} are one parameter in the model, but differ in the checkpoint")
