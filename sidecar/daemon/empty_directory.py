"""Notice that the checkpoint directory shows nothing for long: training may save elsewhere. No I/O and no clock."""

from dataclasses import dataclass

from sidecar.checkpoints.scan import ScanResult


@dataclass(slots=True)
class EmptyDirectory:
    """Hold since when a directory that exists shows nothing at all, until it shows anything.

    Args:
        since: The time of the first scan that found the directory, and nothing in it; None: it was not found, or it
            has shown anything since.
        hint: What a person may want to look at because nothing was seen for long.
    """

    since: float | None = None
    hint: str | None = None
    _is_over: bool = False  # the directory, or the journal, has shown anything

    def update(self, scan: ScanResult, *, anything: bool, now: float) -> None:
        """Take in a scan. `anything`: the scan found an entry, or the journal has records of checkpoints."""
        if anything:
            self._is_over, self.since, self.hint = True, None, None
        elif not scan.missing and not self._is_over and self.since is None:
            self.since = now
