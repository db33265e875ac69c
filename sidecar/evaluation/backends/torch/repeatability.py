"""Make an evaluation with PyTorch repeatable: seed its generators, and find models that keep what ran before.

A model that changes its own variables, or keeps anything else from batch to batch, is refused.
"""

import operator
import sys
from collections.abc import Collection
from copy import copy
from typing import Any, Final

import torch
from torch import nn

from sidecar.evaluation import repeatability
from sidecar.evaluation.backends.torch.restore_notes import patterns_for
from sidecar.evaluation.backends.torch.tensors import bits_of
from sidecar.evaluation.backends.torch.weight_sets import is_lazy, values_of
from sidecar.evaluation.data.digest import digest_of
from sidecar.evaluation.failures import EvaluationError, task_error
from sidecar.evaluation.metrics.in_turn import held_by
from sidecar.system.plain_text import listed

COMPILED: Final = (
    "torch.compile is switched off: the kernels that it chooses depend on the shapes that a process saw before"
)
_NAMES_SHOWN: Final = 3
_OF_EVERY_MODULE: Final = vars(nn.Module()).keys()


def seed(weights: str, eval_set: str, batch: int | bytes) -> None:
    """Seed the generators of torch, numpy and Python for one batch, as the neutral `seed` does."""
    torch.manual_seed(repeatability.seed(weights, eval_set, batch))  # of all devices


def generators() -> tuple[Any, ...]:
    """Return the states of the generators. They differ after a generator was used."""
    devices = (
        [state.numpy().tobytes() for state in torch.cuda.get_rng_state_all()] if torch.cuda.is_initialized() else []
    )
    return torch.get_rng_state().numpy().tobytes(), *repeatability.generators(), *devices


def switch_off_compilation(model: nn.Module) -> tuple[str, ...]:
    """Let compiled modules and functions run as they were written; return a note if a part of the model is compiled."""
    if "torch._dynamo" not in sys.modules:
        return ()
    torch.compiler.set_stance("force_eager")
    is_compiled = any(
        hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )
    return (COMPILED,) if is_compiled else ()


def versions(model: nn.Module) -> dict[str, bytes | int]:
    """Return a value for each variable of the model that differs once the variable has been changed in place.

    For parameters it is the counter of autograd. Some kernels change buffers without counting, such as that of
    BatchNorm, so buffers, which are small, are hashed.
    """
    values: dict[str, bytes | int] = {}
    for name, tensor in model.named_parameters():
        if not tensor.is_inference():  # those have no counter
            values[name] = tensor._version  # noqa: SLF001 - no other way
    hashed = dict(model.named_buffers()) | {name: part for name, part in model.named_parameters() if name not in values}
    return values | {name: digest_of([bits_of(tensor)]) for name, tensor in hashed.items()}


def require_unchanged(model: nn.Module, before: dict[str, bytes | int]) -> None:
    """Raise `EvaluationError` if variables of the model have changed since `versions` returned `before`."""
    now = versions(model)
    changed = [name for name in now if now[name] != before.get(name)]
    if changed:
        raise task_error(
            f"the model changes its own variables while it is evaluated: {listed(changed, _NAMES_SHOWN)}. "
            f"The result would depend on the order of batches: do not call train() in forward or step, and give "
            f"normalisation layers track_running_stats as in training"
        )


def attributes(model: nn.Module) -> dict[str, Any]:
    """Return what the modules of a model hold in plain attributes, with copies of lists and dicts."""
    return {
        f"{place}.{name}" if place else name: copy(value) if isinstance(value, list | dict | set) else value
        for place, module in model.named_modules()
        for name, value in vars(module).items()
        if name not in _OF_EVERY_MODULE
    }


def changed_attributes(model: nn.Module, before: dict[str, Any]) -> tuple[str, ...]:
    """Return the attributes that are new or another object since `attributes` returned `before`."""
    return tuple(
        name for name, value in attributes(model).items() if name not in before or not _is_same(value, before[name])
    )


