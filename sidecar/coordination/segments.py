"""Read the segments of a journal: files that each hold many closed plans and their outcomes.

A segment `segments/<first>.jsonl.gz` is created once, as every record. After a line with its header it holds the bytes
of the plans first…last and of their outcomes in the order of the journal, each with a line break behind it. Segments
follow each other without a gap. So the name of the next one is known, and single files begin behind the newest one. A
number in a segment is read from there and never from its single file, which may be the late creation of a suspended
daemon. `compaction` makes segments.
"""

import bisect
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sidecar.coordination.journal_records import RANKS_SCHEMA
from sidecar.coordination.run import SEGMENTS
from sidecar.coordination.storage import MAX_RECORD_BYTES, Storage
from sidecar.coordination.unique_names import parse
from sidecar.errors import RecordError, StorageLostError
from sidecar.protocol.codec import dumps
from sidecar.protocol.records import SCHEMA

MOST_PLANS: Final = 1000
"""The most plans of a segment."""

MOST_BYTES: Final = 8 * 1024 * 1024
"""A segment ends before the plan whose records would bring it over so many bytes, unless that plan is its first."""

KEPT_PLANS: Final = 1000
"""The closed plans behind a segment that stay single files: daemons that are up to date read only these."""

_NAME: Final = re.compile(r"([0-9]{12,18})\.jsonl\.gz")
_GZIP: Final = 31  # the `wbits` of zlib for the format of gzip, which ends with a checksum
_LEVEL: Final = 6
_LONGEST_HEADER: Final = 64 * 1024
_LONGEST_RECORD: Final = MAX_RECORD_BYTES
_PART_BYTES: Final = 64 * 1024

