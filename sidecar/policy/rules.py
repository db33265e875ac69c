"""The settings that decisions depend on. Pure: read by every file of the policy."""

from dataclasses import dataclass
from typing import Literal

from sidecar.policy.selection import Selection


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Hold the settings that decisions depend on."""

    queue: Literal["every", "latest"] = "every"
    every_steps: int | None = None
    min_workers: int = 1
    max_attempts: int = 3
    max_losses: int = 10
    backoff_first_seconds: float = 1.0
    backoff_last_seconds: float = 300.0
    group_settle_seconds: float = 3.0
    quiet_seconds: float = 3.0
    corrupt_after_seconds: float = 60.0
    pin_wait_seconds: float = 60.0
    join_timeout_seconds: float = 120.0
    proposal_turn_seconds: float = 10.0
    plan_cap_seconds: float = 86400.0
    collective_timeout_seconds: float = 6.0
    most_settled: int = 2000  # by one plan: so that no record is too long, nor takes longer than a beat to read
    stop_after_step: int | None = None
    stop_idle_seconds: float | None = None
    wait: bool = True

    @property
    def selection(self) -> Selection:
        """Return which checkpoints are evaluated."""
        return Selection(self.queue, self.every_steps)
