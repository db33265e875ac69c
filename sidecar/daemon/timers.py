"""Hold the times at which the conditions began that the policy waits for, in seconds of the daemon's own clock."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sidecar.policy.view import TimersView
from sidecar.protocol.heartbeat import Heartbeat
from sidecar.protocol.records import Key, Plan
from sidecar.protocol.states import Verdict


@dataclass(slots=True, kw_only=True)
class Timers:
    """Hold the times at which one daemon saw each condition begin."""

    plan_opened_at: float = 0.0
    scanned_at: float = 0.0  # when the newest scan of the checkpoint directory was requested
    last_activity_at: float = 0.0  # when the journal or the directory last changed
    failed_at: dict[Key, float] = field(default_factory=dict)  # when a checkpoint's last failure was read
    _work_waiting_since: float | None = None
    _standbys: frozenset[str] = frozenset()  # workers that could be listed
    _first_standby_at: float = 0.0
    _newest_standby_at: float = 0.0
    _waiting_phases: tuple[str, ...] = ()  # of the open plan's ranks, if all of them wait for each other
    _phases_since: float = 0.0

    def note_plan(self, plan: Plan, now: float) -> None:
        """Note that a plan was read, so that nobody waits for a proposal any more."""
        self.last_activity_at = self.plan_opened_at = now
        self._work_waiting_since = None
        for settlement in plan.settles:
            if settlement.verdict == Verdict.REQUEUED:  # a person wants the next attempt at once
                self.failed_at.pop(settlement.key, None)

    def note_outcome(self, key: Key, now: float, *, failed: bool) -> None:
        """Note that the outcome of an attempt at a checkpoint was read."""
        self.last_activity_at = now
        if failed:
            self.failed_at[key] = now
        else:
            self.failed_at.pop(key, None)

    def note_scan(self, requested_at: float, now: float, *, changed: bool) -> None:
        """Note a scan of the checkpoint directory, and whether it found anything new."""
        self.scanned_at = requested_at
        if changed:
            self.last_activity_at = now

    def note_collective_phases(self, phases: tuple[str, ...], now: float) -> None:
        """Note the phases in which all ranks of the open plan wait for each other; empty if not all of them do."""
        if phases != self._waiting_phases:
            self._waiting_phases, self._phases_since = phases, now

    def note_ready(self, ready: Sequence[Heartbeat], now: float) -> None:
        """Note the workers that could be listed. Only a new worker restarts the wait for more of them."""
        standbys = frozenset(
            slot.standby for heartbeat in ready for slot in heartbeat.slots if slot.standby is not None
        )
        if standbys - self._standbys:
            if not self._standbys:
                self._first_standby_at = now
            self._newest_standby_at = now
        self._standbys = standbys

    def note_work(self, now: float, *, waiting: bool) -> None:
        """Note whether there is work and no plan."""
        if not waiting:
            self._work_waiting_since = None
        elif self._work_waiting_since is None:
            self._work_waiting_since = now

    def view(self) -> TimersView:
        """Return the times by which the policy decides."""
        return TimersView(
            plan_opened_at=self.plan_opened_at,
            all_ranks_waiting_since=self._phases_since if self._waiting_phases else None,
            work_waiting_since=self._work_waiting_since,
            first_standby_at=self._first_standby_at,
            newest_standby_at=self._newest_standby_at,
            failed_at=self.failed_at,
            last_activity_at=self.last_activity_at,
        )
