"""Send what is new in a run's state directory to its backup, in a thread of its own, on the publishing node.

There is no queue. Each pass compares the directory with what the backup has, so nothing is forgotten during an outage
of any length, and memory does not grow. Objects are sent in an order in which a restore at any moment finds a whole
run: saves before the outcome of their plan, records in the order of the journal, and views that name the newest plan,
which were read before the journal was listed, after its records.
"""

import contextlib
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from sidecar.coordination.compaction import single_files
from sidecar.coordination.journal_records import outcome_path, plan_path
from sidecar.coordination.journal_state import JournalState
from sidecar.coordination.run import RUN_PATH, SEGMENTS, check_run, read_run
from sidecar.coordination.segments import Segments, is_marker
from sidecar.coordination.snapshot_store import PATH as SNAPSHOT
from sidecar.coordination.storage import MAX_RECORD_BYTES, PosixStorage
from sidecar.errors import StateUnavailableError
from sidecar.protocol.codec import dumps
from sidecar.publishing.sinks.delivery_thread import DeliveryThread
from sidecar.publishing.sinks.journal_events import happened_at
from sidecar.publishing.state_backup.backup_objects import BEST_EXPORT, is_part, remove, why
from sidecar.publishing.state_backup.ownership import (
    OWN_PATH,
    BackupRefusedError,
    BackupReplacedError,
    Own,
    Owner,
    claim,
    require_newest,
)
from sidecar.publishing.status import SinkStatus, Status
from sidecar.retention.exports.export_folder import EXPORTS, linked_export
from sidecar.retention.exports.export_manifest import NamedBest
from sidecar.system.clock import timestamp
from sidecar.system.confined import Folder, open_folder
from sidecar.system.event_log import EventLog
from sidecar.system.object_store import ObjectStore

NAME: Final = "state_backup"
"""The name of the backup among the sinks, in metrics, in `sidecar status` and in the log."""

_SETTLED_SECONDS: Final = 10.0  # after which a second pass finds views and saves that changed after a record
_IDLE_SECONDS: Final = 300.0  # between two passes without a new record: exports are made later, and files deleted
_VIEWS: Final = ("early_stop.json", SNAPSHOT)  # these, and the files of sinks, change: they are compared by content
_FOLDERS: Final = ("comparisons", "evaluations")

_State = tuple[int, int]  # size, and time of the last change in nanoseconds; 0: sent by an earlier daemon


@dataclass(frozen=True, slots=True)
class _Journal:
    """Hold how many entries the journal has, and when the first of those happened that the backup lacks."""

    count: int
    oldest: float | None


@dataclass(slots=True)
class _Session:
    """Hold what the backup has, since this node has begun to send."""

    turn: int  # the time during which this node sends, without an interruption
    run: str
    own: Own
    sent: dict[str, _State]
    views: dict[str, bytes] = field(default_factory=dict)