def require_independent(one: list[Any], fresh: list[Any], suspects: tuple[str, ...]) -> None:
    """Raise `EvaluationError` unless a new model with the same values gave arrays that are equal to the bit."""
    if not repeatability.are_equal(one, fresh):
        raise task_error(
            f"the model keeps what it computed from earlier weights or batches, since a new model with the same "
            f"weights gives other numbers: see its attributes {', '.join(suspects[:_NAMES_SHOWN])}. Compute them in "
            f"forward each time, or register them as buffers that Task(restore=…) computes again"
        )


def drawn_when_built(model: nn.Module, other: nn.Module) -> EvaluationError:
    """Return the error for a model that predicts otherwise than another one with the same values."""
    contents, others = _contents(model), _contents(other)
    names = [name for name, content in contents.items() if content != others.get(name)]
    return task_error(
        f"the model holds random numbers that build_model draws and the checkpoint lacks"
        f"{f', such as {listed(names, _NAMES_SHOWN)}' if names else ''}: built with other ones, it gives other numbers "
        f"with the same weights. Let training save them, with self.register_buffer(…) and persistent=True, or draw "
        f"them with the seed of training, such as torch.randn(…, generator=torch.Generator().manual_seed(7)), or give "
        f"Task(restore=…)",
    )


def digests(model: nn.Module) -> dict[str, bytes]:
    """Return a digest of each value that a checkpoint of the model holds, by name."""
    return {
        name: digest_of([bits_of(value)])
        for name, value in values_of(model).items()
        if isinstance(value, torch.Tensor) and not is_lazy(value)
    }


def places(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Return what differs for each value of the model once it was written into, or was replaced."""
    return {
        name: (id(value), 0 if value.is_inference() else value._version)  # noqa: SLF001 - no other way
        for of_kind in (model.named_parameters, model.named_buffers)
        for name, value in of_kind(remove_duplicate=False)
    }


def not_restored(returned: Any) -> EvaluationError:
    """Return the error about a function of the task that wrote nothing into the model, and what it returned."""
    is_model = isinstance(returned, nn.Module)
    state = "torch.load(path, weights_only=False).state_dict()" if is_model else "torch.load(path)"
    return task_error(
        f"Task(restore=…) writes nothing into the model that it gets"
        f"{f', and the {type(returned).__name__} that it returns is not used' if is_model else ''}: the file may have "
        f"other names, which load_state_dict(…, strict=False) passes over. Leave restore out, as names of wrappers are "
        f"found without it, or write restore=lambda model, path: model.load_state_dict({state})"
    )


def left_by_restore(names: list[str], others: Collection[str]) -> EvaluationError:
    """Return the error about values that a function of the task left as `build_model` drew them."""
    patterns = patterns_for(names, others) or sorted(names)
    return task_error(
        f"Task(restore=…) leaves {listed(names, _NAMES_SHOWN)} with the random values that build_model draws: the "
        f"file may have other names, which load_state_dict(…, strict=False) passes over. Load it with strict=True, or, "
        f"if no prediction needs these values, write Task(from_build_model={patterns!r}) next to restore"
    )


def _contents(model: nn.Module) -> dict[str, str]:
    """Return descriptions of the buffers and of the plain attributes of a model, by name."""
    plain = {
        f"{place}.{name}" if place else name: content
        for place, module in model.named_modules()
        for name, content in held_by(module).items()
        if name not in _OF_EVERY_MODULE
    }
    return plain | {name: digest_of([bits_of(tensor)]).hex() for name, tensor in model.named_buffers()}


def _is_same(value: Any, other: Any) -> bool:
    if value is other:
        return True
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(value[name] is other[name] for name in value)
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(operator.is_, value, other))
    return isinstance(value, bool | int | float | str | set) and type(value) is type(other) and value == other


def require_equal(one: list[Any], other: list[Any], when: str) -> None:
    """Raise `EvaluationError` unless two evaluations of one batch gave arrays that are equal to the bit."""
    advice = (
        "Draw from torch's own generator, and reset what forward keeps. If a hidden state has to go from one part of a "
        "sequence to the next, let an example be the whole sequence, and let the step go through its parts"
    )
    repeatability.require_equal(one, other, when, advice)
