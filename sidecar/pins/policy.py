"""Which checkpoints must be held against deletion, as of one moment of what a daemon knows.

The world makes it, the keeper asks it from the courier's thread: it only looks things up. No I/O and no clock.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from sidecar.checkpoints.scan import DiscoveredCheckpoint
from sidecar.coordination.journal_state import JournalState
from sidecar.policy.selection import Selection
from sidecar.records import Checkpoint, Key


@dataclass(frozen=True, slots=True)
class PinDecision:
    """What is to be pinned of what a look found, and what of it must stay pinned: the rest is let go.

    `undecided` is what may be wanted later though nothing of it changes, None: all of it may.
    """

    hold: AbstractSet[Key]
    keep: AbstractSet[Key]
    undecided: AbstractSet[Key] | None = None


@dataclass(frozen=True, slots=True)
class PinPolicy:
    """Says which of the checkpoints that were found are wanted: those that some node's task still needs.

    By its own settings a node chooses what it pins, but a pin stays until a plan has settled its checkpoint for every
    task that is there: other nodes may have other settings.
    """

    history: JournalState
    selection: Selection
    tasks: frozenset[str | None]
    evaluated: Key | None
    unwanted: set[Key]
    nothing_yet: bool
    done: bool
    releases: bool  # whether this node may let go of pins at all: one that could not propose keeps what stands
    before: int  # nodes that come first
    reopened: int

    @property
    def basis(self) -> tuple[object, ...]:
        """Equal as long as nothing becomes wanted that is settled now."""
        return self.tasks, self.reopened, self.releases

    @property
    def version(self) -> tuple[object, ...]:
        """Equal as long as the answers about the same checkpoints are."""
        told = self.nothing_yet, self.done, self.releases
        return self.history.through, self.tasks, self.evaluated, len(self.unwanted), told

    def __call__(self, found: Mapping[Key, DiscoveredCheckpoint], /) -> PinDecision:
        """What is to be held of these, and what must not be let go.

        What was there before this node's start is not held by it; for another it may be new, until the journal says.
        """
        hold = set() if self.evaluated is None else {self.evaluated}
        keep, undecided = set(hold), set[Key]()
        for task in self.tasks:
            keys = self.history.unsettled(found, task)
            undecided.update(keys)
            keep.update(keys)
            if self.nothing_yet:
                continue
            waiting = [found[key].checkpoint for key in keys if key not in self.unwanted]
            hold |= self.selection.choose(waiting, self.history, over=self.done).hold
        return PinDecision(hold, keep, undecided) if self.releases else PinDecision(hold, found.keys(), None)

    def of_the_journal(self) -> "PinPolicy":
        """Return the wants of a node that others may not hear of: it lets go what is settled for all tasks, only."""
        return replace(self, releases=True, tasks=self.tasks | {None})

    def known_as(self, folder: str) -> list[Key]:
        """Return the checkpoints that the journal settled and whose pins are named so."""
        digest = folder.rpartition("@")[2]
        keys = {*self.history.settled, *self.history.succeeded}
        return [key for key in keys if key[1].startswith(digest) and Checkpoint(*key, None, "").folder == folder]
