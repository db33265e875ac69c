"""Restore a model from the content of a checkpoint: all that `load_state_dict(strict=True)` accepts, without guessing.

A *set* of weights is a part of the content whose names are exactly those of the model, after the names of wrappers are
taken off at any level, such as `module.` of DistributedDataParallel and `_orig_mod.` of torch.compile, and one common
prefix. If none or several sets fit, the error names them and the line to write. Of parameters that the model ties, one
may be stored for all, as in safetensors.

Modules may convert what they load, such as values of an earlier version of their class. Then only `load_state_dict`
knows which names fit. It is tried on the model itself, twice, with different values in the model before: a value that
differs afterwards is not from the checkpoint. After a failed restore the model may hold any values, so each restore
proves that all of them are set.
"""

import hashlib
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from sidecar.evaluation.backends.torch.tensors import bits_of
from sidecar.evaluation.backends.torch.weight_files import DIVIDED, Stored
from sidecar.evaluation.failures import EvaluationError, without_advice
from sidecar.evaluation.name_patterns import matches, unused
from sidecar.system.plain_text import listed

_WRAPPERS: Final = frozenset(
    {"module", "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module", "_forward_module", "_fpw_module"}
)
"""Parts of names that DDP, torch.compile, activation checkpointing, FSDP, Lightning's Fabric and fairscale add."""

_COUNTER: Final = "n_averaged"  # of torch.optim.swa_utils.AveragedModel, next to names that begin with `module.`
_BATCHES: Final = "num_batches_tracked"  # torch accepts files of BatchNorm without it; evaluation does not use it
_EXTRA: Final = "_extra_state"
_QUANTIZED: Final = re.compile(r"scale|absmax|SCB|zero_?point|qzeros|quant_(?:map|state)", re.IGNORECASE)
_ADAPTER: Final = re.compile(r"lora|adapter|ia3", re.IGNORECASE)
_STATES: Final = re.compile(
    r"(?:\w+_)?optim(?:izers?)?(?:_states?|_state_dicts?)?|(?:lr_)?schedulers?(?:_states?|_state_dicts?)?"
    r"|(?:grad_|amp_)?scalers?|rng_states?",
    re.IGNORECASE,
)
"""Keys of states of training that hold tensors of the sizes of the weights, or many of them, and never a model."""

_BYTES: Final = (torch.int8, torch.uint8)  # types of quantized weights
_WHOLE: Final = "the whole file"
_CHOSEN: Final = "Task(checkpoint=…)"  # the place of what a function returned
_DEEPEST: Final = 5
_MAX_CONTAINERS: Final = 20_000
_MAX_PARTS: Final = 64  # of a list: one of more parts holds values, not models
_MAX_TRIALS: Final = 6
_PATTERNS_SHOWN: Final = 5
_FILLS: Final = ((0.731, 91, 1), (-1.414, 37, 0))  # of the two trials: for floats, integers and booleans


@dataclass(frozen=True, slots=True)
class Kept:
    """Hold the values that the model was built with, for those that a checkpoint may lack.

    `patterns`: `Task(from_build_model=…)`. `values`: by name, those that match, and the counters of BatchNorm.
    """

    patterns: tuple[str, ...] = ()
    values: Mapping[str, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, model: nn.Module, patterns: Sequence[str]) -> "Kept":
        """Copy the values of a model that was just built. Raises `EvaluationError` for a pattern of no value in it."""
        own = values_of(model)
        if wrong := unused(patterns, own):
            raise EvaluationError(
                "task_error",
                f"Task(from_build_model=…) names {listed([repr(pattern) for pattern in wrong])}, but the model has no "
                f"such values: its names are {listed(list(own))}",
            )
        kept = {
            name: value.detach().clone()
            for name, value in own.items()
            if isinstance(value, torch.Tensor)
            and not _is_lazy(value)
            and (matches(name, patterns) or name.endswith(_BATCHES))
        }
        return cls(tuple(patterns), kept)

    def names(self, missing: Collection[str]) -> set[str]:
        """Return those of the names that may be missing."""
        return {name for name in missing if matches(name, self.patterns)}


