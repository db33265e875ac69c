"""Decide how tensor parallel processes divide a model: by its `tp_plan`, or not at all.

A class of transformers may have one, and `build_model` may give one to any model.

A plan names layers and how each is divided. Only the activations at their borders pass between the processes, and no
weights. `division` applies what is decided here, by the styles of `torch.distributed.tensor.parallel`.

Sources: transformers 5.23 `distributed/tensor_parallel.py`, whose names of styles are those of `tp_plan`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from sidecar.evaluation.backends.torch.pretrained import is_of_transformers


@dataclass(frozen=True, slots=True)
class _Style:
    """Describe one way to divide a layer. `dimension`: that of its weight which is divided."""

    make: Callable[[], ParallelStyle]
    kind: type[nn.Module]
    dimension: int
    size: str = ""  # name of the layer's size that must be a multiple of the processes; none if any will do


_SPLIT: Final = _Style(lambda: RowwiseParallel(input_layouts=Replicate()), nn.Linear, 1, "in_features")
_GATHERED: Final = _Style(lambda: ColwiseParallel(output_layouts=Replicate()), nn.Linear, 0)
_STYLES: Final = {
    "colwise": _Style(ColwiseParallel, nn.Linear, 0, "out_features"),
    "colwise_gather_output": _GATHERED,
    "colwise_rep": _GATHERED,
    "rowwise": _Style(RowwiseParallel, nn.Linear, 1, "in_features"),
    "rowwise_split_input": _SPLIT,
    "rowwise_rep": _SPLIT,
    "embedding_rowwise": _Style(lambda: RowwiseParallel(input_layouts=Replicate()), nn.Embedding, 0),
}
_WHOLE: Final = frozenset({"replicate", "replicated_with_grad_allreduce"})  # in inference
_HEADS: Final = ("num_attention_heads", "num_key_value_heads")


class NoPlanError(Exception):
    """Tells why a model cannot be divided by a plan."""


def plan_of(model: nn.Module, processes: int) -> dict[str, ParallelStyle]:
    """Return the style of each layer that is divided, by its name in the model. Raises `NoPlanError`."""
    plan = _given(model)
    _require_whole_heads(model, processes)
    chosen: dict[str, _Style] = {}
    for pattern, style in plan.items():
        if any(_matches(name, pattern) for name, _ in model.named_parameters()):
            raise NoPlanError(f"its plan divides {pattern} without a layer")
        layers = {name: layer for name, layer in model.named_modules() if _matches(name, pattern)}
        if layers and style not in _WHOLE:
            if style not in _STYLES:
                raise NoPlanError(f"its plan divides {pattern} by the style {style!r}, not {', '.join(_STYLES)}")
            _require_divisible(layers, _STYLES[style], processes)
            chosen |= dict.fromkeys(layers, _STYLES[style])
    names = {layer: name for name, layer in model.named_modules()}
    for find, style in (("get_input_embeddings", "embedding_rowwise"), ("get_output_embeddings", "colwise_rep")):
        layer = getattr(model, find)() if is_of_transformers(model) else None
        if isinstance(layer, _STYLES[style].kind):  # plans of some classes leave these out, which are large
            chosen.setdefault(names[layer], _STYLES[style])
    for shared in tied(model):
        if len({_divided(chosen, name) for name in shared}) > 1:
            raise NoPlanError(f"{' and '.join(shared)} are one parameter, which its plan divides in different ways")
    return {name: style.make() for name, style in chosen.items()}


def tied(model: nn.Module) -> list[list[str]]:
    """Return the names of each parameter that has several."""
    names: dict[int, list[str]] = {}
    for name, value in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(value), []).append(name)
    return [each for each in names.values() if len(each) > 1]


def _given(model: nn.Module) -> Mapping[str, str]:
    """Return the plan of a model. Raises `NoPlanError` for one by a user that names a layer which is not there."""
    plan = getattr(model, "tp_plan", None)
    if not plan or not isinstance(plan, Mapping):
        raise NoPlanError(f"{type(model).__name__} has no tp_plan")
    names = [name for name, _ in model.named_modules()]
    for pattern in () if is_of_transformers(model) else plan:
        if not any(_matches(name, pattern) for name in names):
            raise NoPlanError(f"its plan divides {pattern!r}, and it has no such layer")
    return plan


def _require_whole_heads(model: nn.Module, processes: int) -> None:
    """Raise `NoPlanError` if processes would share a head of attention, whose code needs all of it."""
    config: Any = getattr(model, "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    for name in _HEADS:
        heads = getattr(config, name, None)
        if isinstance(heads, int) and heads % processes:
            raise NoPlanError(f"{name} = {heads} cannot be divided by {processes}")


def _require_divisible(layers: Mapping[str, nn.Module], style: _Style, processes: int) -> None:
    """Raise `NoPlanError` for a layer that torch does not divide by this style into equal parts."""
    for name, layer in layers.items():
        if not isinstance(layer, style.kind):
            raise NoPlanError(f"{name} is a {type(layer).__name__}, which torch does not divide")
        if style.size and (size := getattr(layer, style.size)) % processes:
            raise NoPlanError(f"{name} has {style.size} = {size}, which cannot be divided by {processes}")


def _divided(chosen: Mapping[str, _Style], parameter: str) -> int | None:
    """Return the dimension of a layer's weight that is divided; None if each process has all of it."""
    layer = parameter.rpartition(".")[0]
    return chosen[layer].dimension if layer in chosen else None


def _matches(name: str, pattern: str) -> bool:
    """Return whether a name is that of a rule, in which `*` is the number of a layer."""
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))
