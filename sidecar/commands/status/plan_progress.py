"""Follow the workers of the open plan from one status to the next, to show how fast they are. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sidecar.commands.observed_nodes import ObservedNode
from sidecar.commands.progress_rate import ProgressRate, bounded
from sidecar.commands.status.collect import RunStatus
from sidecar.protocol.heartbeat import WorkerProgress
from sidecar.protocol.records import Member
from sidecar.protocol.states import WorkerPhase

_DONE: Final = WorkerPhase.IDLE  # while a plan is open, a worker without a phase has finished its part


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLine:
    """Show one worker of the open plan. Times are in seconds; None stands for what is not known yet."""

    rank: int
    node: str
    phase: str | None
    batches: int
    total: int | None
    per_second: float | None
    seconds_left: float | None
    silent_seconds: float | None  # since its node's last heartbeat, if that node is not alive

    @property
    def fraction(self) -> float:
        """Return the part of the batches that is done, from 0 to 1."""
        return min(1.0, self.batches / self.total) if self.total else 0.0


class PlanProgress:
    """Hold the rates of the workers of the open plan."""

    def __init__(self) -> None:
        self._plan: tuple[str | None, int] | None = None
        self._rates: dict[tuple[str, str], ProgressRate] = {}

    def note(self, status: RunStatus) -> list[WorkerLine]:
        """Note a status, and return a line for each worker of its open plan, in rank order.

        A report counts from the moment at which its heartbeat was seen to change, by the observer's clock.
        """
        plan = status.history.open
        numbered = None if plan is None else (status.run_id, plan.plan)
        if numbered != self._plan:
            self._plan, self._rates = numbered, {}
        if plan is None:
            return []
        nodes = {observed.heartbeat.node: observed for observed in status.members}
        return [self._line(status, plan.plan, member, nodes.get(member.node)) for member in plan.members or ()]

    def _line(self, status: RunStatus, plan: int, member: Member, observed: ObservedNode | None) -> WorkerLine:
        progress = None if observed is None else _progress_of(observed, plan, member.worker)
        rate = left = None
        if observed is not None and progress is not None:
            rates = self._rates.setdefault((member.worker, progress.phase), ProgressRate())
            if observed.changed:
                rates.note(progress.batches, observed.signs.since)
            if progress.phase != _DONE and progress.batches:
                rate = rates.per_second(observed.read_at)
                left = rates.seconds_left(progress.total, observed.read_at)
        gone = observed is not None and observed.fresh(status.lease_seconds) is False
        return WorkerLine(
            rank=member.rank,
            node=member.node,
            phase=None if progress is None else progress.phase,
            batches=0 if progress is None else bounded(progress.batches),
            total=None if progress is None or progress.total is None else bounded(progress.total),
            per_second=None if gone else rate,
            seconds_left=None if gone else left,
            silent_seconds=observed.silent_seconds if gone and observed is not None else None,
        )


def plan_seconds_left(lines: Sequence[WorkerLine]) -> float | None:
    """Return the estimated seconds until the slowest worker has evaluated its batches; None before it is known."""
    working = [line for line in lines if line.phase != _DONE]
    left = [line.seconds_left for line in working if line.phase == WorkerPhase.EVALUATE]
    known = [seconds for seconds in left if seconds is not None]
    return max(known) if known and len(known) == len(working) else None


def _progress_of(observed: ObservedNode, plan: int, worker: str) -> WorkerProgress | None:
    if observed.heartbeat.journal.plan != plan:
        return None
    return next((progress for progress in observed.heartbeat.doing or () if progress.worker == worker), None)