@dataclass(frozen=True, slots=True)
class _Entry:
    """A mapping in the file that may hold the model's values, by its place such as `ema.model`.

    `versions`: what `state_dict()` says about the classes of modules, by their places. `others`: what is no tensor, for
    example the step; some modules save such values, too.
    """

    place: str
    values: Mapping[str, Any]
    versions: Mapping[str, Any] | None = None
    others: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fit:
    """A set of weights: the values of one entry below one prefix by the model's names.

    `missing`: names of the model that have no value. `surplus`: names in the file that the model lacks. Both are empty
    for a set that fits.
    """

    entry: _Entry
    prefix: str
    bound: Mapping[str, Any]
    missing: frozenset[str]
    surplus: tuple[str, ...]
    versions: Mapping[str, Any] | None
    alone: bool = True  # whether the entry holds nothing else
    from_build_model: frozenset[str] = frozenset()
    ignored: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """The value of `Task(checkpoint=…)` that chooses this set."""
        prefix, place = self.prefix.rstrip("."), "" if self.entry.place == _WHOLE else self.entry.place
        return f"{place}.{prefix}" if place and prefix else place or prefix

    @property
    def shown(self) -> str:
        """The place for a message."""
        return repr(self.place) if self.place else _WHOLE

    def identity(self) -> frozenset[tuple[str, Any]]:
        """Return what is equal for two sets of the same tensors."""
        return frozenset((name, _memory(value)) for name, value in self.bound.items())


@dataclass(frozen=True, slots=True)
class _Names:
    """Compare names of a file with those of a model, as they are or without the parts that wrappers add."""

    own: Mapping[str, str]  # by the names that are compared
    plain: Callable[[str], str]
    modules: Mapping[str, str]


def values_of(model: nn.Module) -> dict[str, Any]:
    """Return the state dict of a model, with the values that a `state_dict` of its own leaves out."""
    own = dict(model.state_dict())
    if type(model).state_dict is nn.Module.state_dict:
        return own
    whole = dict(nn.Module.state_dict(model))
    return whole if own.keys() < whole.keys() else own


def fits(model: nn.Module, stored: Stored, kept: Kept | None = None, ignore: Sequence[str] = ()) -> bool:
    """Return whether an entry of a checkpoint has exactly the names of the model."""
    own = values_of(model)
    entries = _entries(stored.content)
    return any(_fits_of(entry, model, own, kept or Kept(), ignore) for entry in entries)


def restore(
    model: nn.Module,
    stored: Stored,
    where: str | Callable[[Any], Any] | None,
    *,
    kept: Kept | None = None,
    ignore: Sequence[str] = (),
) -> tuple[str, ...]:
    """Replace all values of the model by those in the content of a checkpoint, and return notes about the result.

    Args:
        model: The model.
        stored: What `load` returned.
        where: `Task.checkpoint`: the place of the values in the content, such as `ema`, or a prefix of names, or a
            function that takes the content and returns them; None: the place is found.
        kept: Values of `build_model` for those that the checkpoint lacks.
        ignore: Patterns of names in the checkpoint that the model lacks.

    Raises:
        EvaluationError: `mismatch` with the names that differ.
    """
    kept = kept or Kept()
    own = values_of(model)
    entries = _chosen_entries(stored.content, where)
    found = [fit for entry in entries for fit in _fits_of(entry, model, own, kept, ignore)]
    fitting = _different(found)
    fitting = [fit for fit in fitting if not _other_shapes(fit, own)] or fitting
    if len(fitting) > 1:
        raise EvaluationError("mismatch", _several(fitting))
    if fitting and not (wrong := _other_shapes(fitting[0], own)):
        fit = _load(model, stored, fitting[0], own, kept)
    elif (converted := _load_by_conversion(model, stored, entries, fitting, own, kept, ignore)) is not None:
        fit = converted
    elif fitting:
        raise EvaluationError("mismatch", f"shapes differ: {listed(wrong, separator='; ')}")
    else:
        raise EvaluationError("mismatch", _difference(entries, model, own, kept, ignore))
    notes = _type_notes(fit, own) + _kept_notes(fit, kept, ignore)
    return notes if where is not None else notes + _unused_notes(stored.content, fit, own, ignore)


def _chosen_entries(content: Any, where: str | Callable[[Any], Any] | None) -> list[_Entry]:
    """Return the parts of a content that may hold the model's values."""
    if where is None:
        entries = list(_entries(content))
    elif isinstance(where, str):
        entries = [_at(content, where)]
    else:
        entries = [_entry(_CHOSEN, where(content))]
    if not entries:
        raise EvaluationError("mismatch", _no_state_dict(content))
    return entries


# Sets that fit by their names.


def _names(model: nn.Module, own: Mapping[str, Any], *, without_wrappers: bool) -> _Names | None:
    """Return how names are compared; None if two names of the model would be one."""
    plain = _without_wrappers if without_wrappers else str
    compared = {plain(name): name for name in own}
    if len(compared) != len(own):
        return None
    modules = {plain(f"{place}.") if place else "": place for place, _ in model.named_modules()}
    return _Names(compared, plain, modules)


