"""Scan the checkpoints no further than needed: the names that file events reported, and now and then everything.

Called in the storage thread; it blocks for as long as the storage does.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from sidecar.checkpoints.catalog import Catalog
from sidecar.checkpoints.renamed_checkpoints import RenamedCheckpoints
from sidecar.checkpoints.scan import ScanResult
from sidecar.checkpoints.watch import Watch
from sidecar.protocol.records import Key
from sidecar.system.clock import Clock


@dataclass(slots=True)
class WatchedCatalog:
    """Hold a catalog and the watch of its directory."""

    catalog: Catalog  # scans the checkpoints and the pins
    watch: Watch | None  # reports file events; None: there are no events, so each scan covers everything
    clock: Clock  # the clock of this node
    sweep_seconds: float = 2.0  # seconds between scans that go beyond the names that file events reported
    _hints: set[str] = field(default_factory=set)  # names that changed since a scan succeeded
    _swept_at: float = float("-inf")
    renamed: RenamedCheckpoints = field(default_factory=RenamedCheckpoints)

    @property
    def watch_problem(self) -> str | None:
        """Return why there are no file events; None if there are events, or if they are turned off."""
        return self.watch.problem if self.watch is not None else None

    def scan(
        self, *, everything: bool, noticed: bool = False, is_settled: Callable[[Key], bool] = lambda _: False
    ) -> ScanResult:
        """Scan the names that file events reported, and more if a sweep is due or `everything` is asked for.

        `noticed`: training says that there is a new checkpoint, so scan everything, and list a bucket now.

        A checkpoint that was renamed is left out if its former name is pinned, or settled by `is_settled`. Raises
        `StorageError` if a folder cannot be listed; the names are scanned next time then.
        """
        scan = self._scan(everything=everything or noticed, at_once=noticed)
        return self.renamed.leave_out(scan, is_settled, self.catalog.ask_directory)

    def _scan(self, *, everything: bool, at_once: bool) -> ScanResult:
        """Scan as `scan` says, whatever was renamed."""
        if self.watch is None:
            return self.catalog.scan(at_once=at_once)
        self.watch.ensure()
        hints, now = self.watch.changed(), self.clock.now()
        if hints is None or everything:  # file events may come late
            scan, self._swept_at = self.catalog.scan(at_once=at_once), now
        else:
            self._hints |= hints
            sweep = now >= self._swept_at + self.sweep_seconds
            scan = self.catalog.scan(self._hints, sweep=sweep)
            self._swept_at = now if sweep else self._swept_at
        self._hints = set()
        self.watch.follow(scan.folders)
        return scan

    def close(self) -> None:
        """Stop watching."""
        if self.watch is not None:
            self.watch.stop()
