"""Seed what a task draws at random while it is imported, so that all workers and all processes draw the same.

A random projection, or a split of the data, may be drawn at the top of a task's file. A worker that is alone would not
notice that another process draws others. `task_loader` imports the task within `SeededDraws`; a note tells the reader.
Imports numpy and no framework.
"""

import random
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final, Self

import numpy as np

_NOTE: Final = (
    "the task draws random numbers with {} while it is imported: they are seeded, so that each worker draws the same. "
    "If training has drawn others, such as another split of the data, give both one seed: np.random.seed(7), "
    "random.seed(7), default_rng(7)"
)


class SeededDraws(ExitStack):
    """Seed the global generators, and unseeded ones of numpy that are made within, unless the task gives a seed."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: tuple[str, ...] = ()
        self._seeded: set[str] = set()  # generators that the task has seeded
        self._made = 0  # generators that the task has made without a seed
        self._is_over = False

    def __enter__(self) -> Self:
        """Seed the generators."""
        self.callback(self._finish, random.getstate(), np.random.get_state(legacy=False))  # noqa: NPY002
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002 - the generator that a task may use
        self._drawn_from = random.getstate(), _state_of_numpy()
        for name in ("torch", "tensorflow"):
            if (of_framework := getattr(sys.modules.get(name), "random", None)) is not None:
                seed = "manual_seed" if name == "torch" else "set_seed"
                getattr(of_framework, seed)(0)
                self._replace(of_framework, seed, self._noting(getattr(of_framework, seed), name))
        self._replace(random, "seed", self._noting(random.seed, "random"))
        self._replace(np.random, "seed", self._noting(np.random.seed, "numpy.random"))
        self._replace(np.random, "default_rng", self._making(np.random.default_rng))
        return self

    def _replace(self, owner: Any, name: str, function: Callable[..., Any]) -> None:
        self.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, function)

    def _noting(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        def noting(*arguments: Any, **named: Any) -> Any:
            self._seeded.add(name)
            return original(*arguments, **named)

        return noting

    def _making(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def default_rng(seed: Any = None) -> Any:
            if seed is not None or self._is_over:
                return original(seed)
            self._made += 1
            return original([0, self._made])

        return default_rng

    def _finish(self, of_python: Any, of_numpy: Any) -> None:
        """Give generators that the task has not seeded the states that they had: each process draws its own again."""
        self._is_over = True
        drawn = ["numpy.random.default_rng()"] if self._made else []
        before, before_of_numpy = self._drawn_from
        if "numpy.random" not in self._seeded:
            drawn += ["numpy.random"] if _state_of_numpy() != before_of_numpy else []
            np.random.set_state(of_numpy)  # noqa: NPY002
        if "random" not in self._seeded:
            # Keras draws the seed of each layer from this generator, and a checkpoint has the values
            drawn += ["random"] if random.getstate() != before and "keras" not in sys.modules else []
            random.setstate(of_python)
        if (tensorflow := sys.modules.get("tensorflow")) is not None and "tensorflow" not in self._seeded:
            tensorflow.random.set_seed(None)
        self.notes = (_NOTE.format(", ".join(drawn)),) if drawn else ()


def _state_of_numpy() -> tuple[int, bytes]:
    state: Any = np.random.get_state(legacy=False)  # noqa: NPY002
    return state["state"]["pos"], state["state"]["key"].tobytes()