def _without_wrappers(name: str) -> str:
    """Return a name without the parts that wrappers add, at any level. The last part is never a wrapper."""
    *outer, last = name.split(".")
    return ".".join([*(part for part in outer if part not in _WRAPPERS), last])


def _fits_of(entry: _Entry, model: nn.Module, own: Mapping[str, Any], kept: Kept, ignore: Sequence[str]) -> list[_Fit]:
    """Return the sets of an entry whose names are those of the model."""
    fitting: list[_Fit] = []
    for without_wrappers in (False, True):
        names = _names(model, own, without_wrappers=without_wrappers)
        if names is None:
            continue
        candidates = _candidates(entry, names, own, kept, ignore)
        found = [fit for fit in candidates if not fit.missing and not fit.surplus]
        if any(fit.prefix for fit in found):
            rest = _beside(entry, [fit.prefix for fit in found if fit.prefix], names, own, kept, ignore)
            found += rest
        fitting += found
    return _different(fitting)


def _beside(
    entry: _Entry, prefixes: Sequence[str], names: _Names, own: Mapping[str, Any], kept: Kept, ignore: Sequence[str]
) -> list[_Fit]:
    """Return the set of the names without a prefix, next to sets with prefixes in the same mapping."""
    below = tuple(prefixes)
    rest = {name: value for name, value in entry.values.items() if not names.plain(name).startswith(below)}
    beside = [fit for fit in _candidates(replace(entry, values=rest), names, own, kept, ignore) if not fit.prefix]
    return [replace(fit, alone=False) for fit in beside if not fit.missing and not fit.surplus]


def _candidates(entry: _Entry, names: _Names, own: Mapping[str, Any], kept: Kept, ignore: Sequence[str]) -> list[_Fit]:
    """Return the sets below every prefix of an entry that have names in common with the model, the most alike first."""
    if with_names := {
        name: value for name, value in entry.others.items() if _ends(names.plain(name)) & names.own.keys()
    }:
        entry = replace(entry, values={**entry.values, **with_names}, others={})
    used = {name for name in entry.values if not matches(name, ignore)}
    ignored = tuple(sorted(entry.values.keys() - used))
    stored = {names.plain(name): name for name in entry.values if name in used}
    if len(stored) != len(used):  # two names would be one
        return []
    common = Counter({"": 0})
    for name in stored:
        for start in (0, *(at + 1 for at, character in enumerate(name) if character == ".")):
            if name[start:] in names.own:
                common[name[:start]] += 1
    fewest = len(names.own) - len(_repeated(own)) - len(kept.names(own))
    likely = [prefix for prefix, count in common.most_common() if count >= max(1, fewest)]
    shown = list(dict.fromkeys([*likely, *(prefix for prefix, _ in common.most_common(3)), ""]))
    return [_candidate(entry, prefix, stored, names, own, kept, ignore, ignored) for prefix in shown]


def _ends(name: str) -> set[str]:
    """Return a name, and what is left of it without one or more of its first parts."""
    return {name, *(name[at + 1 :] for at, character in enumerate(name) if character == ".")}


def _candidate(
    entry: _Entry,
    prefix: str,
    stored: Mapping[str, str],
    names: _Names,
    own: Mapping[str, Any],
    kept: Kept,
    ignore: Sequence[str],
    ignored: tuple[str, ...],
) -> _Fit:
    """Return the values of an entry below a prefix by the model's names, and the names that differ."""
    below = {name[len(prefix) :]: at for name, at in stored.items() if name.startswith(prefix)}
    is_average = below.keys() - {_COUNTER} and all(
        ".module." in f".{at}" for name, at in below.items() if name != _COUNTER
    )
    if is_average and _COUNTER not in names.own:
        below.pop(_COUNTER, None)
    dropped = [name for name in below if name not in names.own and matches(name, ignore)]
    for name in dropped:
        del below[name]
    bound = {names.own[name]: entry.values[at] for name, at in below.items() if name in names.own}
    surplus = tuple(sorted(name for name in below if name not in names.own))
    bound |= _tied(bound, own)
    missing = own.keys() - bound.keys()
    given = kept.names(missing) if bound else set()
    return _Fit(
        entry=entry,
        prefix=prefix,
        bound=bound,
        missing=frozenset(missing - given),
        surplus=surplus,
        versions=_versions(entry.versions, prefix, names),
        alone=len(below) == len(stored),
        from_build_model=frozenset(given),
        ignored=(*ignored, *sorted(dropped)),
    )


