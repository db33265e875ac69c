"""Notice that the checkpoint directory stays empty for long, as if training saved elsewhere. No I/O and no clock."""

from dataclasses import dataclass

from sidecar.checkpoints.scan import ScanResult


@dataclass(slots=True)
class EmptyDirectory:
    """Hold the time since when an existing directory has been empty, until anything is found.

    Args:
        since: The time of the first scan that found the directory empty; None: it was not found, or something was
            found since.
        hint: A sentence that says what a person should check because nothing was found for long.
    """

    since: float | None = None
    hint: str | None = None
    _is_over: bool = False  # something was found in the directory or the journal

    def needs_hint(self, now: float, after_seconds: float) -> bool:
        """Return whether nothing was found for so long, and nobody was told what to check."""
        return self.since is not None and now >= self.since + after_seconds and self.hint is None

    def note_hint(self, hint: str) -> None:
        """Note the sentence that says what to check."""
        self.hint = hint

    def update(self, scan: ScanResult, *, anything: bool, now: float) -> None:
        """Apply a scan. `anything`: whether the scan found an entry, or the journal has records of checkpoints."""
        if anything:
            self._is_over, self.since, self.hint = True, None, None
        elif not scan.missing and not self._is_over and self.since is None:
            self.since = now
