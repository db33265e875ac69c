"""Move closed plans of the journal into segments, in steps that any program may carry out or be killed in.

A segment is made of the plans that follow the newest one, once the plan `KEPT_PLANS` behind its last one is closed. It
is created if absent, and then the single files of its numbers are removed, in the order of the journal:

- Two programs that do this at once make the same segment, since its boundaries follow from the bytes of the records.
- A killed one leaves a segment whose single files stand. The next one removes them.
- Nothing is removed before the segment is durable, was read back whole, and was compared with the single files.
- A name that was removed can be created by a suspended daemon. That record decides nothing (see `segments`), and the
  next pass removes it.

The name of plan 1 is never absent. Its content is replaced by a marker before anything is removed, so that older
releases stop there. The storage thread and `sidecar compact` call this module.
"""

import re
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

from sidecar.coordination.heartbeats import FOLDER
from sidecar.coordination.journal_records import (
    OUTCOME_BYTES,
    PLAN_BYTES,
    decode_outcome,
    decode_plan,
    needs_outcome,
    outcome_path,
    plan_path,
)
from sidecar.coordination.run import JOURNAL_FOLDERS, SEGMENTS, check_run
from sidecar.coordination.segments import (
    KEPT_PLANS,
    MOST_PLANS,
    Segment,
    Segments,
    SegmentWriter,
    is_marker,
    marker,
    segment_path,
)
from sidecar.coordination.snapshot_store import PLAIN_PATH
from sidecar.coordination.storage import Storage
from sidecar.errors import RecordError, SidecarError, StateUnavailableError, StorageLostError
from sidecar.protocol.codec import loads
from sidecar.protocol.heartbeat import SEGMENTS_KNOWN
from sidecar.protocol.record_limits import HEARTBEAT, RecordLimits
from sidecar.protocol.states import NodeState

_NAME: Final = re.compile(r"([0-9]{12,18})\.json")

_CONTRADICTION: Final = (
    "nothing is removed. One of them was changed, or restored from another copy: put the right one back, or move the "
    "wrong one away"
)


@dataclass(slots=True, kw_only=True)
class PassCounts:
    """Count what a pass did, or would do."""

    segments: int = 0
    segment_bytes: int = 0
    plans: int = 0
    records: int = 0  # in new segments
    record_bytes: int = 0
    removed: int = 0  # single files, those of segments that were there before as well
    through: int = 0  # the last number in a segment

    def add(self, writer: SegmentWriter, length: int) -> None:
        """Count a segment that was made, and its length in bytes."""
        self.segments, self.segment_bytes = self.segments + 1, self.segment_bytes + length
        self.plans += writer.last - writer.first + 1
        self.records, self.record_bytes = self.records + writer.records, self.record_bytes + writer.raw_bytes
        self.through = writer.last


@dataclass(frozen=True, slots=True)
class _SegmentSupport:
    """Hold the part of a heartbeat that says whether its node reads segments, whatever else stands in it."""

    LIMITS: ClassVar[RecordLimits] = HEARTBEAT

    node: str
    state: str
    segments: int = 0


