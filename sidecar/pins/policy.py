"""Decide which checkpoints must be pinned and which pins must stay, from one moment of what a daemon knows.

The daemon's state builds a `PinPolicy` for each request to storage. The reconciler asks it in the storage thread, where
it only looks things up. No I/O and no clock.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from sidecar.checkpoints.scan import DiscoveredCheckpoint
from sidecar.coordination.journal_state import JournalState
from sidecar.policy.selection import Selection
from sidecar.records import Key, folder_name


@dataclass(frozen=True, slots=True)
class PinDecision:
    """Which checkpoints of a scan are to be pinned, and which pins must stay; all other pins are removed."""

    pin: AbstractSet[Key]
    retain: AbstractSet[Key]


@dataclass(frozen=True, slots=True, kw_only=True)
class PinPolicy:
    """Decide what to pin: the checkpoints that the task of some live node still needs.

    A node chooses what it pins by its own settings. A pin stays until the journal has settled its checkpoint for the
    tasks of all live nodes, because other nodes may have other settings.

    Args:
        history: The state of the journal.
        selection: This node's settings about which checkpoints are evaluated.
        tasks: The tasks of the live nodes.
        evaluated: The checkpoint of the open plan.
        unwanted: Checkpoints that were there before this node's start, with `start=new`. This node does not pin them;
            for another node they may be new, so their pins stay until the journal settles them.
        nothing_yet: Whether it is not known yet which checkpoints were there before the start; nothing is pinned then.
        done: Whether the trainer's marker says that it has saved its last checkpoint.
        releases: Whether this node may unpin at all. A node that could not propose retains every pin.
        before: How many nodes come before this one in turn.
    """

    history: JournalState
    selection: Selection
    tasks: frozenset[str | None]
    evaluated: Key | None
    unwanted: AbstractSet[Key]
    nothing_yet: bool
    done: bool
    releases: bool
    before: int

    def decide(self, found: Mapping[Key, DiscoveredCheckpoint]) -> PinDecision:
        """Return what is to be pinned and retained of these checkpoints, which are in order of discovery.

        The selection is made here, and again by the daemon after the scan. `found` is a scan that the daemon does not
        know yet, and pinning changes what is chosen: with `every_steps` a checkpoint is skipped for good only once an
        earlier one is pinned. Besides, it is made for the task of every live node, not only for this node's.
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

    def retains(self, checkpoint: DiscoveredCheckpoint) -> bool:
        """Return whether the pin of one checkpoint must stay."""
        key = checkpoint.checkpoint.key
        return key in self.decide({key: checkpoint}).retain

    def of_the_journal(self) -> "PinPolicy":
        """Return the policy of a node that others may not hear of: it unpins only what is settled for all tasks."""
        return replace(self, releases=True, tasks=self.tasks | {None})

    def settled_as(self, folder: str) -> list[Key]:
        """Return the checkpoints that the journal has settled and whose pins have this folder name."""
        digest = folder.rpartition("@")[2]
        keys = {*self.history.verdicts.settled, *self.history.verdicts.succeeded}
        return [key for key in keys if key[1].startswith(digest) and folder_name(key) == folder]