_REMEDY: Final = (
    "put the file back, from a backup or from another copy of the state directory; or stop all daemons and move the "
    "state directory away, to begin a new run that evaluates everything again"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Describe a segment: the length in bytes of each plan, and of each outcome (`None`: the plan only settles)."""

    run: str
    first: int
    last: int
    plans: tuple[int, ...]
    outcomes: tuple[int | None, ...]
    schema: int = SCHEMA

    @property
    def bytes(self) -> int:
        """Return the length of all records, each with its line break."""
        return sum(_length(plan, outcome) for plan, outcome in zip(self.plans, self.outcomes, strict=True))

    def broken(self) -> str | None:
        """Return what no segment has, as part of a sentence; `None` if there is nothing."""
        count = self.last - self.first + 1
        if not 0 < count <= MOST_PLANS or len(self.plans) != count or len(self.outcomes) != count:
            return f"its header says plans {self.first} to {self.last}, and lists {len(self.plans)}"
        lengths = (*self.plans, *(length for length in self.outcomes if length is not None))
        if not all(0 <= length <= _LONGEST_RECORD for length in lengths):
            return f"its header lists a record of {max(lengths)} bytes"
        if count > 1 and self.bytes > MOST_BYTES:
            return f"its header lists records of {self.bytes} bytes in all"
        return None


def segment_path(first: int) -> str:
    """Return the path of the segment that begins with plan `first`."""
    return f"{SEGMENTS}/{first:012d}.jsonl.gz"


class SegmentWriter:
    """Compress the records of one segment, one plan after the other.

    The boundary follows from the bytes of the records, so it is the same on all nodes. The compressed bytes may differ
    between two releases of the compression, so segments are compared by their records.
    """

    def __init__(self, run: str, first: int, most_plans: int = MOST_PLANS) -> None:
        self.run = run
        self.first = first
        self.most_plans = most_plans
        self.raw_bytes = 0
        self._plans: list[int] = []
        self._outcomes: list[int | None] = []
        self._compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
        self._parts: list[bytes] = []

    @property
    def last(self) -> int:
        """Return the number of the newest plan that was added."""
        return self.first + len(self._plans) - 1

    @property
    def is_full(self) -> bool:
        """Return whether no further plan belongs to the segment, however short."""
        return len(self._plans) == self.most_plans

    @property
    def records(self) -> int:
        """Return the number of records that were added."""
        return len(self._plans) + sum(length is not None for length in self._outcomes)

    def takes(self, plan: bytes, outcome: bytes | None) -> bool:
        """Return whether the records of the next plan belong to this segment; if not, the segment is whole."""
        if not self._plans:
            return True
        length = _length(len(plan), None if outcome is None else len(outcome))
        return not self.is_full and self.raw_bytes + length <= MOST_BYTES

    def add(self, plan: bytes, outcome: bytes | None) -> None:
        """Append the next plan, and its outcome unless it only settles."""
        self._plans.append(len(plan))
        self._outcomes.append(None if outcome is None else len(outcome))
        for record in (plan, outcome):
            if record is not None:
                self._parts.append(self._compressor.compress(record + b"\n"))
                self.raw_bytes += len(record) + 1

    def content(self) -> bytes:
        """Return the whole file. Nothing can be added afterwards."""
        header = Header(
            run=self.run,
            first=self.first,
            last=self.last,
            plans=tuple(self._plans),
            outcomes=tuple(self._outcomes),
        )
        # The header is known only now and comes first. A file of gzip may have several parts.
        first = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
        parts = first.compress(dumps(header) + b"\n"), first.flush(), *self._parts, self._compressor.flush()
        return b"".join(parts)


def _length(plan: int, outcome: int | None) -> int:
    return plan + 1 + (0 if outcome is None else outcome + 1)


class Segment:
    """Read the records of one segment. It is not trusted: no more is unpacked than a segment may hold.

    Raises `RecordError` with the path if it is damaged or not what its header says.
    """

    def __init__(self, path: str, data: bytes) -> None:
        self.path = path
        self._data = data
        self.header = parse(Header, path, _Unpacked(path, data).line())
        if (why := self.header.broken()) is not None:
            raise _damaged(path, why)
        if path != segment_path(self.header.first):
            raise _damaged(path, f"it begins with plan {self.header.first}: no segment may be renamed")

    def records(self, first: int = 0) -> Iterator[tuple[int, bytes, bytes | None]]:
        """Yield the number, the plan and the outcome (`None`: it only settles) of each plan from `first` on."""
        header, unpacked = self.header, _Unpacked(self.path, self._data)
        unpacked.line()
        for place, number in enumerate(range(header.first, header.last + 1)):
            plan, length = unpacked.record(header.plans[place]), header.outcomes[place]
            outcome = None if length is None else unpacked.record(length)
            if number == header.last:
                unpacked.end()  # before the last plan is used, so that nobody passes by a wrong checksum
            if number >= first:
                yield number, plan, outcome

    def check_whole(self) -> None:
        """Unpack everything, and so compare the checksums. Raises `RecordError`."""
        for _ in self.records():
            pass


class _Unpacked:
    """Unpack a gzip file in parts. Raises `RecordError` where it is damaged or shorter than asked for."""

    def __init__(self, path: str, data: bytes) -> None:
        self._path = path
        self._packed = data
        self._member = zlib.decompressobj(_GZIP)
        self._ready = b""
        self._parts_left = 2  # the rest of the file is copied for each part, so there must not be many

    def line(self) -> bytes:
        """Return the bytes before the first line break, which is the header."""
        begin = b""
        while (end := self._ready.find(b"\n")) < 0:
            begin += self._ready
            if len(begin) > _LONGEST_HEADER:
                raise _damaged(self._path, f"its header has more than {_LONGEST_HEADER} bytes")
            if not self._unpack():
                raise _damaged(self._path, "it has no header")
        line, self._ready = begin + self._ready[:end], self._ready[end + 1 :]
        return line

    def record(self, length: int) -> bytes:
        """Return the next record, behind which there is a line break."""
        parts, missing = [self._ready], length + 1 - len(self._ready)
        while missing > 0:
            if not self._unpack():
                raise _damaged(self._path, "it ends too early")
            parts.append(self._ready)
            missing -= len(self._ready)
        joined = b"".join(parts)
        record, self._ready = joined[: length + 1], joined[length + 1 :]
        if record[-1:] != b"\n":
            raise _damaged(self._path, "a record is longer than the header says")
        return record[:-1]

    def end(self) -> None:
        """Check that nothing follows."""
        if self._ready or self._unpack():
            raise _damaged(self._path, "it goes on behind its last record")

    def _unpack(self) -> bool:
        """Make the next part ready, and return whether there is one."""
        self._ready = b""
        while not self._ready:
            if self._member.eof:
                self._parts_left -= 1
                if not self._parts_left and self._member.unused_data:
                    raise _damaged(self._path, "it has more parts than a header and records")
                self._packed, self._member = self._member.unused_data, zlib.decompressobj(_GZIP)
                if not self._packed:
                    return False
            elif not self._packed:
                raise _damaged(self._path, "it is torn")
            try:
                self._ready = self._member.decompress(self._packed, _PART_BYTES)
            except zlib.error as error:
                raise _damaged(self._path, str(error)) from error
            if not self._member.eof:
                self._packed = self._member.unconsumed_tail
        return True


def _damaged(path: str, why: str) -> RecordError:
    return RecordError(f"{path} is damaged: {why}: {_REMEDY}")


class Segments:
    """Find and read the segments of one run. The newest ones are looked for only by `advance`.

    `end` is the last number that is known to lie in a segment; 0: none is known. `run`: `None` accepts any run.
    """

    def __init__(self, storage: Storage, run: str | None) -> None:
        self.storage = storage
        self.run = run
        self.end = 0
        self._firsts: list[int] = []  # sorted
        self._listed = False
        self._open: Segment | None = None
        self._records: Iterator[tuple[int, bytes, bytes | None]] = iter(())
        self._at: tuple[int, bytes, bytes | None] | None = None  # the plan that was read last

    def begin(self) -> None:
        """Look for segments, if that was not done yet."""
        if not self._listed:
            self.advance()

    def advance(self, *, sync: bool = False) -> bool:
        """Look for segments after the known ones, and return whether there are any.

        With `sync` every segment is found that was visible before the call: the folder is flushed, and so an NFS client
        asks its server again. Raises `RecordError` for a damaged one, `StorageLostError` for one of another run.
        """
        if sync:
            self.storage.sync(SEGMENTS)
        before = self.end
        if not self._listed:
            firsts = sorted(int(match[1]) for name in self.storage.names(SEGMENTS) if (match := _NAME.fullmatch(name)))
            if firsts:
                self.end = self._load(firsts[-1]).header.last
            self._firsts, self._listed = firsts, True
        while (data := self.storage.read(segment_path(self.end + 1))) is not None:
            segment = self._checked(Segment(segment_path(self.end + 1), data))
            bisect.insort(self._firsts, self.end + 1)
            self.end = segment.header.last
        return self.end > before

    def covers(self, number: int) -> bool:
        """Return whether a number is known to lie in a segment."""
        return 0 < number <= self.end

    def place(self, number: int) -> str:
        """Return the path of the segment that holds a number, for a message."""
        return self._open.path if self._open is not None else segment_path(number)

    def read(self, number: int) -> tuple[bytes, bytes | None]:
        """Return the plan of a number in a segment, and its outcome unless it only settles. Numbers in order are fast.

        Raises `StorageLostError` with the name of a segment that is missing, and `RecordError` for a damaged one.
        """
        if self._at is None or self._at[0] != number:
            self._at = self._seek(number)
        return self._at[1], self._at[2]

    def forget(self) -> None:
        """Let go the segment that was read last."""
        self._open, self._records, self._at = None, iter(()), None

    def segments(self) -> Iterator[Segment]:
        """Yield the known segments in their order, each read anew. Raises as `read`."""
        number = 1
        while number <= self.end:
            segment = self._load(number)
            number = segment.header.last + 1
            yield segment

    def load(self, number: int) -> Segment:
        """Return the segment that holds a number. Raises as `read`."""
        place = bisect.bisect_right(self._firsts, number)
        segment = self._load(self._firsts[place - 1] if place else 1)
        if number > segment.header.last:  # one between two others is gone
            segment = self._load(segment.header.last + 1)
        return segment

    def _seek(self, number: int) -> tuple[int, bytes, bytes | None]:
        follows = self._at is not None and self._at[0] + 1 == number
        found = next(self._records, None) if follows else None
        if found is None:  # of another segment, or behind the end of the open one
            self._at = None
            self._open = self.load(number)
            self._records = self._open.records(number)
            found = next(self._records, None)
        if found is None or found[0] != number:
            raise _damaged(self.place(number), f"it does not hold plan {number}")
        return found

    def _load(self, first: int) -> Segment:
        path = segment_path(first)
        data = self.storage.read(path)
        if data is None:
            self.storage.sync(SEGMENTS)
            data = self.storage.read(path)
        if data is None:
            raise StorageLostError(f"{path} is missing: it holds plan {first} and those after it: {_REMEDY}")
        return self._checked(Segment(path, data))

    def _checked(self, segment: Segment) -> Segment:
        if self.run is not None and segment.header.run != self.run:
            other = f"{segment.path} belongs to run {segment.header.run}, this journal to run {self.run}"
            raise StorageLostError(f"{other}: {_REMEDY}")
        return segment


@dataclass(frozen=True, slots=True)
class _Moved:
    """Take the place of plan 1 once that is in a segment. The number of the schema makes older releases stop."""

    moved_to: str
    run: str
    plan: int = 1
    schema: int = RANKS_SCHEMA + 1


def marker(run: str) -> bytes:
    """Return the content that takes the place of plan 1."""
    return dumps(_Moved(segment_path(1), run))


def is_marker(data: bytes) -> bool:
    """Return whether the file of plan 1 says that the plan is in a segment."""
    return data.startswith(b'{"moved_to":')
