"""Read the objects of a run for a command that only reads, many at a time: each answer of a store may take 50 ms.

`ReadAhead` takes the place of an `ObjectStore`. An object that is asked for brings those that such a command asks for
next. Answers count for a moment, so that a command shows the state of that moment; what a listing of that moment lacks
is not asked for. A program that writes must not use
it: it has to see what others write.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from sidecar.coordination.heartbeats import FOLDER
from sidecar.coordination.journal_records import OUTCOME_BYTES, PLAN_BYTES, outcome_path, plan_path
from sidecar.coordination.object_storage import Objects
from sidecar.coordination.run import JOURNAL_FOLDERS, RUN_PATH, SEGMENTS
from sidecar.coordination.snapshot_store import PATH, PLAIN_PATH
from sidecar.protocol.record_limits import HEARTBEAT, SMALL, SNAPSHOT
from sidecar.system.object_store import StoredObject

_MOMENT_SECONDS: Final = 1.0
_MOST_PLANS: Final = 200  # that are read ahead: as many as a snapshot leaves
_RECORD: Final = re.compile(r"(?:plans|outcomes)/([0-9]{12,18})\.json")


class ReadAhead:
    """Answer requests out of those that were made at the same time a moment ago. It writes nothing.

    `also`: folders that are listed together with those of the journal.
    """

    def __init__(self, objects: Objects, now: Callable[[], float], also: Iterable[str] = ()) -> None:
        self._objects, self._now, self._also = objects, now, tuple(also)
        self._found: dict[str, tuple[float, int, tuple[bytes, str] | None]] = {}  # by key: time, most bytes, answer
        self._listed: dict[str, tuple[float, list[StoredObject]]] = {}
        self._is_first = True

    def beginning(self, key: str, most: int) -> tuple[bytes, str] | None:
        """Return the first bytes of an object and its etag; None if it did not exist a moment ago."""
        if key not in self._found and self._is_missing(key):
            return None
        known = self._found.get(key)
        is_cut = known is not None and known[2] is not None and known[1] < most
        if known is None or is_cut or known[0] < self._now() - _MOMENT_SECONDS:
            folders = [FOLDER] if key == RUN_PATH else []
            folders += (SEGMENTS, *JOURNAL_FOLDERS, *self._also) if folders and self._is_first else ()
            self._ask(dict(self._with(key)) | {key: most}, folders)
            self._is_first = False
        found = self._found[key][2]
        return found and (found[0][:most], found[1])

    def listing(self, folder: str = "") -> list[StoredObject]:
        """Return the objects below a folder, as they were a moment ago."""
        if folder not in self._listed or self._listed[folder][0] < self._now() - _MOMENT_SECONDS:
            self._ask({}, (folder,))
        return self._listed[folder][1]

    def _is_missing(self, key: str) -> bool:
        """Return whether the folder of an object was listed a moment ago without it."""
        at, listed = self._listed.get(key.rpartition("/")[0], (float("-inf"), []))
        return at >= self._now() - _MOMENT_SECONDS and key not in (found.key for found in listed)

    def _with(self, key: str) -> Iterator[tuple[str, int]]:
        """Yield the keys that are asked for together with this one, and the most bytes of each."""
        if key == RUN_PATH:
            yield "state_backup.json", SMALL.size + 1
            if self._is_first:
                yield from ((PATH, SNAPSHOT.size + 1), (PLAIN_PATH, 1))
        elif key.startswith(f"{FOLDER}/"):
            yield from self._heartbeats()
        elif match := _RECORD.fullmatch(key):
            numbers = range(int(match[1]), int(match[1]) + _MOST_PLANS)
            records = {plan_path(number): PLAN_BYTES + 1 for number in numbers}
            records |= {outcome_path(number): OUTCOME_BYTES + 1 for number in numbers}
            listed = (found.key for folder in JOURNAL_FOLDERS for found in self._listed.get(folder, (0.0, []))[1])
            yield from ((path, records[path]) for path in listed if path in records)
            yield from (each for each in self._heartbeats() if each[0] not in self._found)

    def _heartbeats(self) -> list[tuple[str, int]]:
        """Return the keys of the heartbeats that were listed, and the most bytes of each."""
        return [(found.key, HEARTBEAT.size + 1) for found in self._listed.get(FOLDER, (0.0, []))[1]]

    def _ask(self, most_of: Mapping[str, int], folders: Iterable[str]) -> None:
        """Ask for objects and listings at the same time, and forget older answers."""
        found, listed = self._objects.together(most_of, folders)
        now = self._now()
        self._found = {key: known for key, known in self._found.items() if known[0] >= now - _MOMENT_SECONDS}
        self._found |= {key: (now, most_of[key], answer) for key, answer in found.items()}
        self._listed |= {folder: (now, objects) for folder, objects in listed.items()}
