"""Decide which requests to shared storage are due, and when. No I/O and no clock.

One request is open at a time. A sync, which writes the heartbeat and reads the journal, is due once in a beat and when
the heartbeat changes. It includes a scan if one is due, too. Between syncs records are written and the journal is
polled. `request_builder` asks what is due, and builds it.
"""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from sidecar.daemon.timing import Timing
from sidecar.protocol.heartbeat import Heartbeat

_IDLE_SECONDS: Final = 1.0  # the longest sleep: /healthz and systemd's watchdog check that the loop turns
_SHORTEST_SLEEP_SECONDS: Final = 0.002  # rounding in clocks must not make the loop spin
_EVENT_PAUSE_SECONDS: Final = (0.004, 0.02)  # between scans: one serves many file events of one save; first and longest
_CALM_SECONDS: Final = 0.1  # without a scan, after which the next event begins another save
_NOTICE_PAUSE_SECONDS: Final = 1.0  # between two scans because of notices, however many notices come
_POLL_SECONDS: Final = 0.05  # reading one name of the journal costs less than the wait for it


class Ask(StrEnum):
    """Name a request to storage that holds nothing which the schedule knows."""

    JOIN = "join the run"
    POLL = "poll the journal"
    RECORD = "write a record, if this node has one to write"


@dataclass(frozen=True, slots=True)
class SyncDue:
    """Write this heartbeat and read the journal; `scan`: scan the checkpoints, too; `noticed`: training asks for it."""

    heartbeat: Heartbeat
    scan: bool
    noticed: bool = False


@dataclass(slots=True)
class _Polling:
    """Hold since when another node's record is awaited, and when the journal is read next."""

    since: float
    next_at: float


@dataclass(slots=True)
class _Scans:
    """Hold which scans are asked for in addition to those that are due by time."""

    requested: bool = True
    pause_seconds: float = _EVENT_PAUSE_SECONDS[0]  # before a requested scan, which doubles while files are written
    unfinished_since: float | None = None
    notices: tuple[float, ...] = ()  # when to scan because of the newest notice of training
    noticed_at: float = float("-inf")  # when the newest of these scans was requested

    @property
    def notice_due_at(self) -> float:
        """Return when the next scan because of a notice is due."""
        return max(self.notices[0], self.noticed_at + _NOTICE_PAUSE_SECONDS) if self.notices else float("inf")

    def note_scan(self, since_seconds: float) -> None:
        """Note that a scan is requested, so many seconds after the one before."""
        first, longest = _EVENT_PAUSE_SECONDS
        self.pause_seconds = first if since_seconds > _CALM_SECONDS else min(longest, 2 * self.pause_seconds)
        self.requested = False

    def note_noticed_scan(self, now: float) -> None:
        """Note that such a scan is requested."""
        self.notices, self.noticed_at = tuple(at for at in self.notices if at > now), now


