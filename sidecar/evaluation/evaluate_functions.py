"""Call the functions of `Task(evaluate=…)` with the restored model, each once per evaluation. Imports no framework.

A function of (model) is called on one worker: function i on worker i mod n. A function of (model, shard) is called on
all workers, and returns sums over its part of the questions, which are added up exactly. Nothing is tried out before or
repeated, since a test harness may take hours, so the result's notes say that it was not checked. `rank_evaluation` runs
the functions after the eval sets, adds up the states of all ranks, and asks `EvaluateFunctions` for the numbers.
"""

import ctypes
import json
import math
import numbers
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sidecar.evaluation import repeatability
from sidecar.evaluation.backend import States
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.failures import doing, task_error
from sidecar.evaluation.metrics.metric import MetricResult, value
from sidecar.evaluation.states import ExactSum, GatheredBatches, state_of
from sidecar.evaluation.task import Task, takes_shard
from sidecar.system.plain_text import shortened

EXAMPLES: Final = "examples"
"""Name of the number of examples, or questions, among the numbers that a function returns."""

MOST_NUMBERS: Final = 256
_STATE: Final = "numbers"
_SIGN_OF_LIFE_SECONDS: Final = 5.0
_LARGEST: Final = 2**31 - 1  # the largest seed that TensorFlow takes


class EvaluateFunctions:
    """Call the functions of one task on one rank, and turn what they return into states and numbers.

    `shard`: this rank, and the number of ranks.
    """

    def __init__(self, task: Task, shard: Shard) -> None:
        self._functions = dict(task.evaluate)
        self._seconds, self._shard = task.evaluate_timeout_seconds, shard
        self._sharded = {name for name, function in self._functions.items() if takes_shard(function)}
        self._returned: dict[str, NDArray[np.uint8]] = {}  # by this rank's functions, for the values of this digest
        self._digest = ""

    @property
    def names(self) -> list[str]:
        """Names of the functions, which are those of eval sets in the result."""
        return list(self._functions)

    def run(self, model: Any, digest: Callable[[], str], alive: Callable[[], None]) -> States:
        """Call the functions of this rank, and return the states of all functions, which are neutral for others.

        A second call for the same values returns what the functions returned before, as they may take hours. `digest`
        returns the digest of the model's values, from which random numbers are seeded. `alive` gives a sign of life,
        from another thread, while a function runs. Raises `EvaluationError` if a function ran too long, or returned
        something else than numbers by name.
        """
        if digest() != self._digest:
            self._returned, self._digest = {}, digest()
        states: States = {}
        for index, (name, function) in enumerate(self._functions.items()):
            state = GatheredBatches(self._shard)
            states[name] = {_STATE: state}
            if name in self._sharded or index % self._shard.world_size == self._shard.rank:
                if name not in self._returned:
                    self._returned[name] = self._call(name, function, model, alive)
                state.put(self._shard.rank, self._returned[name])
        return states

    def _call(
        self, name: str, function: Callable[..., Any], model: Any, alive: Callable[[], None]
    ) -> NDArray[np.uint8]:
        """Return the numbers that one function returns, as the bytes of JSON."""
        is_sharded = name in self._sharded
        _seed(self._digest, f"{name} of {self._shard.rank}" if is_sharded else name)
        with doing(f"Task(evaluate={{{name!r}: …}}) ran"), _bounded(name, self._seconds, alive):
            returned = function(model, self._shard) if is_sharded else function(model)
        content = _sums(name, returned) if is_sharded else _numbers(name, returned)
        return np.frombuffer(json.dumps(content).encode(), np.uint8)

    def compute(self, reduced: States) -> dict[str, MetricResult]:
        """Return the numbers of all functions by name, from the states of all ranks."""
        return {name: self._compute(name, _contents(reduced, name)) for name in self._functions}

    def examples(self, reduced: States) -> dict[str, int]:
        """Return the number of examples of each function; 0 for one that returns none."""
        found = {}
        for name in self._functions:
            contents = [content[EXAMPLES] for content in _contents(reduced, name) if EXAMPLES in content]
            given = [float.fromhex(each[0] if isinstance(each, list) else each) for each in contents]
            found[name] = int(sum(given)) if all(map(math.isfinite, given)) else 0
        return found

    def _compute(self, name: str, contents: list[dict[str, Any]]) -> MetricResult:
        if any(content.keys() != contents[0].keys() for content in contents):
            names = sorted({key for content in contents for key in content})
            raise task_error(
                f"Task(evaluate={{{name!r}: …}}) returned other names on other workers, of {', '.join(names)}: return "
                f"each sum on each worker, 0 for none"
            )
        found = {key: _merged([content[key] for content in contents]) for key in contents[0] if key != EXAMPLES}
        notes = ["Task(evaluate=…) is called once, so it is not checked for repeatability"]
        if wrong := [key for key, number in found.items() if not math.isfinite(number)]:
            notes.append(f"{', '.join(wrong)}: not finite")
        return MetricResult({key: value(number, "none") for key, number in found.items()}, {}, tuple(notes))


def _contents(reduced: States, name: str) -> list[dict[str, Any]]:
    state = state_of(reduced[name], _STATE, GatheredBatches)
    return [json.loads(content.tobytes()) for content in state.contents()]


