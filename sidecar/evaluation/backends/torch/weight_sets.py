"""Find the sets of weights in a checkpoint whose names are those of a model.

Names are compared as they are, and without the parts that wrappers add. Prefixes are tried that lead to names of the
model. Of parameters that the model ties, one may be stored for all.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import nn

from sidecar.evaluation.backends.torch.content import WHOLE, Entry
from sidecar.evaluation.backends.torch.tensors import local_values
from sidecar.evaluation.failures import task_error
from sidecar.evaluation.name_patterns import matches, unused
from sidecar.system.plain_text import listed

_WRAPPERS: Final = frozenset(
    {"module", "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module", "_forward_module", "_fpw_module"}
)
"""Parts of names that DDP, torch.compile, activation checkpointing, FSDP, Lightning's Fabric and fairscale add."""

COUNTER: Final = "n_averaged"  # of torch.optim.swa_utils.AveragedModel, next to names that begin with `module.`
BATCHES: Final = "num_batches_tracked"  # torch accepts files of BatchNorm without it; evaluation does not use it


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
            raise task_error(
                f"Task(from_build_model=…) names {listed([repr(pattern) for pattern in wrong])}, but the model has no "
                f"such values: its names are {listed(list(own))}"
            )
        kept = {
            name: value.detach().clone()
            for name, value in own.items()
            if isinstance(value, torch.Tensor)
            and not is_lazy(value)
            and (matches(name, patterns) or name.endswith(BATCHES))
        }
        return cls(tuple(patterns), kept)

    def names(self, missing: Collection[str]) -> set[str]:
        """Return those of the names that may be missing."""
        return {name for name in missing if matches(name, self.patterns)}


@dataclass(frozen=True, slots=True)
class Target:
    """Hold a model that is to be restored, with what the task says about names that differ.

    `own`: its values by name, as `values_of` returns them. `kept`: those that a checkpoint may lack. `ignore`: patterns
    of names in the checkpoint that the model lacks.
    """

    model: nn.Module
    own: Mapping[str, Any]
    kept: Kept
    ignore: Sequence[str]

    @classmethod
    def of(cls, model: nn.Module, kept: Kept | None, ignore: Sequence[str]) -> "Target":
        """Return the target for a model."""
        return cls(model, values_of(model), kept or Kept(), ignore)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSet:
    """A set of weights: the values of one entry below one prefix by the model's names.

    `missing`: names of the model that have no value. `surplus`: names in the file that the model lacks. Both are empty
    for a set that fits.
    """

    entry: Entry
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
        prefix, place = self.prefix.rstrip("."), "" if self.entry.place == WHOLE else self.entry.place
        return f"{place}.{prefix}" if place and prefix else place or prefix

    @property
    def shown(self) -> str:
        """The place for a message."""
        return repr(self.place) if self.place else WHOLE

    def identity(self) -> frozenset[tuple[str, Any]]:
        """Return what is equal for two sets of the same tensors."""
        return frozenset((name, memory_of(value)) for name, value in self.bound.items())


@dataclass(frozen=True, slots=True)
class Names:
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


def names_of(target: Target) -> list[Names]:
    """Return how names are compared: as they are, and without wrappers unless two names of the model would be one."""
    found = []
    for plain in (str, without_wrappers):
        compared = {plain(name): name for name in target.own}
        if len(compared) == len(target.own):
            modules = {plain(f"{place}.") if place else "": place for place, _ in target.model.named_modules()}
            found.append(Names(compared, plain, modules))
    return found


def without_wrappers(name: str) -> str:
    """Return a name without the parts that wrappers add, at any level. The last part is never a wrapper."""
    *outer, last = name.split(".")
    return ".".join([*(part for part in outer if part not in _WRAPPERS), last])


def sets_that_fit(entry: Entry, target: Target) -> list[WeightSet]:
    """Return the sets of an entry whose names are those of the model."""
    fitting: list[WeightSet] = []
    for names in names_of(target):
        found = [fit for fit in candidates(entry, names, target) if not fit.missing and not fit.surplus]
        if prefixes := [fit.prefix for fit in found if fit.prefix]:
            found += _beside(entry, prefixes, names, target)
        fitting += found
    return different(fitting)


def _beside(entry: Entry, prefixes: Sequence[str], names: Names, target: Target) -> list[WeightSet]:
    """Return the set of the names without a prefix, next to sets with prefixes in the same mapping."""
    below = tuple(prefixes)
    rest = {name: value for name, value in entry.values.items() if not names.plain(name).startswith(below)}
    beside = [fit for fit in candidates(replace(entry, values=rest), names, target) if not fit.prefix]
    return [replace(fit, alone=False) for fit in beside if not fit.missing and not fit.surplus]


