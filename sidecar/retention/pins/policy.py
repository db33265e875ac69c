"""Decide which checkpoints must be pinned and which pins must stay, from a daemon's knowledge at one moment.

The daemon's state builds a `PinPolicy` for each request to storage. The reconciler calls it in the storage thread,
where it only reads. No I/O and no clock.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import StrEnum

from sidecar.checkpoints.scan import DiscoveredCheckpoint
from sidecar.coordination.journal_state import JournalState
from sidecar.coordination.totals import Best
from sidecar.policy.selection import Selection
from sidecar.protocol.export_rule import ExportRule
from sidecar.protocol.records import Checkpoint, Key, folder_name


class Fate(StrEnum):
    """Name what happens to an export in a scan."""

    STAYS = "stays"
    RETURNS = "returns"  # to the pins
    GOES = "goes"  # if the scan before found the same


@dataclass(frozen=True, slots=True)
class PinDecision:
    """Hold the checkpoints of a scan that must be pinned, and those whose pins must stay. Other pins are removed."""

    pin: AbstractSet[Key]
    retain: AbstractSet[Key]


@dataclass(frozen=True, slots=True, kw_only=True)
class PinPolicy:
    """Decide what to pin: the checkpoints that the task of some live node still needs.

    A node chooses what it pins by its own settings. A pin stays until the journal has settled its checkpoint for the
    tasks of all live nodes, because other nodes may have other settings.
    """

    history: JournalState  # the state of the journal
    selection: Selection  # this node's settings that select the checkpoints to evaluate
    tasks: frozenset[str | None]  # the tasks of the live nodes
    evaluated: Key | None  # the checkpoint of the open plan
    # Checkpoints that existed before this node's start, with `start=new`. This node does not pin them. They may be new
    # for another node, so their pins stay until the journal settles them.
    unwanted: AbstractSet[Key]
    # Whether the checkpoints from before the start are not known yet. Then nothing is pinned.
    nothing_yet: bool
    done: bool  # whether the trainer's marker says that it has saved its last checkpoint
    # Whether this node may unpin at all. A node that could not propose retains every pin.
    releases: bool
    before: int  # the number of nodes whose turn comes before this one's
    # The rules by which this node and others export the best checkpoints, and the best ones by each rule, the best
    # first. Rules come in the same order on all nodes.
    exports: tuple[tuple[ExportRule, tuple[Best, ...]], ...] = ()

    def decide(self, found: Mapping[Key, DiscoveredCheckpoint]) -> PinDecision:
        """Return the checkpoints to pin and to retain among `found`, which are in order of discovery.

        The selection is made here, and again by the daemon after the scan. `found` is a scan that the daemon does not
        know yet, and pinning changes the choice: with `every_steps` a checkpoint is skipped for good only once an
        earlier one is pinned. Also, it is made here for the tasks of all live nodes instead of only this node's.
        """
        pin = set() if self.evaluated is None else {self.evaluated}
        retain = set(pin)
        for task in self.tasks:
            unsettled = self.history.verdicts.unsettled(found, task)
            retain.update(unsettled)
            if not self.nothing_yet:
                waiting = [found[key].checkpoint for key in unsettled if key not in self.unwanted]
                pin |= self.selection.choose(waiting, self.history, over=self.done).hold
        return PinDecision(pin, retain if self.releases else found.keys())

    def is_settled(self, key: Key) -> bool:
        """Return whether the journal has settled a checkpoint for the tasks of all live nodes."""
        return all(self.history.verdicts.is_settled(key, task) for task in self.tasks or {None})

    def retains(self, key: Key) -> bool:
        """Return whether the pin of one checkpoint must stay, as `decide` does it for many."""
        if not self.releases or key == self.evaluated:
            return True
        return any(not self.history.verdicts.is_settled(key, task) for task in self.tasks)

    def exported(self) -> dict[str, dict[str, tuple[int, Best]]]:
        """Return the checkpoints that are exported, by the names of their pins: the place, from 1, by each metric."""
        found: dict[str, dict[str, tuple[int, Best]]] = {}
        for rule, ranked in self.exports:
            for place, best in enumerate(ranked, start=1):
                found.setdefault(best.pin, {}).setdefault(rule.metric, (place, best))
        return found

    def fate_of_export(self, checkpoint: Checkpoint, plan: int) -> Fate:
        """Return what happens to the export of a checkpoint. `plan`: the evaluation for which it was exported.

        This node may not have read of that evaluation yet, or may not unpin at all. An export whose checkpoint was
        requeued becomes a pin again, because training may have deleted all other copies.
        """
        if not self.releases or checkpoint.folder in self.exported() or plan > self.history.through:
            return Fate.STAYS
        return Fate.RETURNS if self.retains(checkpoint.key) else Fate.GOES

    def of_the_journal(self) -> "PinPolicy":
        """Return the policy of a node that others may not hear: it unpins only checkpoints settled for all tasks."""
        return replace(self, releases=True, tasks=self.tasks | {None})

    def settled_as(self, folder: str) -> list[Key]:
        """Return the checkpoints that the journal has settled and whose pins have this folder name."""
        verdicts = self.history.verdicts
        settled = {key for key in verdicts.settled if folder_name(key) == folder}
        return [*settled.union(verdicts.succeeded.in_folders((folder,)))]