def _merged(given: list[Any]) -> float:
    """Return a number, a sum over workers, or a mean: the sum of totals divided by the sum of counts."""
    if isinstance(given[0], str):
        return _total(given)
    total, count = (_total([pair[place] for pair in given]) for place in (0, 1))
    return total / count if count else math.nan


def _total(hexes: list[str]) -> float:
    total = ExactSum((), "float64")
    for text in hexes:
        total.add(np.float64(float.fromhex(text)))
    return float(total.round())


def _numbers(name: str, returned: Any) -> dict[str, Any]:
    return {key: _hex(name, key, number) for key, number in _mapping(name, returned, "such as {'acc': 0.6}").items()}


def _sums(name: str, returned: Any) -> dict[str, Any]:
    """Return sums as text: of one number, or of a total and a count."""
    example = "of this worker's part, such as {'acc': (hits, questions), 'examples': questions}"
    sums: dict[str, Any] = {}
    for key, given in _mapping(name, returned, example).items():
        if isinstance(given, tuple | list) and len(given) == 2:  # noqa: PLR2004 - total and count
            sums[key] = [_hex(name, key, part) for part in given]
        elif key == EXAMPLES:
            sums[key] = _hex(name, key, given)
        else:
            raise task_error(
                f"Task(evaluate={{{name!r}: …}}) takes a shard, so {key!r} must be (total, count) {example}; found "
                f"{shortened(given)}"
            )
    return sums


def _mapping(name: str, returned: Any, example: str) -> Mapping[str, Any]:
    if not isinstance(returned, Mapping) or not all(isinstance(key, str) and key for key in returned):
        raise task_error(
            f"Task(evaluate={{{name!r}: …}}) must return numbers by name, {example}, found {shortened(returned)}"
        )
    if not 0 < len(returned) <= MOST_NUMBERS:
        raise task_error(
            f"Task(evaluate={{{name!r}: …}}) returned {len(returned)} numbers, 1 to {MOST_NUMBERS} can be published: "
            f"return those that you look at"
        )
    return returned


def _hex(name: str, key: str, number: Any) -> str:
    """Return a number as exact text. Raises `EvaluationError` for anything else."""
    if getattr(number, "shape", None) == () and hasattr(number, "item"):  # of numpy, or a tensor of any framework
        number = number.item()
    elif hasattr(number, "numpy") and getattr(number, "shape", None) == ():
        number = number.numpy().item()
    if isinstance(number, bool) or not isinstance(number, numbers.Real | Decimal):
        raise task_error(
            f"Task(evaluate={{{name!r}: …}}) returned {shortened(number)} as {key!r}, which is not a "
            "number: leave it out"
        )
    try:
        found = float(number)
    except OverflowError:
        raise task_error(f"Task(evaluate={{{name!r}: …}}) returned {key!r} beyond 1.8e308, the largest float") from None
    if key == EXAMPLES and not (found >= 0 and found.is_integer()):
        raise task_error(
            f"Task(evaluate={{{name!r}: …}}) returned {number!r} as 'examples', which must be a whole number from 0"
        )
    return found.hex()


def _seed(weights: str, name: str) -> None:
    """Seed the generators of Python, numpy and the loaded frameworks from the weights and the function's name."""
    chosen = repeatability.seed(weights, name, 0)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(chosen)
    if (tensorflow := sys.modules.get("tensorflow")) and hasattr(tensorflow, "random"):
        tensorflow.random.set_seed(chosen % _LARGEST)


class _TookTooLongError(BaseException):
    """Is raised within a function that runs longer than it may. `except Exception` does not catch it."""


def _interrupt(thread: int) -> None:
    """Raise `_TookTooLongError` in a thread. Only the main thread is interrupted while it waits in the kernel."""
    if thread == threading.main_thread().ident:
        signal.pthread_kill(thread, _INTERRUPT)
    else:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_TookTooLongError))


_INTERRUPT: Final = signal.SIGUSR2
"""The signal that ends a call which waits in the kernel, such as a request to a server that does not answer."""


@contextmanager
def _bounded(name: str, seconds: float, alive: Callable[[], None]) -> Iterator[None]:
    """Give signs of life while the block runs, and end it with `EvaluationError` (`task_error`) after the time."""
    runs, over, lock = threading.get_ident(), threading.Event(), threading.Lock()

    def interrupt(*_: object) -> None:
        if not over.is_set():
            raise _TookTooLongError

    def watch() -> None:
        left = seconds
        while left > 0 and not over.wait(min(left, _SIGN_OF_LIFE_SECONDS)):
            left -= _SIGN_OF_LIFE_SECONDS
            alive()
        with lock:
            if not over.is_set():  # a computation in C delays it; then the daemon ends this silent process
                _interrupt(runs)

    is_main = threading.current_thread() is threading.main_thread()
    previous = signal.signal(_INTERRUPT, interrupt) if is_main else None
    watcher = threading.Thread(target=watch, name="evaluate", daemon=True)
    try:
        alive()
        watcher.start()
        try:
            yield
        finally:
            with lock:
                over.set()
            time.sleep(0)  # an interruption that came at the last moment is raised here
    except _TookTooLongError:
        raise task_error(
            f"Task(evaluate={{{name!r}: …}}) has run for {seconds:g} s, more than "
            f"Task(evaluate_timeout_seconds={seconds:g}) allows"
        ) from None
    finally:
        over.set()
        if is_main:
            signal.signal(_INTERRUPT, previous or signal.SIG_DFL)
        if watcher.is_alive():
            watcher.join()
