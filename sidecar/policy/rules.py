"""The settings that decisions depend on. Pure: read by every file of the policy."""

from dataclasses import dataclass, field

from sidecar.policy.selection import Selection


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRules:
    """Hold the settings that say how often a checkpoint is tried, and when again."""

    max_attempts: int = 3
    max_losses: int = 10
    backoff_first_seconds: float = 1.0
    backoff_last_seconds: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRules:
    """Hold the settings that say when a group forms, and of how many worker processes."""

    min_workers: int = 1
    group_settle_seconds: float = 3.0
    join_timeout_seconds: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRules:
    """Hold the settings that say who proposes a plan and when, and how long it may be open."""

    pin_wait_seconds: float = 60.0
    proposal_turn_seconds: float = 10.0
    plan_cap_seconds: float = 86400.0
    collective_timeout_seconds: float = 6.0
    most_settled: int = 2000  # by one plan: so that no record is too long, nor takes longer than a beat to read


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRules:
    """Hold the settings that say when the run is over, and how long incomplete entries are waited for then."""

    wait: bool = True
    stop_after_step: int | None = None
    stop_idle_seconds: float | None = None
    quiet_seconds: float = 3.0
    corrupt_after_seconds: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Hold the settings that decisions depend on, by what they are about. Fields of the groups are named as settings.

    Args:
        selection: Which checkpoints are evaluated.
        retries: How often a checkpoint is tried, and when again.
        groups: When a group forms, and of how many worker processes.
        plans: Who proposes a plan and when, and how long it may be open.
        ending: When the run is over.
    """

    selection: Selection = field(default_factory=Selection)
    retries: RetryRules = field(default_factory=RetryRules)
    groups: GroupRules = field(default_factory=GroupRules)
    plans: PlanRules = field(default_factory=PlanRules)
    ending: EndRules = field(default_factory=EndRules)