class StateBackup(DeliveryThread):
    """Send the state. The daemon's loop calls `update`; `start` begins the thread. A request cannot be broken off.

    `store`: the backup's folder of this run. `url`: the setting, which is part of messages.
    """

    sink = None

    def __init__(self, store: ObjectStore, run_dir: Path, url: str, node: str, log: EventLog) -> None:
        super().__init__(NAME, log, thread="state_backup")
        self._store, self._run_dir, self._url, self._node = store, run_dir, url, node
        self._storage = PosixStorage(run_dir)
        self._known: _Journal | None = None  # None: another node publishes
        self._done: int | None = None  # the count of entries that the backup has
        self._pass_at: float | None = None  # when the next pass is due without a change
        self._session: _Session | None = None  # only the thread uses it
        self._turn = 0

    @property
    def status(self) -> SinkStatus | None:
        """Return how far the backup is behind; None if another node sends. Safe in any thread."""
        with self._changed:
            return None if self._known is None else self._status

    @property
    def has_delivered(self) -> bool:
        """Return whether nothing is left to send on this node. Safe in any thread."""
        with self._changed:
            return self._known is None or self._known.count == self._done or not self._thread.is_alive()

    def update(self, status: Status, history: JournalState) -> None:
        """Note how long the journal is, and whether this node sends. Never waits."""
        with self._changed:
            if not (status.publisher and status.journal_read):
                self._turn += self._known is not None
                self._known = self._done = self._pass_at = None
                return
            count = history.log.count
            if self._known is not None and self._known.count == count:
                return
            behind = min(count - (self._done or 0), len(history.entries))
            self._known = _Journal(count, happened_at(history.entries[-behind]) if behind else None)
            if self._done is not None or self._status.failing is not None:
                self._note_behind()
            self._changed.notify_all()

    def work(self) -> None:
        """Send until one more pass is over after `end`. Runs in the thread."""
        pause = self._pauses[0]
        while True:
            with self._changed:
                self._changed.wait_for(self._is_due, self._seconds_left())
                known, closing, turn = self._known, self._closing, self._turn
                is_new = known is not None and (known.count != self._done or self._pass_at is not None)
                self._pass_at = None
            if known is None or not is_new:
                if closing:
                    return
                continue
            try:
                self._send(turn, known.count)
            except (BackupReplacedError, BackupRefusedError) as error:
                self._note_error(error)
                return
            except Exception as error:  # noqa: BLE001 - the thread must go on, whatever is planted or full
                self._note_error(error)
                with self._changed:
                    if self._closing:
                        return
                    self._pass_at = time.monotonic()
                    self._changed.wait_for(lambda: self._closing, pause)
                pause = min(2 * pause, self._pauses[1])
            else:
                pause = self._pauses[0]
                self._note_pass(known)
                if closing:
                    return

    def _is_due(self) -> bool:
        is_new = self._known is not None and self._known.count != self._done
        return self._closing or is_new or self._seconds_left() == 0

    def _seconds_left(self) -> float | None:
        return None if self._pass_at is None else max(0.0, self._pass_at - time.monotonic())

    # -- one pass ------------------------------------------------------------------------------------------------------

    def _send(self, turn: int, count: int) -> None:
        """Send everything that the backup lacks. `count`: the known entries of the journal. Raises anything."""
        if (run := read_run(self._storage)) is None:
            raise StateUnavailableError("there is no run in the state directory yet")
        session = self._session
        if session is None or (session.turn, session.run) != (turn, run):
            session = self._session = self._begin(turn, run)
        views = {path: data for path in self._views() if (data := self._storage.read(path)) is not None}
        plans, outcomes = single_files(self._storage)
        self._create(session, RUN_PATH)
        files = self._files()
        for path, state in files.items():
            self._put_file(session, path, state)
        through = self._send_segments(session, run)
        for number in sorted({number for number in (*plans, *outcomes) if number > through}):
            for path in (plan_path(number), *((outcome_path(number),) if number in outcomes else ())):
                self._create(session, path)
        for path in sorted(views, key=lambda path: path == SNAPSHOT):
            if session.views.get(path) != views[path]:
                self._put(session, path, views[path])
                session.views[path] = views[path]
        self._remove_deleted(session, run, views, files)
        newest = max((*plans, through))
        if newest != session.own.through:
            session.own = replace(session.own, through=newest, at=_now())
            self._storage.replace(OWN_PATH, dumps(session.own), survives_crash=True)
        self._send_exports(session, run, count)

    def _send_exports(self, session: _Session, run: str, count: int) -> None:
        """Send exports, which may be large, last, and only as long as there are no new results."""
        files = self._walk(EXPORTS)
        for path, state in files.items():
            with self._changed:
                if self._known is None or self._known.count != count:
                    return  # the next pass goes on
            self._put_file(session, path, state)
        best = self._best_export()
        if best is not None and session.views.get(BEST_EXPORT) != best:
            self._put(session, BEST_EXPORT, best)
            session.views[BEST_EXPORT] = best
        gone = [path for path in session.sent if path.startswith(f"{EXPORTS}/") and path not in files]
        self._remove_all(session, run, [path for path in gone if path != BEST_EXPORT])

    def _best_export(self) -> bytes | None:
        """Return the object that names the best export; None if there is none."""
        with (
            contextlib.suppress(FileNotFoundError),
            open_folder(self._run_dir) as root,
            root.folder(EXPORTS) as exports,
        ):
            if (name := linked_export(exports)) is not None:
                return dumps(NamedBest(name))
        return None

    def _begin(self, turn: int, run: str) -> _Session:
        """Begin to send: make sure that the backup is that of this directory, and find out what it has."""
        own = claim(self._store, self._storage, self._url, Owner(run=run, nonce="", node=self._node, at=_now()))
        sent = {found.key: (found.size, 0) for found in self._store.listing() if is_part(found.key) and found.size}
        session = _Session(turn, run, own, sent)
        plans, outcomes = single_files(self._storage)
        covered, here = self._segment_end(run), {*map(plan_path, plans), *map(outcome_path, outcomes)}
        for path in [path for path in sent if path.startswith(("plans/", "outcomes/"))]:
            if own.restored is not None and int(Path(path).stem) > own.restored and self._is_late(path):
                self._remove(session, path)
            elif int(Path(path).stem) > covered and path not in here:
                del sent[path]  # the record of this directory that gets the name shows that there are two
        newest = max((number for number in plans if plan_path(number) in sent), default=0)
        if newest and not is_marker(data := self._storage.read(plan_path(newest)) or b""):
            self._require_equal(plan_path(newest), data)
        if own.restored is not None:
            session.own = replace(own, restored=None)
            self._storage.replace(OWN_PATH, dumps(session.own), survives_crash=True)
        return session

    def _is_late(self, path: str) -> bool:
        """Return whether an object was sent by the daemon before this one while it was replaced."""
        return self._store.content(path, MAX_RECORD_BYTES) != self._storage.read(path)

    def _send_segments(self, session: _Session, run: str) -> int:
        """Send the segments of the journal, and return the last number that they hold."""
        for name in self._storage.names(SEGMENTS):
            self._create(session, f"{SEGMENTS}/{name}")
        return self._segment_end(run)

    def _segment_end(self, run: str) -> int:
        segments = Segments(self._storage, run)
        segments.begin()
        return segments.end

    def _create(self, session: _Session, path: str) -> None:
        """Send a record, which never changes, unless the backup has it."""
        if path in session.sent:
            return
        data = self._storage.read(path)
        if data is None:
            raise StateUnavailableError(f"{path} moved while the backup was made: it is looked for again")
        if is_marker(data):
            return  # a restore makes it
        require_newest(self._store, session.own)
        if not self._store.create(path, data) and not self._require_equal(path, data):
            self._put(session, path, data)
        session.sent[path] = (len(data), 0)

    def _require_equal(self, path: str, data: bytes) -> bool:
        """Raise `BackupReplacedError` if an object is another record than the one here; return False if it is empty."""
        found = self._store.content(path, MAX_RECORD_BYTES)
        if found and found != data:
            raise BackupReplacedError(
                f"{path} in {self._url} is not the one of this state directory, of which there seem to be two that "
                "send to the same place: stop one of the daemons, and name another folder as state_backup"
            )
        return bool(found)

    def _put(self, session: _Session, path: str, data: bytes | Path) -> None:
        """Send a file that may change."""
        require_newest(self._store, session.own)
        self._store.put(path, data)

    def _remove(self, session: _Session, path: str) -> None:
        """Delete an object."""
        require_newest(self._store, session.own)
        remove(self._store, path)
        session.sent.pop(path, None)

    def _remove_deleted(self, session: _Session, run: str, views: dict[str, bytes], files: dict[str, _State]) -> None:
        """Delete saves, and a signal to stop, that are not in the state directory any more."""
        gone = [path for path in session.sent if path.startswith("evaluations/") and path not in files]
        gone += [path for path in {*session.views, *session.sent} if path in _VIEWS and path not in views]
        self._remove_all(session, run, gone)

    def _remove_all(self, session: _Session, run: str, paths: list[str]) -> None:
        """Delete objects whose files were deleted."""
        if paths:
            check_run(self._storage, run)  # else the directory was unmounted or replaced, and nothing was deleted
        for path in paths:
            self._remove(session, path)
            session.views.pop(path, None)

    def _put_file(self, session: _Session, path: str, state: _State) -> None:
        """Send a file unless the backup has it."""
        if session.sent.get(path) not in (state, (state[0], 0)):
            with contextlib.suppress(FileNotFoundError), self._opened(path) as opened:  # else it was removed
                self._put(session, path, opened)
        session.sent[path] = state

    def _views(self) -> list[str]:
        return [*_VIEWS, *self._walk("sinks")]

    def _files(self) -> dict[str, _State]:
        """Return the saves and comparisons with their states, without unfinished ones."""
        return {path: state for folder in _FOLDERS for path, state in self._walk(folder).items()}

    def _walk(self, folder: str) -> dict[str, _State]:
        """Return the regular files below a folder that a backup may hold. No link is followed."""
        found: dict[str, _State] = {}
        with contextlib.suppress(FileNotFoundError), open_folder(self._run_dir) as root, root.folder(folder) as opened:
            _add(opened, folder, found)
        return found

    @contextlib.contextmanager
    def _opened(self, path: str) -> Iterator[Path]:
        """Open a file without following a link, and yield a path of the open file. Raises `OSError`."""
        parent, _, name = path.rpartition("/")
        with open_folder(self._run_dir) as root, root.folder(parent) as folder, folder.open_file(name) as file:
            yield Path(f"/proc/self/fd/{file.fileno()}")

    # -- what people see -----------------------------------------------------------------------------------------------

    def _note_pass(self, known: _Journal) -> None:
        self._note_success()
        with self._changed:
            if self._known is None:
                return
            seconds = _IDLE_SECONDS if self._done == known.count else _SETTLED_SECONDS
            self._pass_at = time.monotonic() + seconds
            self._done = known.count
            self._note_behind()

    def _note_error(self, error: Exception) -> None:
        self._note_failure(why(error))
        with self._changed:
            self._note_behind()

    def _note_behind(self) -> None:
        """Show how much of the journal the backup lacks. The caller holds the lock."""
        if self._known is None:
            return
        pending = self._known.count - (self._done or 0)
        before = self._status.oldest_pending if self._status.pending else None
        oldest = self._known.oldest if before is None else before
        self._status = replace(self._status, pending=pending, oldest_pending=oldest if pending else None)


def _add(folder: Folder, path: str, found: dict[str, _State]) -> None:
    for name in folder.names():
        key = f"{path}/{name}"
        if not is_part(key):
            continue
        with contextlib.suppress(FileNotFoundError):
            status = folder.stat(name)
            if stat.S_ISREG(status.st_mode):
                found[key] = status.st_size, status.st_mtime_ns
            elif stat.S_ISDIR(status.st_mode):
                with folder.folder(name) as below:
                    _add(below, key, found)


def _now() -> str:
    return timestamp(time.time())
