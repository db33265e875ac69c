"""Bound the tokens and the time of an eval set of generated texts, without an effect on its numbers."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from sidecar.errors import TaskError
from sidecar.evaluation.failures import task_error


class Bounds:
    """Refuse an eval set that takes too much. It belongs to one set of one worker.

    Args:
        eval_set: The name of the set.
        max_tokens: The most tokens that all answers may have by their limits. None: any number.
        max_seconds: The longest time of this worker for one evaluation of the set. None: any time.
        clock: Returns the time in seconds.

    Raises:
        TaskError: A bound is not a positive number.
    """

    def __init__(
        self,
        eval_set: str,
        max_tokens: int | None,
        max_seconds: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for option, bound in (("max_tokens", max_tokens), ("max_seconds", max_seconds)):
            if bound is not None and (not isinstance(bound, int | float) or isinstance(bound, bool) or not bound > 0):
                raise TaskError(f"harness({option}={bound!r}) must be a positive number; None is without a bound")
        self._set, self._tokens, self._seconds, self._clock = eval_set, max_tokens, max_seconds, clock
        self._spent = 0.0

    def require_tokens(self, limits: Sequence[int]) -> None:
        """Refuse a set whose answers have these limits, which all workers know alike, before it is evaluated."""
        if self._tokens is not None and (total := sum(limits)) > self._tokens:
            raise task_error(
                f"eval set {self._set!r} may generate {total:,} tokens, for {len(limits):,} answers of up to "
                f"{max(limits):,}, and max_tokens is {self._tokens:,}: write max_tokens={total}, or a smaller limit or "
                f"max_gen_toks"
            )

    def begin(self, requests: int | None, of: int) -> None:
        """Take the time from now on, if states for so many requests are those of the whole set, not of a check."""
        if requests == of:
            self._spent = 0.0

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Take the time of a batch, and refuse the set if all of this evaluation have taken too long."""
        began = self._clock()
        yield
        self._spent += self._clock() - began
        if self._seconds is not None and self._spent > self._seconds:
            raise task_error(
                f"eval set {self._set!r} is not finished after {self._spent:.3g} s of this worker, and max_seconds is "
                f"{self._seconds:g}: write max_seconds={2 * self._seconds:g}, or a smaller limit, or take more workers"
            )
