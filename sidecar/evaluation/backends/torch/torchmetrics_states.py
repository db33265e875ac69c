"""Turn the states of a metric of torchmetrics into states that add up exactly. torchmetrics itself is not imported.

Every batch is treated like a rank of torchmetrics: the metric is reset, updated with the batch, and read. The states of
all batches are merged by the reduction that the metric declares for each (`dist_reduce_fx` of `add_state`), outside of
torchmetrics and without rounding. Lists are gathered in the order of the data, so they are those of one process.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from sidecar.evaluation.backends.torch.tensors import to_numpy
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.failures import CannotBeMergedError, task_error
from sidecar.evaluation.states import ExactSum, GatheredBatches, MinMax, SetStates, state_of
from sidecar.evaluation.states.array_bytes import decode, encode

_REDUCTIONS: Final = {
    "dim_zero_sum": "sum",
    "dim_zero_mean": "mean",
    "dim_zero_max": "max",
    "dim_zero_min": "min",
    "dim_zero_cat": "cat",
    "NoneType": "none",
}
_GATHERED: Final = "gathered"
_MAX_BYTES: Final = 256 << 20  # of an exact sum
_MAX_REPEATED_BYTES: Final = 4 << 20  # of lists
_TOLERANCE: Final = 1e-4
_WORD: Final = 8


class MetricStates:
    """Read, merge and load the states of a metric, and of the metrics that it wraps.

    `label`: describes the metric in messages. `metric`: a metric of torchmetrics.

    Raises:
        EvaluationError: The metric has no states, or states that cannot be merged exactly.
    """

    def __init__(self, label: str, metric: Any) -> None:
        self._label = label
        self._parts = [part for part in metric.modules() if hasattr(part, "_defaults")]
        self._summed: list[tuple[Any, str, str]] = []  # metric, name of the state, reduction; also largest values
        self._listed: list[tuple[Any, str]] = []
        for part in self._parts:
            for name, default in part._defaults.items():  # noqa: SLF001 - torchmetrics has no public way
                reduction = self._reduction(part, name)
                if isinstance(default, list) or reduction in {"cat", "none"}:
                    self._listed.append((part, name))
                else:
                    self._summed.append((part, name, reduction))
        if not self._summed and not self._listed:
            raise CannotBeMergedError(label, "has no states made with add_state")
        metric.reset()
        self._templates = self._values()
        for (_, name, reduction), value in zip(self._summed, self._templates, strict=True):
            if reduction == "sum" and value.any():
                raise self._refused(name, "is a sum that does not start from zero")

    @property
    def width(self) -> int:
        """Number of arrays that `read` returns."""
        return len(self._summed) + bool(self._listed)

    @property
    def has_extremes(self) -> bool:
        """Whether a state is the largest or smallest value of all batches, so that its number is no smooth one."""
        return any(reduction in ("max", "min") for _, _, reduction in self._summed)

    @property
    def are_counts(self) -> bool:
        """Whether all states are sums of integers, so that they are exact for any number of examples at once."""
        are_sums = not self._listed and all(reduction == "sum" for _, _, reduction in self._summed)
        return are_sums and all(template.dtype.kind in "iub" for template in self._templates)

    def use_present_shapes(self) -> None:
        """Take the shapes of the present states as those after any batch. Some metrics know them only then.

        Raises `EvaluationError` for states that are too large, or that hold anything but tensors of real numbers.
        """
        self._templates = self._values()
        for (_, name, _), template, state in zip(self._summed, self._templates, self._states_of_sums(), strict=True):
            size = _WORD * state.rows * state.width
            if size > _MAX_BYTES:
                raise self._refused(
                    name, f"has {template.dtype} {template.shape}, whose exact sum takes {size >> 20} MiB on each rank"
                )

    def read(self) -> list[NDArray[Any]]:
        """Return the present states: an array for each, and all lists as one array of bytes."""
        arrays = [np.array(value) for value in self._values()]
        if self._listed:
            arrays.append(encode([self._tensors(part, name) for part, name in self._listed]))
        return arrays

    def new(self, shard: Shard) -> SetStates:
        """Return empty states."""
        states: SetStates = {}
        for index, ((_, name, reduction), template) in enumerate(zip(self._summed, self._templates, strict=True)):
            try:
                if reduction == "sum":
                    states[str(index)] = ExactSum(template.shape, template.dtype.name)
                for kind in ("max", "min"):
                    if reduction in {kind, "mean"}:
                        states[f"{index}_{kind}"] = MinMax(template.shape, template.dtype.name, kind, shard)
            except TypeError as error:
                raise self._refused(name, f"cannot be merged: {error}") from None
        if self._listed:
            states[_GATHERED] = GatheredBatches(shard)
        return states

    def add(self, states: SetStates, read: list[list[NDArray[Any]]], firsts: Sequence[int | None]) -> None:
        """Add what `read` returned after each of several batches: for each state, a list with one array per batch."""
        for index, arrays in enumerate(read[: len(self._summed)]):
            for state in (states.get(str(index)), states.get(f"{index}_max"), states.get(f"{index}_min")):
                if state is not None:
                    assert isinstance(state, ExactSum | MinMax)
                    self._add_all(state, self._summed[index][1], arrays)
        if self._listed:
            gathered = state_of(states, _GATHERED, GatheredBatches)
            try:
                for content, first in zip(read[-1], firsts, strict=True):
                    gathered.put(first, content)
            except OverflowError as error:
                raise CannotBeMergedError(self._label, f"keeps values of every example ({error})") from None

    def load(self, states: SetStates) -> None:
        """Put merged states into the metric, so that `compute` returns the number of all batches."""
        for index, ((part, name, reduction), template) in enumerate(zip(self._summed, self._templates, strict=True)):
            value = self._merged(states, index, name, reduction)
            if template.dtype.kind in "iu" and not _holds(template.dtype, value):
                raise task_error(
                    f"{self._label} has a state {name!r} of {template.dtype}, which is too small for all batches: "
                    f"give add_state a tensor of int64, such as torch.tensor(0)"
                )
            setattr(part, name, torch.from_numpy(value.astype(template.dtype)).to(self._like(part, name)))
        if self._listed:
            gathered = state_of(states, _GATHERED, GatheredBatches)
            batches = [decode(content) for content in gathered.contents()]
            for index, (part, name) in enumerate(self._listed):
                tensors = [
                    torch.from_numpy(np.array(array)).to(part.device) for batch in batches for array in batch[index]
                ]
                setattr(part, name, self._as_state(part, name, tensors))
        for part in self._parts:
            part._computed, part._update_count = None, 1  # noqa: SLF001 - else compute() returns a former result, or warns

    def load_repeated(self, read: list[NDArray[Any]], times: int) -> bool:
        """Put into the metric what a batch, for which `read` was returned, leaves behind if it comes so many times.

        Return False if that is unknown, as of states that only ranks merge, or would be large, also for its type.
        """
        sums = zip(self._summed, read, strict=False)
        if any(
            reduction == "sum" and array.dtype.kind in "iu" and not _holds(array.dtype, array, times + 1)
            for (_, _, reduction), array in sums
        ):
            return False
        if any(not isinstance(part._defaults[name], list) for part, name in self._listed):  # noqa: SLF001
            return False
        if self._listed and read[-1].nbytes * times > _MAX_REPEATED_BYTES:
            return False
        for (part, name, reduction), array in zip(self._summed, read, strict=False):
            value = array * times if reduction == "sum" else array
            setattr(part, name, torch.from_numpy(np.array(value, array.dtype)).to(self._like(part, name)))
        if self._listed:
            for (part, name), arrays in zip(self._listed, decode(read[-1]), strict=True):
                tensors = [torch.from_numpy(np.array(array)).to(part.device) for array in arrays]
                setattr(part, name, tensors * times)
        for part in self._parts:
            part._computed, part._update_count = None, times  # noqa: SLF001
        return True

    def not_added(self, read: list[NDArray[Any]], times: int) -> str | None:
        """Return the name of a state that is not what the batch leaves behind if it comes once more; None if all are.

        `read`: what `read` returned for the batch. `times`: the number that `load_repeated` got before the metric was
        updated.
        """
        for (_, name, reduction), array, now in zip(self._summed, read, self._values(), strict=False):
            before = (array * times).astype(array.dtype) if reduction == "sum" else array
            if before.shape != now.shape:
                return name
            with np.errstate(all="ignore"):
                change = now.astype(np.float64) - before.astype(np.float64)
                expected = array.astype(np.float64) if reduction == "sum" else np.zeros(array.shape)
                largest = np.abs(array.astype(np.float64)).max(initial=0.0)
                rounding = np.finfo(array.dtype).eps * times if array.dtype.kind == "f" else 0.0
                differs = np.abs(change - expected) > largest * (_TOLERANCE + 4 * rounding)
            if differs.any():  # what is not finite is not comparable
                return name
        for part, name in self._listed:
            value = getattr(part, name)
            if isinstance(value, list) and len(value) % (times + 1):
                return name
        return None

    def _values(self) -> list[NDArray[Any]]:
        return [to_numpy(getattr(part, name)) for part, name, _ in self._summed]

    def _states_of_sums(self) -> list[ExactSum | MinMax]:
        states = self.new(Shard(0, 1))
        found = [
            states.get(str(index), states.get(f"{index}_max", states.get(f"{index}_min")))
            for index in range(len(self._summed))
        ]
        return [state for state in found if isinstance(state, ExactSum | MinMax)]

    def _merged(self, states: SetStates, index: int, name: str, reduction: str) -> NDArray[Any]:
        if reduction == "sum":
            total = state_of(states, str(index), ExactSum)
            return total.integers() if total.is_integral else total.round()
        kinds = ("max", "min") if reduction == "mean" else (reduction,)
        found = []
        for kind in kinds:
            state = state_of(states, f"{index}_{kind}", MinMax)
            found.append(state.values())
        if not all(np.array_equal(found[0], value, equal_nan=True) for value in found):
            raise self._refused(name, "is declared a mean over ranks, but differs from batch to batch")
        return found[0]

    def _add_all(self, state: ExactSum | MinMax, name: str, arrays: list[NDArray[Any]]) -> None:
        try:
            state.add_all(np.stack(arrays))
        except (TypeError, ValueError) as error:
            raise self._refused(name, f"changes its form from batch to batch: {error}") from None
        except OverflowError as error:
            raise self._refused(name, f"counts whole numbers that are too large: {error}") from None

    def _tensors(self, part: Any, name: str) -> list[NDArray[Any]]:
        """Return the tensors of a list, or the only one."""
        value = getattr(part, name)
        listed = list(value) if isinstance(value, list | tuple) else [value]
        if other := next((one for one in listed if not isinstance(one, torch.Tensor)), None):
            raise self._refused(name, f"is a list with {type(other).__name__} in it, and only tensors can be gathered")
        return [to_numpy(tensor) for tensor in listed]

    def _as_state(self, part: Any, name: str, tensors: list[torch.Tensor]) -> Any:
        """Return the tensors of all batches as torchmetrics holds them after it has gathered those of ranks."""
        if isinstance(part._defaults[name], list):  # noqa: SLF001
            return tensors
        if self._reduction(part, name) == "cat":
            return torch.cat([torch.atleast_1d(tensor) for tensor in tensors])
        return torch.stack(tensors) if len(tensors) > 1 else tensors[0]

    def _like(self, part: Any, name: str) -> torch.Tensor:
        default: torch.Tensor = part._defaults[name]  # noqa: SLF001
        return torch.empty(0, dtype=default.dtype, device=part.device)

    def _reduction(self, part: Any, name: str) -> str:
        function = part._reductions[name]  # noqa: SLF001
        known = "torchmetrics" in getattr(function, "__module__", "torchmetrics")
        kind = _REDUCTIONS.get(getattr(function, "__name__", type(function).__name__)) if known else None
        if kind is None:
            raise self._refused(name, "has a reduction of its own, not sum, max, min or cat")
        return kind

    def _refused(self, state: str, reason: str) -> CannotBeMergedError:
        return CannotBeMergedError(self._label, f"has a state {state!r} that {reason}")


def _holds(dtype: np.dtype[Any], integers: NDArray[Any], times: int = 1) -> bool:
    """Return whether a type of integers is large enough for so many times these integers."""
    limits, ends = np.iinfo(dtype), (integers.min(initial=0), integers.max(initial=0))
    return all(limits.min <= int(end) * times <= limits.max for end in ends)
