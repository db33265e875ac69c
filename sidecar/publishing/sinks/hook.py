"""Call what a person wants to be called: a command or a URL, for the events of one kind. It is a sink of its own.

An event that cannot be delivered within the deadline, or is refused, goes into a file of dead letters, and the next one
follows. So an event that no receiver takes holds up its own hook, for that time, and nothing else.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final, Protocol

from sidecar.publishing.sinks.best_so_far import BestSoFar
from sidecar.publishing.sinks.dead_letters import add_dead_letter
from sidecar.publishing.sinks.hook_event import HookName, event_id, event_json, is_nonfinite
from sidecar.publishing.sinks.sink import Evaluation, Event, Failure, RunEnd, SinkRefusedError, SinkUnavailableError


class Target(Protocol):
    """Take the events of a hook: a command, or a URL."""

    @property
    def shown(self) -> str:
        """Return the target for people, without anything secret."""

    def send(self, body: bytes, id_: str, /) -> None:
        """Deliver the JSON of an event. Raises as `Sink.write`."""

    def close(self) -> None:
        """Break off the delivery that is under way. Another thread calls this."""


@dataclass(slots=True, kw_only=True)
class Hook:
    """Deliver the events of one kind to a command or a URL, `target`. Dead letters go to `run_dir`.

    `best` compares evaluations. `deadline_seconds`: time after the first attempt at an event after which it is given
    up.
    """

    takes: ClassVar[frozenset[type]] = frozenset({Evaluation, Failure, RunEnd})

    hook: HookName
    target: Target
    run_dir: Path
    deadline_seconds: float
    best: BestSoFar = field(default_factory=BestSoFar)
    now: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    _noted: int = 0  # the newest plan whose evaluation was compared
    _is_best: bool = False  # whether that was a new best
    _first_attempt: tuple[str, float] | None = None  # event and time

    @property
    def name(self) -> str:
        """Return the name of the sink."""
        return f"hook_{self.hook}"

    def resume(self, past: Iterable[Evaluation], /) -> None:
        """Compare the evaluations of the past, which were delivered before."""
        self.best = self.best.renewed()
        self._noted, self._first_attempt = 0, None
        for evaluation in past:
            self._note(evaluation, past=True)

    def write(self, event: Event, /) -> None:
        """Deliver an event if it is of this hook's kind. Raises as `Sink.write`."""
        if isinstance(event, Evaluation):
            self._note(event)
        if not self._fires(event):
            return
        id_, body = event_id(self.hook, event), event_json(self.hook, event, self.best)
        try:
            self.target.send(body, id_)
        except SinkUnavailableError as error:
            if not self._is_overdue(id_):
                raise
            self._bury(body, f"{error}; tried for {self.deadline_seconds:g} s")
        except SinkRefusedError as error:
            self._bury(body, str(error))
        self._first_attempt = None

    def close(self) -> None:
        """Break off the delivery that is under way."""
        self.target.close()

    def _note(self, evaluation: Evaluation, *, past: bool = False) -> None:
        """Compare an evaluation, once however often it is delivered."""
        if evaluation.plan != self._noted:
            self._is_best = self.best.note(evaluation, past=past)
            self._noted = evaluation.plan

    def _fires(self, event: Event) -> bool:
        """Return whether the event is of this hook's kind."""
        if isinstance(event, RunEnd):
            return self.hook == "end"
        if isinstance(event, Failure):
            return self.hook == "failure"
        if self.hook == "nan":
            return is_nonfinite(event.result)
        return self.hook == "result" or (self.hook == "best" and self._is_best)

    def _is_overdue(self, id_: str) -> bool:
        now = self.now()
        if self._first_attempt is None or self._first_attempt[0] != id_:
            self._first_attempt = id_, now
        return now - self._first_attempt[1] >= self.deadline_seconds

    def _bury(self, body: bytes, reason: str) -> None:
        """Write the event to the dead letters, and raise the error by which the next one follows."""
        path = add_dead_letter(self.run_dir, self.hook, body, reason, self.wall())
        self._first_attempt = None
        raise SinkRefusedError(f"{reason}; it is in {path}")


HOOKS: Final[tuple[HookName, ...]] = ("result", "best", "failure", "nan", "end")
"""The names of all hooks."""
