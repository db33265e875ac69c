"""Measure how long the same entries of the checkpoint directory have not been complete checkpoints.

While files are written, the entries or their reasons change. The run ends only after they have not changed for a while.
No I/O and no clock.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from sidecar.checkpoints.scan import ScanResult
from sidecar.protocol.records import Key


@dataclass(slots=True)
class IncompleteEntries:
    """Hold the entries that are not complete checkpoints, and since when these are the same."""

    _entries: frozenset[tuple[str, str] | Key] = frozenset()  # (name, reason), or the key of a lost checkpoint
    _since: float = 0.0

    @property
    def since(self) -> float | None:
        """Return since when the same entries are not complete checkpoints; None if there are none."""
        return self._since if self._entries else None

    def update(self, scan: ScanResult, lost: AbstractSet[Key], now: float) -> None:
        """Apply a scan, and the checkpoints that are gone or given up and not settled.

        A checkpoint that was given up counts until it is settled, because another node may find it whole. A copy that
        grows restarts the time, because it ends as a pin, or is reported as lost.
        """
        unreadable = {("", name) for name in scan.unknown}
        entries: frozenset[tuple[str, str] | Key] = frozenset(scan.waiting) | lost | unreadable
        if entries != self._entries or scan.copied:
            self._entries, self._since = entries, now
