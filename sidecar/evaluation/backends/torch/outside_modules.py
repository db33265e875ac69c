"""Find modules with parameters that a task uses next to its model: no checkpoint restores them.

An embedding that the step takes from a global variable, or a learned criterion that a loss closes over, would have the
values that it was made with. These are random as a rule, and alike on all workers, which start with one seed.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from sidecar.evaluation.backends.torch.tensors import bits_of
from sidecar.evaluation.data.digest import digest_of
from sidecar.evaluation.failures import task_error
from sidecar.evaluation.task import Task
from sidecar.evaluation.used_objects import used_by
from sidecar.system.plain_text import listed


def require_restored(task: Task, model: nn.Module) -> None:
    """Raise `EvaluationError` if the step or the loss uses parameters that are not those of the model.

    Parameters without gradients count as constants: those of a fixed teacher, for example.
    """
    own = {id(parameter) for parameter in model.parameters()}
    for argument in ("step", "loss", "predictions"):
        for name, module in modules_in(getattr(task, argument)).items():
            learned = [one for one in module.parameters() if one.requires_grad]
            if learned and not any(id(parameter) in own for parameter in module.parameters()):
                raise task_error(
                    f"Task({argument}=…) uses {name}, a {type(module).__name__} with parameters that are not part of "
                    f"the model, so no checkpoint restores them: let build_model return both, such as "
                    f"nn.ModuleDict({{'model': …, '{name.rpartition('.')[2]}': …}}), and let Task(step=…) use these; "
                    f"or, if the values are right as they are, write {name}.requires_grad_(False)"
                )


def require_repeated(metrics: Sequence[Any], again: Sequence[Any]) -> None:
    """Raise `EvaluationError` if a metric has a module with other values when the task makes it again."""
    for one, other in zip(metrics, again, strict=True):
        values, others = _values_in(one), _values_in(other)
        if names := [name for name, value in values.items() if others.get(name, value) != value]:
            metric = getattr(one, "name", None) or type(one).__name__
            raise task_error(
                f"metric {metric!r} holds random numbers, in {listed(names)}: "
                f"Task(metrics=…) makes other ones each time. Give it the weights that it should have, such as "
                f"net.load_state_dict(torch.load(path)), or call torch.manual_seed(0) before it is made"
            )


def modules_in(root: Any) -> dict[str, nn.Module]:
    """Return the modules with parameters that a function or an object leads to, by the names of variables."""

    def is_wanted(value: Any) -> bool:
        return isinstance(value, nn.Module) and any(True for _ in value.parameters())

    return used_by(root, is_wanted, lambda value: isinstance(value, torch.Tensor))


def _values_in(metric: Any) -> dict[str, str]:
    """Return digests of the values of all modules that a metric leads to, by name."""
    return {
        f"{place}.{name}": digest_of([bits_of(value)]).hex()
        for place, module in modules_in(metric).items()
        for name, value in (*module.named_parameters(), *module.named_buffers())
        if not is_lazy(value)
    }
