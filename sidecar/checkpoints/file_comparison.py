"""Compare files with their last reading, because file events may be lost and file times may be coarse.

This module neither waits nor writes. `calls` makes the calls that may hang.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

from sidecar.checkpoints.known_candidate import KnownCandidate
from sidecar.system.bounded_calls import Calls, HangingError


class FileComparison:
    """Compare the files of the groups in one directory. A group whose comparison hangs is left out until it ends.

    Args:
        opened: Opens the directory and returns its descriptor, in a context that closes it.
        below: The directory's path from the checkpoint directory, which is part of the names of the calls.
        calls: Makes calls that may hang.
    """

    def __init__(self, opened: Callable[[], AbstractContextManager[int]], below: str, calls: Calls) -> None:
        self._opened = opened
        self._below = below
        self._calls = calls
        self._hanging: dict[str, str] = {}  # by call: the group whose comparison did not come to an end
        self._hung = 0  # calls that hung so far: the next comparison needs another key

    def changed(self, groups: Mapping[str, Sequence[KnownCandidate] | None]) -> set[str]:
        """Return the groups whose files changed after they were read, or that are not finished.

        `groups`: the candidates of each group by its last reading; None if the group was not read yet.
        """
        self._hanging = {call: group for call, group in self._hanging.items() if self._hangs(call)}
        left_out = set(self._hanging.values())
        compared = {group: candidates for group, candidates in groups.items() if group not in left_out}
        changed, comparing = set[str](), ""

        def compare() -> None:
            nonlocal comparing
            with self._opened() as directory:
                for comparing, candidates in compared.items():
                    if not _is_as_read(directory, candidates):
                        changed.add(comparing)

        call = f"/compare {self._hung} {self._below}"
        try:
            self._calls(call, compare)
        except HangingError:
            self._hanging[call], self._hung = comparing, self._hung + 1
        return set(changed)  # the thread of a call that hangs may still add to the other set

    def _hangs(self, call: str) -> bool:
        """Return whether an earlier call of this name has not ended yet."""
        try:
            self._calls(call, lambda: None)
        except HangingError:
            return True
        return False


def _is_as_read(directory: int, candidates: Sequence[KnownCandidate] | None) -> bool:
    """Return whether the files of a group are unchanged since they were read; False if the group is not finished."""
    if not candidates:
        return False
    for candidate in candidates:
        if not candidate.is_over or (candidate.given_up and not candidate.format.endings):
            return False  # in a folder there may be more by now
        for file in candidate.files:
            try:
                status = os.stat(file.name, dir_fd=directory)
            except OSError:
                return False
            if file[1:] != (status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns):
                return False
    return True