def _versions(versions: Mapping[str, Any] | None, prefix: str, names: _Names) -> dict[str, Any] | None:
    """Return the versions of classes by the places of the model's modules; those of wrappers give way."""
    if not isinstance(versions, Mapping):
        return None
    found = {}
    for place in sorted((place for place in versions if isinstance(place, str)), key=len):
        compared = names.plain(f"{place}.") if place else ""
        if compared.startswith(prefix):
            inner = compared[len(prefix) :]
            found[names.modules.get(inner, inner.rstrip("."))] = versions[place]
    return found


def _tied(bound: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return values for missing names: those of other names for which the model uses the same memory."""
    stored = {place: value for name, value in bound.items() if (place := _place(own[name])) is not None}
    missing = ((name, _place(own[name])) for name in own.keys() - bound.keys())
    return {name: stored[place] for name, place in missing if place in stored}


def _repeated(own: Mapping[str, Any]) -> set[str]:
    """Return the names of values that are stored under an earlier name, too."""
    places: set[Any] = set()
    repeated = set()
    for name, value in own.items():
        if (place := _place(value)) is not None:
            if place in places:
                repeated.add(name)
            places.add(place)
    return repeated


def _place(value: Any) -> tuple[Any, ...] | None:
    """Return what is the same for tensors in the same memory; None for a value that takes none."""
    if not isinstance(value, torch.Tensor) or _is_lazy(value) or not value.numel() or value.is_meta:
        return None
    try:
        return value.device, value.data_ptr(), value.shape, value.stride()
    except RuntimeError:  # a sparse tensor, or one of a class of its own
        return None


def _memory(value: Any) -> Any:
    return _place(value) or id(value)


def _is_lazy(value: Any) -> bool:
    return isinstance(value, torch.nn.parameter.UninitializedTensorMixin)


def _different(fitting: Sequence[_Fit]) -> list[_Fit]:
    """Return the sets without those that hold the same tensors as an earlier one."""
    first: dict[frozenset[tuple[str, Any]], _Fit] = {}
    for fit in fitting:
        first.setdefault(fit.identity(), fit)
    return list(first.values())


def _other_shapes(fit: _Fit, own: Mapping[str, Any]) -> list[str]:
    """Describe the values whose shape is not that of the model. torch takes a single number for a scalar."""
    return [
        f"{name} is {tuple(value.shape)} in the checkpoint and {tuple(own[name].shape)} in the model"
        for name, value in fit.bound.items()
        if isinstance(value, torch.Tensor)
        and isinstance(own[name], torch.Tensor)
        and not _is_lazy(own[name])
        and value.shape != own[name].shape
        and not (own[name].ndim == 0 and tuple(value.shape) == (1,))
    ]


def _several(fitting: Sequence[_Fit]) -> str:
    """Say which sets there are, and how to choose one."""
    lines = []
    for fit in fitting:
        if fit.entry.place == _CHOSEN:
            lines.append(f"a function that returns the values below {fit.prefix!r} alone")
        elif fit.alone or fit.prefix:
            lines.append(f"Task(checkpoint={fit.place!r})")
        else:
            others = [other.prefix for other in fitting if other.prefix and other.entry.place == fit.entry.place]
            lines.append(f"Task(ignore={others!r}) for the names without a prefix")
    return (
        f"{' and '.join(fit.shown for fit in fitting[:_PATTERNS_SHOWN])} in the checkpoint hold values for the whole "
        f"model: choose one with {' or '.join(lines[:_PATTERNS_SHOWN])}"
    )


# Load.


def _load(model: nn.Module, stored: Stored, fit: _Fit, own: Mapping[str, Any], kept: Kept) -> _Fit:
    """Load a set that fits by names and shapes. Raises `EvaluationError` if a value is not set by it."""
    bound = dict(stored.read(fit.bound))
    _require_same_kind(bound, own)
    _require_equal_tied(bound, own)
    given = {name: own[name] for name in fit.from_build_model}
    if problem := _loaded(model, {**bound, **given}, fit.versions):
        raise EvaluationError("mismatch", f"torch cannot load {fit.shown}: {problem}")
    if _converts(model, of_torch=False):
        changed = [name for name, value in bound.items() if not _is_equal(own[name], value)]
        if changed:
            lost = _not_from(model, {**bound, **given}, fit.versions, own) - fit.from_build_model
            _require_set(lost & set(changed), fit)
    _put_back(own, kept, fit.from_build_model)
    return fit


def _load_by_conversion(
    model: nn.Module,
    stored: Stored,
    entries: Sequence[_Entry],
    fitting: Sequence[_Fit],
    own: Mapping[str, Any],
    kept: Kept,
    ignore: Sequence[str],
) -> _Fit | None:
    """Load what torch accepts, though names or shapes are not those of the model; None if torch accepts nothing.

    Raises `EvaluationError` if it accepts several sets, or accepts one and leaves values as they were.
    """
    if not _converts(model, of_torch=True):
        return None
    candidates: list[_Fit] = list(fitting)
    for entry in entries:
        for without_wrappers in (False, True):
            names = _names(model, own, without_wrappers=without_wrappers)
            candidates += [] if names is None else _candidates(entry, names, own, kept, ignore)
    candidates.sort(key=lambda fit: len(fit.missing) + len(fit.surplus))
    accepted: list[tuple[_Fit, dict[str, Any]]] = []
    tried: set[frozenset[tuple[str, Any]]] = set()
    for fit in candidates:
        given = {**fit.bound, **_surplus_values(fit)}
        key = frozenset((name, _memory(value)) for name, value in given.items())
        if not given or key in tried or len(tried) == _MAX_TRIALS:
            continue
        tried.add(key)
        values = dict(stored.read(given)) | {name: own[name] for name in fit.from_build_model}
        if not _loaded(model, values, fit.versions):
            accepted.append((fit, values))
    if len(accepted) > 1:
        raise EvaluationError("mismatch", _several([fit for fit, _ in accepted]))
    if not accepted:
        return None
    fit, values = accepted[0]
    named = {name: value for name, value in values.items() if name in own}
    _require_same_kind(named, own)
    _require_equal_tied(named, own)
    lost = _not_from(model, values, fit.versions, own) - fit.from_build_model
    counters = frozenset(name for name in lost if name.endswith(_BATCHES) and name in kept.values)
    allowed = frozenset(kept.names(lost))
    _require_set(lost - counters - allowed, fit)
    _put_back(own, kept, fit.from_build_model | counters | allowed)
    return replace(fit, from_build_model=fit.from_build_model | allowed)


def _surplus_values(fit: _Fit) -> dict[str, Any]:
    """Return the values of an entry whose names the model lacks, by their names below the prefix."""
    plain = {_without_wrappers(name): value for name, value in fit.entry.values.items()}
    found = {}
    for name in fit.surplus:
        at = f"{fit.prefix}{name}"
        found[name] = fit.entry.values[at] if at in fit.entry.values else plain[at]
    return found


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
    """Let torch load values strictly. Return why it refuses them in one line, or nothing."""
    given: Any = OrderedDict(values)
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


def _not_from(
    model: nn.Module, values: Mapping[str, Any], versions: Mapping[str, Any] | None, own: Mapping[str, Any]
) -> set[str]:
    """Load values twice into a model with different values before, and return the names that depend on these."""
    seen: list[dict[str, bytes]] = []
    for fill in _FILLS:
        for value in own.values():
            _fill(value, fill)
        if problem := _loaded(model, values, versions):
            raise EvaluationError("mismatch", f"torch loads the checkpoint only once: {problem}")
        now = values_of(model)
        seen.append({name: _bits(value) for name, value in now.items() if isinstance(value, torch.Tensor)})
    return {name for name in seen[0] if seen[0][name] != seen[1].get(name)}


def _fill(value: Any, numbers: tuple[float, int, int]) -> None:
    if not isinstance(value, torch.Tensor) or _is_lazy(value) or value.is_quantized or value.is_meta:
        return
    number, integer, truth = numbers
    with torch.no_grad():
        is_number = value.is_floating_point() or value.is_complex()
        value.detach().fill_(number if is_number else truth if value.dtype == torch.bool else integer)


def _bits(value: torch.Tensor) -> bytes:
    return b"" if _is_lazy(value) else hashlib.blake2b(np.ascontiguousarray(bits_of(value)).tobytes()).digest()


def _is_equal(now: Any, stored: Any) -> bool:
    """Return whether a model's value is the stored one, converted to its type."""
    if not isinstance(now, torch.Tensor) or not isinstance(stored, torch.Tensor) or now.shape != stored.shape:
        return not isinstance(now, torch.Tensor)
    wanted = stored.to(dtype=now.dtype, device=now.device)
    return torch.equal(now, wanted) or bool(((now == wanted) | ((now != now) & (wanted != wanted))).all())  # noqa: PLR0124


def _require_set(lost: Collection[str], fit: _Fit) -> None:
    """Raise `EvaluationError` if torch accepts a set that leaves values of the model as they were."""
    if lost:
        raise EvaluationError(
            "mismatch",
            f"load_state_dict accepts {fit.shown}, but leaves {listed(sorted(lost))} as build_model made them: save "
            f"them, or, if that is meant, write Task(from_build_model={_patterns(lost, fit.bound.keys() - lost)!r})",
        )


def _put_back(own: Mapping[str, Any], kept: Kept, names: Collection[str]) -> None:
    """Give values back that the model was built with; an earlier checkpoint may have replaced them."""
    with torch.no_grad():
        for name in names:
            if name in kept.values:
                own[name].detach().copy_(kept.values[name])


def _require_same_kind(bound: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raise `EvaluationError` for values that torch would convert to other numbers.

    It drops a half of complex values and fractions in the place of integers, and takes quantized weights for numbers,
    without their scale.
    """
    for name, value in bound.items():
        if isinstance(value, np.ndarray):
            raise EvaluationError(
                "mismatch",
                f"{name} is an array of numpy in the checkpoint, which load_state_dict refuses: write "
                f"Task(checkpoint=lambda c: {{name: torch.as_tensor(value) for name, value in c.items()}}), with the "
                f"place of the arrays",
            )
        if type(value).__name__ in ("DTensor", "ShardedTensor"):
            raise EvaluationError("mismatch", f"the checkpoint holds {DIVIDED}")
        if not (isinstance(value, torch.Tensor) and isinstance(own[name], torch.Tensor)):
            continue
        if value.is_complex() and not own[name].is_complex():
            raise EvaluationError(
                "mismatch", f"{name} is complex in the checkpoint and real in the model: build the model of training"
            )
        stored, used = (str(each.dtype).removeprefix("torch.") for each in (value, own[name]))
        if value.dtype in _BYTES and value.ndim and own[name].is_floating_point():
            raise EvaluationError(
                "mismatch",
                f"{name} is {stored} in the checkpoint and {used} in the model: it is quantized, and lacks its scale. "
                f"Quantize the model in build_model as training did, or write Task(checkpoint=lambda c: {{name: value "
                f"* scale, …}}) with the scale of each value",
            )
        if value.is_floating_point() and not _is_float(own[name]) and bool((value.double() % 1 != 0).any()):
            raise EvaluationError(
                "mismatch",
                f"{name} is {stored} in the checkpoint and {used} in the model, which has no fractions: build the "
                f"model of training",
            )


def _is_float(value: torch.Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()


def _require_equal_tied(bound: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raise `EvaluationError` if parameters that are one in the model differ in the checkpoint."""
    first: dict[tuple[Any, ...], str] = {}
    for name in bound:
        if (place := _place(own[name])) is None:
            continue
        other = first.setdefault(place, name)
        if other != name and bound[other] is not bound[name] and not torch.equal(bound[other], bound[name]):
            raise EvaluationError(
                "mismatch", f"{other} and {name} are one parameter in the model, but differ in the checkpoint"
            )


# Look through the content.


def _entries(content: Any) -> Iterator[_Entry]:
    """Yield every part of a content with named tensors. The states of optimizers are left out."""
    waiting: list[tuple[Any, str, int]] = [(content, "", 0)]
    seen: set[int] = set()
    while waiting and len(seen) < _MAX_CONTAINERS:
        inner, place, depth = waiting.pop(0)
        if id(inner) in seen:
            continue
        seen.add(id(inner))
        parts = _parts(inner)
        if any(isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in parts.items()):
            yield _entry(place or _WHOLE, inner)
        if depth < _DEEPEST and not isinstance(inner, nn.Module):
            waiting += [
                (value, f"{place}.{name}" if place else str(name), depth + 1)
                for name, value in parts.items()
                if not _is_state(name) and _is_container(value)
            ]


def _is_state(name: Any) -> bool:
    return isinstance(name, str) and _STATES.fullmatch(name.partition(".")[0]) is not None


def _is_container(value: Any) -> bool:
    return isinstance(value, Mapping | list | tuple | nn.Module) or (
        hasattr(value, "__dict__") and not isinstance(value, torch.Tensor | type) and not callable(value)
    )


def _parts(container: Any) -> Mapping[Any, Any]:
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


def _entry(place: str, container: Any) -> _Entry:
    """Return the tensors of a mapping or module by name, and the extra states of modules.

    Other values stand next to the tensors in some files, such as the step. Raises `EvaluationError` for anything else.
    """
    if not isinstance(container, Mapping | nn.Module) and not _parts(container):
        raise EvaluationError(
            "mismatch", f"Task(checkpoint=…) must lead to a state dict, found {type(container).__name__}"
        )
    parts = _parts(container)
    values = {
        name: value
        for name, value in parts.items()
        if isinstance(name, str)
        and (isinstance(value, torch.Tensor | np.ndarray) or name.rpartition(".")[2] == _EXTRA)
        and not isinstance(value, np.generic)
    }
    others = {name: value for name, value in parts.items() if isinstance(name, str) and name not in values}
    return _Entry(place, values, getattr(parts, "_metadata", None), others)


def _at(content: Any, where: str) -> _Entry:
    """Return the values at a place such as `ema.model`, or below a prefix of names, such as `ema_model`.

    Raises `EvaluationError` if there is neither.
    """
    inner, names = content, where.split(".") if where else []
    while names:
        parts = {str(name): value for name, value in _parts(inner).items()}
        joined = next((n for n in range(len(names), 0, -1) if ".".join(names[:n]) in parts), 0)
        if not joined:
            break
        inner, names = parts[".".join(names[:joined])], names[joined:]
    if not names:
        return _entry(where or _WHOLE, inner)
    prefix = ".".join(names)
    if not prefix.endswith("."):
        prefix += "."
    found = _entry(where, inner) if isinstance(inner, Mapping | nn.Module) else _Entry(where, {})
    below = {name.removeprefix(prefix): value for name, value in found.values.items() if name.startswith(prefix)}
    if not below and (start := prefix[:-1]):
        below = {name.removeprefix(start): value for name, value in found.values.items() if name.startswith(start)}
    if not below:
        raise EvaluationError(
            "mismatch", f"Task(checkpoint={where!r}) is not in the checkpoint, which holds {_held(inner)}"
        )
    versions = None
    if isinstance(found.versions, Mapping):
        versions = {
            f"{name}.".removeprefix(prefix).rstrip("."): value
            for name, value in found.versions.items()
            if isinstance(name, str) and f"{name}.".startswith(prefix)
        }
    return _Entry(where, below, versions)


def _held(inner: Any) -> str:
    """Describe the names in a content for a message: its keys, or the beginnings of names."""
    if not _parts(inner):
        return f"a {type(inner).__name__}"
    keys = [str(name) for name in _parts(inner)]
    short = keys if len(keys) <= _PATTERNS_SHOWN else dict.fromkeys(key.partition(".")[0] for key in keys)
    return listed([repr(key) for key in short])


# Messages and notes.


def _no_state_dict(content: Any) -> str:
    """Say that a content has no named tensors, and how to save them."""
    kind = type(content).__name__
    arrays = [place for place, part in _places(content) if isinstance(part, Mapping) and _named(part, np.ndarray)]
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


def _places(content: Any, place: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the containers of a content with their places."""
    yield place, content
    if depth < _DEEPEST and not isinstance(content, nn.Module):
        for name, part in _parts(content).items():
            if _is_container(part) and not _is_state(name):
                yield from _places(part, f"{place}.{name}" if place else str(name), depth + 1)


def _difference(
    entries: Sequence[_Entry],
    model: nn.Module,
    own: Mapping[str, Any],
    kept: Kept,
    ignore: Sequence[str],
) -> str:
    """Describe how the entry with the most names in common differs from the model, and the line that may be missing."""
    ways = [names for way in (True, False) if (names := _names(model, own, without_wrappers=way)) is not None]
    found = [fit for entry in entries for names in ways for fit in _candidates(entry, names, own, kept, ignore)]
    if not found:
        return f"the names in {entries[0].place!r} are not distinct without the parts that wrappers add"
    best = max(found, key=lambda fit: (len(fit.bound), -len(fit.surplus), not fit.prefix))
    parts = [f"the model of Task(build_model=…) does not match {best.shown} in the checkpoint"]
    if best.missing:
        parts.append(f"missing there: {listed(sorted(best.missing))}")
    if best.surplus:
        parts.append(f"only there: {listed(list(best.surplus))}")
    return "; ".join([*parts, *_remedies(best, own)])


def _remedies(fit: _Fit, own: Mapping[str, Any]) -> list[str]:
    """Return what may be meant by missing or surplus names, with the line to write."""
    if not fit.bound:
        return ["no name is the same: build the model of training"]
    of_layers = [name for name in fit.surplus if "." in name or "weight" in name]  # not the model's own `logit_scale`
    if any(_QUANTIZED.search(name) for name in of_layers):
        return ["the values only there belong to quantized weights: build the quantized model, as training did"]
    shapes = [_shape(own[name]) for name in fit.missing]
    if any(_shape(value) in shapes for value in _surplus_values(fit).values()):
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
            lines.append(f"{setting}={_patterns(names, others)!r}")
            reasons.append(reason)
    if any(line.endswith("=[]") for line in lines):  # no few patterns describe these names
        return ["build the model of training"]
    return [f"either build the model of training, or, if {' and '.join(reasons)}, write Task({', '.join(lines)})"]


def _shape(value: Any) -> tuple[int, ...] | None:
    return tuple(value.shape) if isinstance(value, torch.Tensor) and not _is_lazy(value) else None


def _patterns(names: Collection[str], others: Collection[str]) -> list[str]:
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
    while left and len(found) < _PATTERNS_SHOWN:
        best = max(usable, key=lambda pattern: sum(matches(name, [pattern]) for name in left), default=None)
        if best is None or not any(matches(name, [best]) for name in left):
            return []
        found.append(best)
        left = {name for name in left if not matches(name, [best])}
    return [] if left else found


def _type_notes(fit: _Fit, own: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a note if values are stored with another type than the model has, since they are converted."""
    pairs = {
        (str(value.dtype).removeprefix("torch."), str(own[name].dtype).removeprefix("torch."))
        for name, value in fit.bound.items()
        if isinstance(value, torch.Tensor) and isinstance(own[name], torch.Tensor) and value.dtype != own[name].dtype
    }
    place = fit.place or _WHOLE
    return tuple(
        f"weights are stored as {stored} in {place} and evaluated as {used}, the model's type"
        for stored, used in sorted(pairs)
    )


def _kept_notes(fit: _Fit, kept: Kept, ignore: Sequence[str]) -> tuple[str, ...]:
    """Return notes about values that are not from the checkpoint, and about values in it that were left out."""
    notes = []
    if fit.from_build_model:
        names = sorted(fit.from_build_model)
        notes.append(f"values of build_model, which the checkpoint lacks (from_build_model): {listed(names)}")
    elif kept.patterns:
        notes.append("the checkpoint holds all values: from_build_model had no effect")
    if fit.ignored:
        notes.append(f"values of the checkpoint that were left out (ignore): {listed(list(fit.ignored))}")
    elif ignore:
        notes.append("the checkpoint holds no value that ignore names")
    return tuple(notes)


def _unused_notes(content: Any, fit: _Fit, own: Mapping[str, Any], ignore: Sequence[str]) -> tuple[str, ...]:
    """Return a note if the content holds further values that look like those of the model: maybe they were meant."""
    shapes = {
        _without_wrappers(name): tuple(value.shape)
        for name, value in own.items()
        if isinstance(value, torch.Tensor) and not _is_lazy(value) and value.is_floating_point()
    }
    used = {_memory(value) for value in fit.bound.values()}
    places = list(dict.fromkeys(_alike(content, shapes, used, ignore))) if shapes else []
    if places:
        note = f"the checkpoint also holds values like those of the model in {listed(places)}, which were not used"
        return (f"{note}; Task(checkpoint=…) chooses",)
    others = [name for name in fit.entry.values if not _without_wrappers(name).startswith(fit.prefix)]
    others = [name for name in others if not name.startswith(fit.prefix) and name.rpartition(".")[2] != _COUNTER]
    others = [name for name in others if not matches(name, ignore)]
    return (f"values without the prefix {fit.prefix!r} were not used: {listed(others)}",) if others else ()


def _alike(
    content: Any, shapes: Mapping[str, tuple[int, ...]], used: Collection[Any], ignore: Sequence[str]
) -> Iterator[str]:
    """Yield the places of further values with at least half of the model's names, or with all of its shapes."""
    wanted = Counter(shapes.values())
    for place, part in islice(_places(content), _MAX_CONTAINERS):
        values = _parts(part)
        if isinstance(part, list | tuple):
            values = dict(enumerate(part))
        left = {
            _without_wrappers(str(name)): tuple(value.shape)
            for name, value in values.items()
            if isinstance(value, torch.Tensor)
            and not _is_state(name)
            and not matches(str(name), ignore)
            and _memory(value) not in used
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
            yield repr(".".join(one for one in (place, prefix) if one)) if place or prefix else _WHOLE