def candidates(entry: Entry, names: Names, target: Target) -> list[WeightSet]:
    """Return the sets below every prefix of an entry that have names in common with the model, the most alike first."""
    if with_names := {
        name: value for name, value in entry.others.items() if _ends(names.plain(name)) & names.own.keys()
    }:
        entry = replace(entry, values={**entry.values, **with_names}, others={})
    used = {name for name in entry.values if not matches(name, target.ignore)}
    ignored = tuple(sorted(entry.values.keys() - used))
    stored = {names.plain(name): name for name in entry.values if name in used}
    if len(stored) != len(used):  # two names would be one
        return []
    common = Counter({"": 0})
    for name in stored:
        for start in (0, *(at + 1 for at, character in enumerate(name) if character == ".")):
            if name[start:] in names.own:
                common[name[:start]] += 1
    fewest = len(names.own) - len(_repeated(target.own)) - len(target.kept.names(target.own))
    likely = [prefix for prefix, count in common.most_common() if count >= max(1, fewest)]
    shown = list(dict.fromkeys([*likely, *(prefix for prefix, _ in common.most_common(3)), ""]))
    return [_candidate(entry, prefix, stored, names, target, ignored) for prefix in shown]


def _ends(name: str) -> set[str]:
    """Return a name, and what is left of it without one or more of its first parts."""
    return {name, *(name[at + 1 :] for at, character in enumerate(name) if character == ".")}


def _candidate(
    entry: Entry,
    prefix: str,
    stored: Mapping[str, str],
    names: Names,
    target: Target,
    ignored: tuple[str, ...],
) -> WeightSet:
    """Return the values of an entry below a prefix by the model's names, and the names that differ."""
    below = {name[len(prefix) :]: at for name, at in stored.items() if name.startswith(prefix)}
    is_average = below.keys() - {COUNTER} and all(
        ".module." in f".{at}" for name, at in below.items() if name != COUNTER
    )
    if is_average and COUNTER not in names.own:
        below.pop(COUNTER, None)
    dropped = [name for name in below if name not in names.own and matches(name, target.ignore)]
    for name in dropped:
        del below[name]
    bound = {names.own[name]: entry.values[at] for name, at in below.items() if name in names.own}
    surplus = tuple(sorted(name for name in below if name not in names.own))
    bound |= _tied(bound, target.own)
    missing = target.own.keys() - bound.keys()
    given = target.kept.names(missing) if bound else set()
    return WeightSet(
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


def _versions(versions: Mapping[str, Any] | None, prefix: str, names: Names) -> dict[str, Any] | None:
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
    stored = {place: value for name, value in bound.items() if (place := place_of(own[name])) is not None}
    missing = ((name, place_of(own[name])) for name in own.keys() - bound.keys())
    return {name: stored[place] for name, place in missing if place in stored}


def _repeated(own: Mapping[str, Any]) -> set[str]:
    """Return the names of values that are stored under an earlier name, too."""
    places: set[Any] = set()
    repeated = set()
    for name, value in own.items():
        if (place := place_of(value)) is not None:
            if place in places:
                repeated.add(name)
            places.add(place)
    return repeated


def place_of(value: Any) -> tuple[Any, ...] | None:
    """Return what is the same for tensors in the same memory; None for a value that takes none."""
    if not isinstance(value, torch.Tensor) or is_lazy(value) or not value.numel() or value.is_meta:
        return None
    try:
        return value.device, local_values(value).data_ptr(), value.shape, value.stride()
    except RuntimeError:  # a sparse tensor, or one of a class of its own
        return None


def memory_of(value: Any) -> Any:
    """Return what is the same for two tensors in the same memory, and else for the same object."""
    return place_of(value) or id(value)


def is_lazy(value: Any) -> bool:
    """Return whether a value has no shape before the first batch."""
    return isinstance(value, torch.nn.parameter.UninitializedTensorMixin)


def different(fitting: Sequence[WeightSet]) -> list[WeightSet]:
    """Return the sets without those that hold the same tensors as an earlier one."""
    first: dict[frozenset[tuple[str, Any]], WeightSet] = {}
    for fit in fitting:
        first.setdefault(fit.identity(), fit)
    return list(first.values())


def other_shapes(fit: WeightSet, own: Mapping[str, Any]) -> list[str]:
    """Describe the values whose shape is not that of the model. torch takes a single number for a scalar."""
    return [
        f"{name} is {tuple(value.shape)} in the checkpoint and {tuple(own[name].shape)} in the model"
        for name, value in fit.bound.items()
        if isinstance(value, torch.Tensor)
        and isinstance(own[name], torch.Tensor)
        and not is_lazy(own[name])
        and value.shape != own[name].shape
        and not (own[name].ndim == 0 and tuple(value.shape) == (1,))
    ]


def surplus_values(fit: WeightSet) -> dict[str, Any]:
    """Return the values of an entry whose names the model lacks, by their names below the prefix."""
    plain = {without_wrappers(name): value for name, value in fit.entry.values.items()}
    found = {}
    for name in fit.surplus:
        at = f"{fit.prefix}{name}"
        found[name] = fit.entry.values[at] if at in fit.entry.values else plain[at]
    return found
