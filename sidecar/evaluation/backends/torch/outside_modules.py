"""Find learned values that a task uses next to its model, and what it keeps of the model's values from call to call.

An embedding that the step takes from a global variable, or a learned criterion that a loss closes over, would have the
values that it was made with: no checkpoint restores them. These are random as a rule, and alike on all workers, which
start with one seed. Embeddings of class names that a step computes once would be those of an earlier checkpoint, or of
the model that was just built, unless they are set back. Both are seen while the model is tried on its first batch.
"""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from weakref import ref

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from sidecar.evaluation.backends.torch.repeatability import attributes
from sidecar.evaluation.backends.torch.tensors import bits_of
from sidecar.evaluation.data.digest import digest_of
from sidecar.evaluation.failures import EvaluationError, task_error
from sidecar.evaluation.task import Task
from sidecar.evaluation.used_objects import used_by
from sidecar.system.plain_text import listed


class Watch(TorchFunctionMode):
    """See which values torch's functions get while a step runs.

    Attributes:
        run: Number of the run of the step; count it up before each.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.run = 0
        self._model = model
        self._restored = {id(value) for value in (*model.parameters(), *_saved_buffers(model))}
        self._used: dict[int, tuple[nn.Parameter, set[int]]] = {}  # with the runs that used it
        self._computed: dict[int, tuple[ref[Any], int]] = {}  # from restored values, in which run
        self._stale: list[torch.Tensor] = []  # of an earlier run
        self._arrays: list[tuple[ref[NDArray[Any]], int]] = []  # of numpy, computed from restored values

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a function of torch, and note what it gets and returns."""
        is_computed = False
        for value in _tensors_in((args, kwargs)):
            if isinstance(value, nn.Parameter):
                self._used.setdefault(id(value), (value, set()))[1].add(self.run)
            made, run = self._computed.get(id(value), (None, 0))
            is_known = made is not None and made() is value
            is_computed |= is_known or id(value) in self._restored
            if is_known and run < self.run:
                self._stale.append(value)
        returned = func(*args, **(kwargs or {}))
        if is_computed and isinstance(returned, np.ndarray):
            self._arrays.append((ref(returned), self.run))
        for value in _tensors_in(returned) if is_computed else ():
            if id(value) not in self._restored:
                self._computed[id(value)] = ref(value), self.run
        return returned

    def require_restored(self, task: Task) -> None:
        """Raise `EvaluationError` for learned values that no checkpoint restores.

        Parameters without gradients count as constants: those of a fixed teacher, for example. What the model itself
        holds in plain attributes is compared with a new model.
        """
        own = {id(value) for value in (*self._model.parameters(), *_held_by(self._model))}
        used = [value for value, runs in self._used.values() if len(runs) > 1]  # others were made by the step
        if outside := [value for value in used if value.requires_grad and id(value) not in own]:
            raise _learned_outside(task, outside)

    def kept(self) -> list[torch.Tensor | NDArray[Any]]:
        """Return what later runs used of the first one, computed with the model's weights, and begin anew."""
        own = {id(value) for value in (*self._model.parameters(), *_held_by(self._model))}
        if any(of_array() is not None for of_array, _ in self._arrays):
            gc.collect()  # what else is alive was kept
        arrays = [(array, run) for of_array, run in self._arrays if (array := of_array()) is not None]
        once = [] if any(run > 1 for _, run in arrays) else [array for array, _ in arrays]  # others replace or gather
        found = [*{id(value): value for value in self._stale if id(value) not in own}.values(), *once]
        self.run, self._computed, self._stale, self._arrays = 0, {}, [], []
        return found


def _learned_outside(task: Task, outside: Sequence[nn.Parameter]) -> EvaluationError:
    """Return the error about parameters that are not those of the model."""
    places = {id(parameter) for parameter in outside}
    shapes = listed([str(tuple(parameter.shape)) for parameter in outside])
    where, name, what = _where(task), "module", f"parameters of the shapes {shapes}"
    for argument in ("predictions", "loss", "step"):
        for place, module in modules_in(getattr(task, argument)).items():
            if any(id(parameter) in places for parameter in module.parameters()):
                where, name = f"Task({argument}=…)", place
                what = f"{name}, a {type(module).__name__} with parameters"
    return task_error(
        f"{where} uses {what} that are not part of the model, so no checkpoint restores them: let build_model return "
        f"both, such as nn.ModuleDict({{'model': …, '{name.rpartition('.')[2]}': …}}), and let Task(step=…) use "
        f"these; or, if the values are right as they are, write {name}.requires_grad_(False)"
    )


def kept_by(task: Task, stale: torch.Tensor | NDArray[Any]) -> EvaluationError:
    """Return the error about a tensor that an earlier call computed, and that cannot be set back or is of its batch."""
    where, name = _where(task), "values"
    for argument in ("loss", "step"):
        for place in used_by(getattr(task, argument), lambda value: value is stale, _is_tensor):
            where, name = f"Task({argument}=…)", place
    return task_error(
        f"{where} uses {name} of shape {tuple(stale.shape)} that an earlier call computed with the model's weights, so "
        f"the next checkpoint would be measured with those of another one: compute it in each call, without a global "
        f"variable or functools.cache, or measure with Task(evaluate={{'name': lambda model: {{'number': …}}}}), which "
        f"is called once for each checkpoint. If a hidden state has to go from one part of a sequence to the next, let "
        f"an example be the whole sequence, and let the step go through its parts"
    )


def _where(task: Task) -> str:
    return "the model" if task.step is None else "Task(step=…)"


def _saved_buffers(model: nn.Module) -> Iterator[torch.Tensor]:
    for module in model.modules():
        passing = module._non_persistent_buffers_set  # noqa: SLF001 - no other way
        yield from (value for name, value in module.named_buffers(recurse=False) if name not in passing)


def _held_by(model: nn.Module) -> Iterator[torch.Tensor]:
    """Yield the tensors in plain attributes of a model, also those of modules that are not registered."""
    for value in attributes(model).values():
        for held in used_by(value, lambda each: isinstance(each, torch.Tensor | nn.Module)).values():
            yield from (*held.parameters(), *held.buffers()) if isinstance(held, nn.Module) else (held,)


def _tensors_in(structure: Any) -> Iterator[torch.Tensor]:
    if isinstance(structure, torch.Tensor):
        yield structure
    elif isinstance(structure, tuple | list | dict):
        for part in structure.values() if isinstance(structure, dict) else structure:
            yield from _tensors_in(part)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


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

    return used_by(root, is_wanted, _is_tensor)


def _values_in(metric: Any) -> dict[str, str]:
    """Return digests of the values of all modules that a metric leads to, by name."""
    return {
        f"{place}.{name}": digest_of([bits_of(value)]).hex()
        for place, module in modules_in(metric).items()
        for name, value in (*module.named_parameters(), *module.named_buffers())
        if not is_lazy(value)
    }