class Compaction:
    """Move closed plans of one run into segments.

    `most_plans` and `kept_plans` are constants of the protocol: all nodes must use the same.
    """

    def __init__(
        self, storage: Storage, run: str, *, kept_plans: int = KEPT_PLANS, most_plans: int = MOST_PLANS
    ) -> None:
        self.storage = storage
        self.run = run
        self.kept_plans = kept_plans
        self.most_plans = most_plans
        self.made = PassCounts()
        self._segments = Segments(storage, run)
        self._is_marked = False  # the marker takes the place of plan 1
        self._is_swept = False  # whether a pass has removed what a killed program left
        self._pass: Iterator[None] | None = None

    def is_due(self, closed: int) -> bool:
        """Return whether there is something to do once the plans up to `closed` are closed.

        A run that is too short for a segment has nothing that a killed program could have left.
        """
        ripe = closed - self.kept_plans - self._segments.end
        return self._pass is not None or ripe >= self.most_plans or (ripe > 0 and not self._is_swept)

    def work(self, closed: int, until: Callable[[], bool]) -> None:
        """Continue the pass, or begin one, until it is finished or `until` returns true after one of its requests.

        Raises `StorageError` if storage does not answer, or `RecordError` or `StorageLostError` with the name of a file
        that is damaged or missing. Nothing more is removed then; the next call begins again.
        """
        if self._pass is None:
            self._pass = self.carry_out(closed)
        try:
            for _ in self._pass:
                if until():
                    return
            self._pass = None
        except BaseException:
            self._pass = None
            raise

    def carry_out(self, closed: int, *, dry_run: bool = False) -> Iterator[None]:
        """Make one pass, and yield after each short step. Raises as `work`. `dry_run`: change nothing."""
        self._segments.advance(sync=True)
        self.made.through = self._segments.end
        yield
        while True:
            if not dry_run:
                yield from self._remove_moved()
                self.made.through = self._segments.end
            if (yield from self._make_next(closed, dry_run=dry_run)) is None:
                break
        self._is_swept = True
        self._segments.forget()

    # -- making ------------------------------------------------------------------------------------------------------

    def _make_next(self, closed: int, *, dry_run: bool) -> Generator[None, None, int | None]:
        """Make the next segment if it is due, and return its last number; None if it is not due."""
        first, last = self.made.through + 1, closed - self.kept_plans
        writer = SegmentWriter(self.run, first, self.most_plans)
        while not writer.is_full and writer.last < last:
            records = self._read_single(writer.last + 1)
            yield
            if records is None:
                return self._segments.end  # another program was faster
            if not writer.takes(*records):
                break
            writer.add(*records)
        else:
            if not writer.is_full:
                return None
        content = writer.content()
        if not dry_run:
            check_run(self.storage, self.run)
            self.storage.create(segment_path(first), content)
            yield
            if not self._segments.advance(sync=True):
                raise StateUnavailableError(f"{segment_path(first)} was created and cannot be seen yet")
        self.made.add(writer, len(content))
        return writer.last

    def _read_single(self, number: int) -> tuple[bytes, bytes | None] | None:
        """Return the records of a closed plan in single files; None if they are in a segment by now.

        Raises as `work`.
        """
        problem: SidecarError = StateUnavailableError(
            f"the records of plan {number} cannot be seen now, so no segment is made"
        )
        try:
            records = self._read_checked(number)
        except (RecordError, StorageLostError) as error:
            records, problem = None, error
        if records is None and not self._segments.advance(sync=True):
            raise problem
        return records

    def _read_checked(self, number: int) -> tuple[bytes, bytes | None] | None:
        """Return the records of a closed plan in single files; None if they are not there. Raises as `Journal`."""
        data = self.storage.read(plan_path(number), PLAN_BYTES)
        if data is None or is_marker(data):
            return None
        plan = decode_plan(data, number, self.run)
        if not needs_outcome(plan):
            return data, None
        outcome = self.storage.read(outcome_path(number), OUTCOME_BYTES)
        if outcome is None:
            return None
        decode_outcome(outcome, plan)
        return data, outcome

    # -- removing ----------------------------------------------------------------------------------------------------

    def _remove_moved(self) -> Iterator[None]:
        """Remove the single files of all numbers in segments."""
        paths = self._moved_paths()
        yield
        if paths:
            self.storage.sync(SEGMENTS)  # the creator may not have done that yet
        while paths:
            segment = self._segments.load(min(paths.values()))
            segment.check_whole()
            yield
            here = {path for path, number in paths.items() if number <= segment.header.last}
            late = yield from self._compare(segment, here)
            if not self._is_marked:
                yield from self._mark()
            for path, record in _records(segment):
                if path in here and path != plan_path(1):
                    self.storage.remove(path, holding=late.get(path, record))
                    self.made.removed += 1
                    yield
            paths = {path: number for path, number in paths.items() if path not in here}

    def _moved_paths(self) -> dict[str, int]:
        """Return the paths of the single files of numbers in segments, with their numbers."""
        found = {
            f"{folder}/{match[0]}": int(match[1])
            for folder in JOURNAL_FOLDERS
            for name in self.storage.names(folder)
            if (match := _NAME.fullmatch(name)) is not None and self._segments.covers(int(match[1]))
        }
        if plan_path(1) in found and is_marker(self.storage.read(plan_path(1), PLAN_BYTES) or b""):
            del found[plan_path(1)]
            self._is_marked = True
        return found

    def _compare(self, segment: Segment, paths: set[str]) -> Generator[None, None, dict[str, bytes]]:
        """Compare single files with their segment, and return those that suspended daemons created late.

        Raises `StorageLostError` if a single file and the segment contradict each other. A late file is one whose
        predecessor is gone: they are removed in the order of the journal.
        """
        late: dict[str, bytes] = {}
        for path, record in _records(segment):
            if path not in paths:
                continue
            found = self.storage.read(path, PLAN_BYTES if path.startswith("plans/") else OUTCOME_BYTES)
            yield
            if found in (None, record):
                continue
            number = int(_NAME.sub(r"\1", path.partition("/")[2]))
            before = plan_path(number if path.startswith("outcomes/") else number - 1)
            self.storage.sync("plans")
            if before not in late and not self._is_removed(before):
                raise StorageLostError(f"{path} and {segment.path} contradict each other: {_CONTRADICTION}")
            late[path] = found or b""
            yield
        return late

    def _is_removed(self, path: str) -> bool:
        """Return whether a single file was removed, or replaced by the marker."""
        data = self.storage.read(path, PLAN_BYTES)
        return data is None or (path == plan_path(1) and is_marker(data))

    def _mark(self) -> Iterator[None]:
        """Let older releases stop: put the marker in place of plan 1, once no node of such a release is left."""
        found = self.storage.read(plan_path(1), PLAN_BYTES)
        yield
        if found is not None and is_marker(found):
            self._is_marked = True
            return
        _, record, _ = next(self._segments.load(1).records())
        if found != record:
            raise StorageLostError(f"{plan_path(1)} and {segment_path(1)} contradict each other: {_CONTRADICTION}")
        yield from self._require_segment_support()
        self.storage.remove(PLAIN_PATH)  # an older release would begin behind plan 1 with it
        self.storage.replace(plan_path(1), marker(self.run), survives_crash=True, instead_of=record)
        yield
        if not is_marker(self.storage.read(plan_path(1), PLAN_BYTES) or b""):
            raise StateUnavailableError(f"{plan_path(1)} cannot be replaced now, so no single file is removed")
        self._is_marked = True

    def _require_segment_support(self) -> Iterator[None]:
        """Raise `StateUnavailableError` if a node may still run a release that does not read segments."""
        for name in self.storage.names(FOLDER):
            path = f"{FOLDER}/{name}"
            data = self.storage.read(path, HEARTBEAT.size)
            yield
            if data is None:
                continue
            try:
                support = loads(_SegmentSupport, data)
            except RecordError:
                support = _SegmentSupport(name, "")
            if support.state != NodeState.LEFT and support.segments < SEGMENTS_KNOWN:
                raise StateUnavailableError(
                    f"the journal is not moved into segments while node {support.node} may run a release that cannot "
                    f"read them: update and restart its daemon; or, if it is gone, delete {path}"
                )


def _records(segment: Segment) -> Iterator[tuple[str, bytes]]:
    """Yield the path of the single file of each record, and its bytes, in the order of the journal."""
    for number, plan, outcome in segment.records():
        yield plan_path(number), plan
        if outcome is not None:
            yield outcome_path(number), outcome


def single_files(storage: Storage) -> tuple[list[int], list[int]]:
    """Return the numbers of plans and of outcomes that are single files, with that of the marker."""
    plans, outcomes = (
        [int(match[1]) for name in storage.names(folder) if (match := _NAME.fullmatch(name)) is not None]
        for folder in JOURNAL_FOLDERS
    )
    return plans, outcomes