@dataclass(slots=True, kw_only=True)
class StorageSchedule:
    """Order one daemon's requests to storage in time. Times are seconds of its own clock."""

    timing: Timing
    beats: int = 0  # heartbeats that were submitted
    written: Heartbeat | None = None  # the newest of them
    next_sync_at: float = 0.0
    scanned_at: float = float("-inf")  # when the newest scan was requested
    wake_at: float = float("inf")  # when the policy must decide again
    snapshot_through: int = 0  # plans in the newest snapshot, as far as this node knows
    _usual_sync_at: float = float("inf")  # when the next sync is due if this node is not alone
    _read_at: float | None = None  # when the newest sync that could read the journal was requested
    _sync_was_last: bool = False  # no record has had its turn since
    _last_sync_scanned: bool = False
    _scans: _Scans = field(default_factory=_Scans)
    _journal_changed: bool = False
    _unreadable_since: float | None = None  # since when the journal cannot be read
    _polling: _Polling | None = None

    def begin_turn(self, now: float) -> None:
        """Forget when the policy must decide again, because it decides in this turn."""
        self.wake_at = now + _IDLE_SECONDS

    def request_scan(self) -> None:
        """Scan as soon as storage has time, because of a file event or a plan that waits for a pin."""
        self._scans.requested = True

    def note_save(self, now: float) -> None:
        """Scan because training says that it saved a checkpoint, and once more when its files are quiet.

        The second scan is for checkpoints of which no file tells that they are complete, and for storage that shows
        the files of another machine late.
        """
        self._scans.notices = (now, now + self.timing.quiet_seconds + _NOTICE_PAUSE_SECONDS)

    def note_journal_event(self) -> None:
        """Read the journal as soon as storage has time, because a file event reported a change."""
        self._journal_changed = True

    def sync_at(self, when: float) -> None:
        """Let the next sync be due at this time, unless the heartbeat changes before."""
        self.next_sync_at, self._usual_sync_at = when, float("inf")

    def wake_by(self, when: float) -> None:
        """Let the policy decide again at this time or before."""
        self.wake_at = min(self.wake_at, when)

    def note_snapshot(self, through: int) -> None:
        """Note that the newest snapshot holds the plans up to this one."""
        self.snapshot_through = through

    def note_journal(self, asked_at: float, *, readable: bool) -> None:
        """Note whether the sync that was requested at `asked_at` could read the journal."""
        if readable:
            self._read_at, self._unreadable_since = asked_at, None
        elif self._unreadable_since is None:
            self._unreadable_since = asked_at

    def note_scan(self, now: float, *, asked: bool, unfinished: bool) -> None:
        """Note whether a scan has not ended. Then it is requested again at once, and answers when it has ended."""
        if unfinished:
            self._scans.unfinished_since = now if self._scans.unfinished_since is None else self._scans.unfinished_since
            self._scans.requested = True
        elif asked:
            self._scans.unfinished_since = None

    def is_unreadable(self, now: float) -> bool:
        """Return whether the journal could not be read for a lease."""
        since = self._unreadable_since
        return since is not None and now >= since + self.timing.lease_seconds

    def is_absent(self, now: float) -> bool:
        """Return whether other nodes may have counted this one out. If so, the journal is read before anything else."""
        return self._read_at is None or now - self._read_at > self.timing.lease_seconds

    def scan_hangs(self, now: float) -> bool:
        """Return whether a scan has taken longer than storage may take."""
        since = self._scans.unfinished_since
        return since is not None and now >= since + self.timing.storage_timeout_seconds

    def has_scanned_since(self, when: float, now: float, *, answered: bool) -> bool:
        """Return whether a scan that began at `when` or later was answered; request one if none began.

        `answered`: no request to storage is open.
        """
        self._scans.requested |= self.scanned_at < when <= now
        return self.scanned_at >= when and answered

    def due(
        self, now: float, heartbeat: Heartbeat | None, *, may_scan: bool, may_poll: bool, is_ending: bool = False
    ) -> tuple[Ask | SyncDue, ...]:
        """Return the requests that are due, in their order. Only the first that has something to write is submitted.

        `heartbeat` is None until a run is joined. The heartbeat comes first, but not twice in a row: if a sync takes
        longer than a beat, the next one is due at once, and no record would ever be written. If this node's part in a
        plan has ended (`is_ending`), its outcome precedes a heartbeat that has something new, but is not due by time.
        """
        if heartbeat is None:
            return (Ask.JOIN,) if now >= self.next_sync_at else ()
        scan, absent = now >= self.scan_due_at(may_scan=may_scan), self.is_absent(now)
        if absent:  # not twice with a scan, because scans longer than the lease would keep this node absent for ever
            return (self._sync(now, heartbeat, scan=scan and not self._last_sync_scanned),)
        is_in_time = scan or now >= self.next_sync_at
        sync = (self._sync(now, heartbeat, scan=scan),) if is_in_time or heartbeat != self.written else ()
        if sync and not self._sync_was_last and (is_in_time or not is_ending):
            return sync
        self._sync_was_last = False
        if self._journal_changed and may_poll:
            self._journal_changed = False
            return (Ask.POLL,)
        return (Ask.RECORD, *sync)

    def _sync(self, now: float, heartbeat: Heartbeat, *, scan: bool) -> SyncDue:
        """Return the request for a sync. A scan is one because of a notice, too, if such a one is due."""
        return SyncDue(heartbeat, scan, noticed=scan and now >= self._scans.notice_due_at)

    def number(self, due: SyncDue, now: float, *, quiet: bool = False) -> Heartbeat:
        """Return the heartbeat of a sync with the number of its beat, and note the sync as submitted.

        `quiet`: nobody waits for the beats that follow, so some of them may be left out.
        """
        self.beats += 1
        self.written = replace(due.heartbeat, beat=self.beats)
        self._usual_sync_at = now + self.timing.beat_seconds
        self.next_sync_at = now + self.timing.beat_seconds * (self.timing.quiet_factor if quiet else 1.0)
        self._sync_was_last, self._last_sync_scanned = True, due.scan
        self._journal_changed = False  # a sync reads the journal, too
        if due.scan:
            self._scans.note_scan(now - self.scanned_at)
            self.scanned_at = now
        if due.noticed:
            self._scans.note_noticed_scan(now)
        return self.written

    def end_quiet(self) -> None:
        """Note that somebody waits for the beats, so that none of them may be left out."""
        self.next_sync_at = min(self.next_sync_at, self._usual_sync_at)

    def is_poll_due(self, now: float) -> bool:
        """Return whether the journal is read now, between two beats. While no record comes, the pauses grow."""
        if self._polling is None:
            self._polling = _Polling(since=now, next_at=now + _POLL_SECONDS)
        is_due = now >= self._polling.next_at
        if is_due:
            self._polling.next_at = now + max(_POLL_SECONDS, (now - self._polling.since) / 2)
        self.wake_by(self._polling.next_at)
        return is_due

    def stop_polling(self) -> None:
        """Note that a record came, or that none is awaited."""
        self._polling = None

    def scan_due_at(self, *, may_scan: bool) -> float:
        """Return when the next scan is due."""
        if not may_scan:
            return float("inf")
        pause = self._scans.pause_seconds if self._scans.requested else self.timing.sweep_seconds
        usual = self.scanned_at + pause
        return min(usual, self._scans.notice_due_at)

    def next_turn_at(self, now: float, *others: float, may_scan: bool, busy_until: float | None) -> float:
        """Return when the loop must turn again, which is soon enough for every bound.

        `busy_until`: storage accepts no request before, see `StorageHealth.busy_until`. `others`: further bounds.
        """
        if busy_until is not None:
            return min(now + _IDLE_SECONDS, busy_until)
        due = min(now + _IDLE_SECONDS, self.next_sync_at, self.scan_due_at(may_scan=may_scan), self.wake_at, *others)
        return max(due, now + _SHORTEST_SLEEP_SECONDS)
