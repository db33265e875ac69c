"""Make an evaluation repeatable: seed random numbers, and find models whose result depends on what ran before.

The number of workers decides which batches a process evaluates, and in which order. So the result of a batch must
depend on the weights and the batch alone. If the model draws random numbers, generators are seeded from both before
each batch. A model that changes its own variables, or keeps anything else from batch to batch, is refused.
"""

import hashlib
import random
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from sidecar.evaluation.backends.torch.tensors import bits_of
from sidecar.evaluation.data.digest import digest_of
from sidecar.evaluation.failures import EvaluationError

NOTE: Final = (
    "the model draws random numbers in an evaluation: they are seeded by its weights and each batch's number, so the "
    "same weights get the same numbers"
)
_NAMES_SHOWN: Final = 3


def seed(weights: str, eval_set: str, batch: int | bytes) -> None:
    """Seed the generators of torch, numpy and Python for one batch.

    `weights`: digest of the model's values. `batch`: the number of the batch, or its digest if that is unknown.
    """
    number = str(batch) if isinstance(batch, int) else batch.hex()
    digest = hashlib.sha256(f"{weights} {eval_set} {number}".encode(errors="surrogateescape")).digest()
    chosen = int.from_bytes(digest[:8], "big")
    torch.manual_seed(chosen)  # of all devices
    np.random.seed(chosen & 0xFFFFFFFF)  # noqa: NPY002 - the generator that a task may use
    random.seed(chosen)


def generators() -> tuple[Any, ...]:
    """Return the states of the generators. They differ after a generator was used."""
    numpy_state = np.random.get_state(legacy=False)  # noqa: NPY002
    assert isinstance(numpy_state, dict)
    devices = (
        [state.numpy().tobytes() for state in torch.cuda.get_rng_state_all()] if torch.cuda.is_initialized() else []
    )
    return (
        torch.get_rng_state().numpy().tobytes(),
        numpy_state["state"]["pos"],
        numpy_state["state"]["key"].tobytes(),
        random.getstate(),
        *devices,
    )


def versions(model: nn.Module) -> dict[str, bytes | int]:
    """Return a value for each variable of the model that differs once the variable has been changed in place.

    For parameters it is the counter of autograd. Some kernels change buffers without counting, such as that of
    BatchNorm, so buffers, which are small, are hashed.
    """
    counted = {name: tensor._version for name, tensor in model.named_parameters()}  # noqa: SLF001 - no other way
    return counted | {name: digest_of([bits_of(tensor)]) for name, tensor in model.named_buffers()}


def require_unchanged(model: nn.Module, before: dict[str, bytes | int]) -> None:
    """Raise `EvaluationError` if variables of the model have changed since `versions` returned `before`."""
    now = versions(model)
    changed = [name for name in now if now[name] != before.get(name)]
    if changed:
        more = f" and {len(changed) - _NAMES_SHOWN} more" if len(changed) > _NAMES_SHOWN else ""
        raise EvaluationError(
            "task_error",
            f"the model changes its own variables while it is evaluated: {', '.join(changed[:_NAMES_SHOWN])}{more}. "
            f"The result would depend on the order of batches: do not call train() in forward or step, and give "
            f"normalisation layers track_running_stats as in training",
        )


def require_equal(one: list[Any], other: list[Any], when: str) -> None:
    """Raise `EvaluationError` unless two evaluations of one batch gave arrays that are equal to the bit."""
    equal = len(one) == len(other) and all(
        first.shape == second.shape and first.dtype == second.dtype and first.tobytes() == second.tobytes()
        for first, second in zip(one, other, strict=True)
    )
    if not equal:
        raise EvaluationError(
            "task_error",
            f"the first batch evaluated {when} gives different numbers: the model draws random numbers that cannot be "
            f"seeded from outside, or keeps something from batch to batch. Draw from torch's own generator, and reset "
            f"what forward keeps",
        )
