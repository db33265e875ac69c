"""Bound the work that the files of one checkpoint may cause. The files decide how long each loop of a reader is.

A reader counts its work in units; one unit is about a microsecond of one core. It counts pieces, never seconds, so each
node decides the same about the same files, however busy it is. The whole budget is far more than any real checkpoint
needs: a terabyte in 1,000 files of `torch.distributed.checkpoint` with a million parts takes 6 million units, an index
of 100,000 shards 8 million. A scan gives a brief budget first, so that files that take longer wait for their turn.

Comparing all checksums (`verify = "full"`) has a budget of its own: for the pieces, of which those million parts have
105 million units, and for the bytes, so that no hole in a file and no expanded content keeps a reader for ever.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import BinaryIO, Final

from sidecar.errors import CorruptError

MOST_UNITS: Final = 20_000_000
"""The work that one checkpoint may cause: about 20 seconds of one core."""

MOST_FULL_UNITS: Final = 10 * MOST_UNITS
"""The work that comparing all checksums of one checkpoint may cause, without the bytes that are compared."""

MOST_COMPARED_BYTES: Final = 4 << 40
"""The bytes of one checkpoint that are compared with checksums: about an hour of one core."""

BRIEF_UNITS: Final = 100_000
"""The work after which a scan goes on with other checkpoints: about 0.1 seconds. Most checkpoints take a tenth."""

MOST_SAMPLES: Final = 1 << 20
"""The parts of large files that are read for one digest. One part for each MiB, this is 1 TiB."""

MOST_WHOLE_BYTES: Final = 16 << 30
"""The bytes of small files that are read for one digest as a whole. Further files are sampled as large ones are."""

OPENED_FILE: Final = 40
"""Units of opening one file, with its size and its name."""

ENTRY: Final = 5
"""Units of one entry of a folder."""

SAMPLE: Final = 4
"""Units of one read at some place of a file."""

READ_KIB: Final = 1
"""Units of reading and hashing one KiB."""

TEXT_KIB: Final = 10
"""Units of one KiB of text that is parsed as a whole. They count before it is read: a brief budget costs no memory."""

_REST_UNITS: Final = 10_000
"""Units between two rests: about as long as a thread may hold Python's lock without anybody noticing."""


class TooMuchWorkError(CorruptError):
    """The whole budget is used up. The same files always end so."""


class TakesLongerError(Exception):
    """The brief budget is used up: nothing is known of the checkpoint, which needs a turn of its own."""


@dataclass(slots=True)
class WorkBudget:
    """Count the units of work that one checkpoint takes: its inspection, or comparing all of its checksums."""

    is_full: bool = False  # whether all checksums are compared
    is_brief: bool = False  # whether only `BRIEF_UNITS` are allowed, after which `add` raises `TakesLongerError`
    # Called after each hundredth of a second of work. A thread beside others waits in it for as long.
    rest: Callable[[], object] = lambda: None
    units: int = 0
    samples_left: int = MOST_SAMPLES
    whole_bytes_left: int = MOST_WHOLE_BYTES
    _rested_at: int = 0
    _compared: int = 0
    _files: set[tuple[int, int]] = field(default_factory=set)

    def add(self, units: int) -> None:
        """Count some work. Raises `TakesLongerError` beyond the brief budget, `TooMuchWorkError` beyond all of it."""
        self.units += units
        if self.units - self._rested_at < _REST_UNITS:
            return
        self._rested_at = self.units
        if self.is_brief and self.units > BRIEF_UNITS:
            raise TakesLongerError
        most, what = MOST_UNITS, "reading its structure"
        if self.is_full:
            most, what = MOST_FULL_UNITS, "comparing its checksums"
        if self.units > most:
            raise TooMuchWorkError(
                f"{what} needs more than {most} steps of work, the limit for one checkpoint: "
                "save it in fewer files or with fewer tensors"
            )
        self.rest()

    def compare(self, size: int) -> None:
        """Count bytes that are about to be compared with checksums. Raises `TooMuchWorkError` if they are too many."""
        self._compared += size
        if self._compared > MOST_COMPARED_BYTES:
            raise TooMuchWorkError(
                f"comparing its checksums reads more than {MOST_COMPARED_BYTES} bytes, the limit for one checkpoint: "
                'save a smaller one, or set verify = "structure"'
            )

    def is_new(self, file: BinaryIO) -> bool:
        """Return whether an open file is met for the first time, and count that it was opened.

        Hard links make one file into very many, which need not be compared again.
        """
        self.add(OPENED_FILE)
        status = os.fstat(file.fileno())
        before = len(self._files)
        self._files.add((status.st_dev, status.st_ino))
        return len(self._files) > before

    def take_samples(self, count: int) -> int:
        """Return how many parts of a file may still be read for the digest, at most `count`, and count them."""
        taken = min(count, self.samples_left)
        self.samples_left -= taken
        return taken

    def take_whole(self, size: int) -> bool:
        """Return whether a small file of this size may be read as a whole for the digest, and count its bytes."""
        if size > self.whole_bytes_left:
            return False
        self.whole_bytes_left -= size
        return True
