"""Define the settings that decisions depend on. Pure: every file of the policy reads them."""

from dataclasses import dataclass, field

from sidecar.policy.selection import Selection


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRules:
    """Hold the settings that decide how often a checkpoint is tried, and when again."""

    max_attempts: int = 3
    max_losses: int = 10
    backoff_first_seconds: float = 1.0
    backoff_last_seconds: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRules:
    """Hold the settings that decide when a group forms, and of how many worker processes."""

    min_workers: int = 1
    max_workers: int = 64
    group_settle_seconds: float = 3.0
    join_timeout_seconds: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRules:
    """Hold the settings that decide which node proposes a plan and when, and how long a plan may be open."""

    pin_wait_seconds: float = 60.0
    proposal_turn_seconds: float = 10.0
    plan_cap_seconds: float = 86400.0
    collective_timeout_seconds: float = 6.0
    most_settled: int = 2000  # by one plan, so that a record is not too long, and is read in less than a beat


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRules:
    """Hold the settings that decide when the run is over, and how long it waits for incomplete entries."""

    wait: bool = True
    stop_after_step: int | None = None
    stop_idle_seconds: float | None = None
    quiet_seconds: float = 3.0
    corrupt_after_seconds: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Hold the settings that decisions depend on, by topic. The fields of each topic have the names of the settings."""

    selection: Selection = field(default_factory=Selection)  # the checkpoints that are evaluated
    retries: RetryRules = field(default_factory=RetryRules)  # the number of attempts, and the pauses between them
    # The start of a group, and the number of its worker processes
    groups: GroupRules = field(default_factory=GroupRules)
    # The turns of proposers, and the time for which a plan may be open
    plans: PlanRules = field(default_factory=PlanRules)
    ending: EndRules = field(default_factory=EndRules)  # the end of the run
