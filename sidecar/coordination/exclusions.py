"""Decide from the journal which workers and daemons the next plan goes without, and for which tasks. Pure.

`JournalState` calls it for each end of an attempt, in the order of the journal.
"""

from dataclasses import dataclass, field
from typing import Final

from sidecar.coordination.blame import losers
from sidecar.protocol.records import Outcome, Plan

LOSERS_KEPT: Final = 256
"""The number of newest daemons with lost plans that are remembered: more than run at the same time."""

_MOST_PLANS_WITHOUT: Final = 16
"""A node that lost plans in a row is left out of at most that many plans before it is tried again."""

RETIRED_WORKERS_KEPT: Final = 10_000
"""The number of retired workers that are remembered: more than old heartbeats in storage could still name."""

Daemon = tuple[str, str]
"""The place and the incarnation of a daemon: one that commands a cluster has a place for each machine."""

Witness = tuple[str | None, str, str]
"""The digest of a task; place and incarnation of a daemon that tried it."""


@dataclass(frozen=True, slots=True)
class Losses:
    """Count the plans that one place lost in a row while others took part. `until`: the last plan without it.

    `node` is the place: the name is that of the file of a snapshot, which older releases read.
    """

    node: str
    incarnation: str
    count: int
    until: int


@dataclass(frozen=True, slots=True)
class UnusableTask:
    """Describe a task that fails on every checkpoint, as one daemon found. `outcome`: the newest proof."""

    task: str | None
    node: str
    incarnation: str
    outcome: Outcome


@dataclass(slots=True)
class Exclusions:
    """Hold the workers that are never listed again, the daemons that lost plans, and the tasks that cannot work."""

    retired_workers: dict[str, None] = field(default_factory=dict)  # workers of failed plans, and replaced ones
    losses: dict[Daemon, Losses] = field(default_factory=dict)
    unusable: dict[Witness, UnusableTask] = field(default_factory=dict)

    def retire(self, plan: Plan) -> None:
        """Exclude the workers of a plan from all later ones."""
        self.retired_workers |= dict.fromkeys(member.worker for member in plan.members or ())
        for worker in list(self.retired_workers)[:-RETIRED_WORKERS_KEPT]:
            del self.retired_workers[worker]

    def lose(self, plan: Plan, outcome: Outcome) -> None:
        """Count a loss against the nodes to blame, if the plan had other nodes that may succeed without them.

        Such a node is left out of the next plan. From the second loss in a row it is left out of one more plan, then of
        twice as many each time. A daemon that is restarted has another incarnation, and no losses.
        """
        daemons = daemons_of(plan)
        if len(daemons) < 2:  # noqa: PLR2004 - there are no other nodes
            return
        for daemon in [daemon for daemon in daemons if daemon[0] in losers(outcome)]:
            known = self.losses.pop(daemon, None)
            count = 1 if known is None else known.count + 1
            more = 0 if count == 1 else min(_MOST_PLANS_WITHOUT, 2 ** min(count - 2, _MOST_PLANS_WITHOUT))
            self.losses[daemon] = Losses(*daemon, count, plan.plan + 1 + more)
        for daemon in list(self.losses)[:-LOSERS_KEPT]:
            del self.losses[daemon]

    def find_unusable(self, plan: Plan, outcome: Outcome) -> None:
        """Remember the daemon that found that the task of a plan fails on every checkpoint."""
        for node, incarnation in [daemon for daemon in daemons_of(plan) if daemon[0] == outcome.node]:
            self.unusable[plan.task, node, incarnation] = UnusableTask(plan.task, node, incarnation, outcome)
        for witness in list(self.unusable)[:-LOSERS_KEPT]:
            del self.unusable[witness]

    def succeed(self, plan: Plan) -> None:
        """Forget the losses of the daemons of a plan that succeeded, and the proofs against its task."""
        if len(daemons := daemons_of(plan)) > 1:  # alone, a node proves nothing about its links to others
            for daemon in daemons:
                self.losses.pop(daemon, None)
        for witness in [witness for witness in self.unusable if witness[0] == plan.task]:
            del self.unusable[witness]

    def is_left_out(self, place: str, incarnation: str, through: int) -> bool:
        """Return whether a place is left out of the plan after plan `through`, because it lost too many in a row."""
        losses = self.losses.get((place, incarnation))
        return losses is not None and losses.until > through


def incarnation_of(worker: str, node: str) -> str:
    """Return the incarnation of the daemon that a worker belongs to: ids are `NODE.INCARNATION.NUMBER`."""
    return worker.removeprefix(f"{node}.").split(".")[0]


def daemons_of(plan: Plan) -> list[Daemon]:
    """Return the daemons whose workers a plan lists, each once for each place."""
    members = plan.members or ()
    return list(dict.fromkeys((member.place, incarnation_of(member.worker, member.node)) for member in members))
