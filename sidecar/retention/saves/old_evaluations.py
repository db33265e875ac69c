"""Remove the folders of old evaluations whole, a few at a time, once their metric states are no longer retained.

`retention` says which are. The journal keeps their numbers. Only folders `plan-N` of the run's own plans are removed,
so what `sidecar eval` saves stays. Any node may do it, several at once, and one that is killed leaves nothing that the
next one does not remove. Others may write there, too: every folder is opened by its name in the one above, and a link
is followed nowhere.
"""

import contextlib
import errno
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sidecar.protocol.records import FINISHED_SETS
from sidecar.retention.saves.retention import RetainedStates
from sidecar.system.confined import Folder, open_folder
from sidecar.system.entry_errors import Entry, Meaning, meaning

_FOLDER: Final = "evaluations"
_RESULT: Final = "result.json"
_PLAN: Final = re.compile(r"plan-([1-9][0-9]{0,17})", re.ASCII)

_AGAIN_SECONDS: Final = 3600.0  # between two listings of all evaluations
_AT_ONCE: Final = 20
"""Folders of checkpoints that one call visits: a state directory of a year is done in hours, and no heartbeat waits."""


@dataclass(slots=True)
class OldEvaluations:
    """Visit the folders of one run's evaluations in turn. `now`: returns the time of this node's own clock."""

    root: Path  # the run's state directory
    now: Callable[[], float]
    _due: list[str] = field(default_factory=list)
    _removed: int = 0  # since the last listing
    _next: float = float("-inf")

    def remove(self, retained: RetainedStates) -> tuple[int, str | None]:
        """Remove some old evaluations; return how many once all are visited, and the first error about one of them.

        What cannot be removed is visited again an hour later.
        """
        first = None
        try:
            with open_folder(self.root) as root, root.folder(_FOLDER) as folder:
                if not self._due and self.now() >= self._next:
                    self._next = self.now() + _AGAIN_SECONDS
                    self._due = [name for name in folder.names() if name not in retained.checkpoints]
                for name in self._due[-_AT_ONCE:]:
                    self._due.pop()
                    try:
                        self._removed += _remove_old(folder, name, retained)
                    except OSError as error:
                        first = first or _told(error)
        except OSError as error:
            first = _told(error)
        removed, self._removed = (0, self._removed) if self._due else (self._removed, 0)
        return removed, first


def _remove_old(evaluations: Folder, name: str, retained: RetainedStates) -> int:
    """Remove the old plans of one checkpoint, and its folder if nothing else is in it; return how many there were."""
    with evaluations.folder(name) as folder:
        names = folder.names()
        plans = [found for found in names if (match := _PLAN.fullmatch(found)) and retained.is_old(name, int(match[1]))]
        for plan in plans:
            with folder.folder(plan):  # a link with such a name is not a plan's folder
                pass
            folder.remove(plan)
        others = set(names) - set(plans)
        if others - {_RESULT, FINISHED_SETS}:
            return len(plans)
        folder.remove(FINISHED_SETS)  # of attempts at a checkpoint that was given up
        if _RESULT in others:
            folder.unlink(_RESULT)  # it names a plan whose folder is gone; the journal has its numbers
    with contextlib.suppress(FileNotFoundError):
        try:
            evaluations.remove_folder(name)
        except OSError as error:  # another attempt at this checkpoint began meanwhile
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
    return len(plans)


def _told(error: OSError) -> str | None:
    """Return an error as text; None if the entry is gone, because another node removes old evaluations, too."""
    return None if meaning(Entry.SAVE, error, again=True) is Meaning.GONE else str(error)
