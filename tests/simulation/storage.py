"""Simulate the shared disk as one daemon reaches it: every operation takes time, and everything that can go wrong does.

`NodeStorage` is a `coordination.storage.Storage`. An operation is sent, carried out by the storage a moment later,
and answered some time after that; others act in between. The daemon may be stopped at any of these moments. A write
that was sent by a daemon that died since may still be carried out.
"""

import errno
import os
from pathlib import Path

from sidecar.errors import CheckpointError, RunReplacedError, StateUnavailableError, StorageError
from simulation.disk import JOURNAL, Disk


class NodeStorage:
    """The run's state directory, as one life of a daemon reaches it. Called from inside its storage thread."""

    def __init__(self, simulation, life) -> None:
        self._simulation, self._life, self._host = simulation, life, life.host
        self.spec = life.host.spec
        self.disk: Disk = simulation.disk
        self._random = simulation.random
        self.syncs_for = 0.0  # seconds that the next reply takes longer

    # -- sidecar.coordination.storage.Storage --------------------------------------------------------------------------

    def create(self, path: str, data: bytes) -> None:
        """Create a file, with the faults of the host; a daemon may be stopped right before."""
        host, data = self._host, self._written(data)
        if path.startswith("segments/"):
            self._breaks_off(path)
        if host.stop_before_create and path.startswith(("plans/", "outcomes/")):
            length, host.stop_before_create = host.stop_before_create, 0.0
            self._simulation.stop_daemon(host, length, f"before it creates {path}")
            self._life.rest(0.0)

        def effect() -> None:
            self._reject_writes(path)
            lost = host.loses_replies and self._random.random() < 0.5
            if lost and self._random.random() < 0.5:
                raise StorageError(f"cannot create {path}: Input/output error")
            self._create(path, data)
            if host.stop_after_create and path.startswith(("plans/", "outcomes/")):
                length, host.stop_after_create = host.stop_after_create, 0.0
                self._simulation.stop_daemon(host, length, f"after it created {path}")
            if lost:
                raise StorageError(f"cannot create {path}: Input/output error")

        host.cache.pop(path, None)
        try:
            self.call(effect, writes=True)
        finally:
            self.disk.unreturned.discard(path)  # a creator that raises reads the name, or creates it again

    def read(self, path: str, limit: int | None = None) -> bytes | None:
        """As `Storage.read`; what the node has read before may be what it reads again."""
        host = self._host
        if not host.stale_for:
            return _first(self._understood(self.call(lambda: self._read(path))), limit)

        def effect() -> bytes | None:
            now = self._simulation.scheduler.now
            found, at = host.cache.get(path, (None, -1e9))
            if now - at <= host.stale_for and self._random.random() < 0.8:
                return found
            found = self._read(path)
            passes = host.is_wrong("short_reads") or host.is_wrong("run_missing")  # within their bound
            if not passes and self._simulation.away_until <= now:  # a mount that comes back has no cache
                host.cache[path] = found, now
            return found

        return _first(self._understood(self.call(effect)), limit)

    def replace(self, path: str, data: bytes, *, survives_crash: bool = False, instead_of: bytes | None = None) -> None:
        """Replace a file, with the faults of the host."""
        host, data = self._host, self._written(data)
        self._breaks_off(path)
        host.cache.pop(path, None)
        host.replaced.add(path)

        def effect() -> None:
            self._reject_writes(path)
            before = self.disk.files.get(path)
            if instead_of is not None and before != instead_of:
                return
            self.disk.replace(path, data, durable=survives_crash)
            self.disk.written[path] = self._simulation.scheduler.now
            if before is not None and path.startswith("members/"):
                self.disk.former[path] = before
            if is_journal(path) and before is None:
                self._simulation.appeared(path, data, self._life)
            elif is_journal(path):
                self._simulation.referee.replaced(path, before, data, self._life)

        self.call(effect, writes=True)

    def sync(self, folder: str) -> None:
        """As `Storage.sync`; the folder is opened for it, so what was cached of it is asked for again."""
        host = self._host

        def effect() -> None:
            self.disk.unreturned -= {path for path in self.disk.unreturned if path.rpartition("/")[0] == folder}

        for path in [path for path in host.cache if path.rpartition("/")[0] == folder]:
            del host.cache[path]
        self.call(effect)

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, which may be stale or incomplete."""
        host = self._host

        def effect() -> list[str]:
            now = self._simulation.scheduler.now
            if host.is_wrong("reads_fail"):
                raise refused("list", folder, errno.EIO)
            if self._simulation.away_until > now:
                return []
            if host.is_wrong("listing_misses"):
                return [name for name in self.disk.names(folder) if self._random.random() < 0.7]
            found, at = host.listings.get(folder, ((), -1e9))
            if not (host.stale_for and now - at <= host.stale_for):
                found = self.disk.names(folder)
                host.listings[folder] = found, now
            return found

        return list(self.call(effect))

    def rename(self, path: str, name: str) -> bool:
        """Give a file another name in its folder."""
        target = f"{path.rpartition('/')[0]}/{name}"
        self._host.cache.pop(path, None)

        def effect() -> bool:
            found = self.disk.files.get(path)
            if found is None or self._simulation.away_until > self._simulation.scheduler.now:
                return False
            self._reject_writes(path)
            self.disk.drop(path)
            self.disk.replace(target, found)
            return True

        return bool(self.call(effect, writes=True))

    def modified(self, folder: str, names=None) -> dict[str, float]:
        """Return the time at which each file of a folder was written."""
        written, listed = self.disk.written, self.names(folder)
        return {name: written.get(f"{folder}/{name}", 0.0) for name in listed if names is None or name in names}

    def survey(self, _) -> None:
        """As `Storage.survey` of a filesystem."""

    def remove(self, path: str, *, holding: bytes | None = None) -> None:
        """Remove a file, or only if it has the given content."""
        self._breaks_off(path)
        self._host.cache.pop(path, None)

        def effect() -> None:
            found = self.disk.files.get(path)
            if found is None or (holding is not None and found != holding):
                return
            self._reject_writes(path)
            self.disk.drop(path)
            if is_journal(path):
                self._simulation.removed(path, found, self._life)

        self.call(effect, writes=True)

    def _breaks_off(self, path: str) -> None:
        """Stop or kill the daemon now and then before it changes what is old in the journal."""
        simulation, host, draw = self._simulation, self._host, self._random.random
        if not is_journal(path) or simulation.segmenting is None or not simulation.segmenting.breaks_off:
            return
        if simulation.healed or simulation.stopped_within(host):
            return
        chance = draw()
        if chance < 0.06:
            simulation.stop_daemon(host, draw() * 12.0, f"before it changes {path}")
            self._life.rest(0.0)
        elif chance < 0.1:
            life, until = self._life, simulation.scheduler.now + 1.0 + 3.0 * draw()
            simulation.scheduler.at(simulation.scheduler.now + 0.02 * draw(), lambda: simulation.kill(life, until))

    def probe(self) -> bool:
        """As `Storage.probe`: names are created once here."""
        return True

    def sweep(self, folder: str, before: float) -> None:
        """As `Storage.sweep`: nothing is left unfinished here."""

    def is_done(self) -> bool:
        """As `files.is_there` of the trainer's marker, which nobody sees before what was saved before it."""

        def effect() -> bool:
            at = self.disk.done_at
            if at is None or self._simulation.scheduler.now - at < self._host.stale_for:
                return False
            self._host.sees_until = at
            return True

        return bool(self.call(effect))

    def _written(self, data: bytes) -> bytes:
        """Return a record as a release with newer records writes it."""
        return data if self._host.spec.schema == 1 else data.replace(b'"schema":', b'"schema":9')

    def _understood(self, data: bytes | None) -> bytes | None:
        """Return a record as this node's release reads it: a newer one stays what it is."""
        return plain(data) if data is not None and self._host.spec.schema > 1 else data

    def _read(self, path: str) -> bytes | None:
        """Return what stands there, as far as this node is told."""
        host, data = self._host, self.disk.files.get(path)
        if host.is_wrong("reads_fail") or host.is_wrong(path):
            raise refused("read", path, errno.EIO if self._random.random() < 0.5 else errno.EACCES)
        if self._simulation.away_until > self._simulation.scheduler.now:
            return None
        if path in self.disk.former and host.is_wrong("reads_go_back") and self._random.random() < 0.5:
            return self.disk.former[path]
        if path == "run.json" and host.is_wrong("run_missing"):
            return None
        if data is not None and path.startswith(JOURNAL) and host.is_wrong("short_reads"):
            return data[: self._random.choice((0, 7, len(data)))]
        return data

    def _reject_writes(self, path: str) -> None:
        if self._host.is_wrong("disk_full"):
            raise refused("write", path, self._host.full_with)
        if self._simulation.away_until > self._simulation.scheduler.now:
            raise refused("write", path, errno.EROFS)

    # -- how anything of it is done ---------------------------------------------------------------------------------

    def call(self, effect, *, writes: bool = False):
        """Send it, wait, and return what it returned or raise what it raised."""
        life, host, scheduler = self._life, self._host, self._simulation.scheduler
        latency = self._simulation.latency * host.slowness
        sent = scheduler.now
        draw = self._random.random
        waiter = life.waiter

        def serve() -> None:
            if life.over and not (writes and life.leaves_writes):
                return
            now = scheduler.now
            hangs = max(host.hangs_until, self._simulation.hangs_until)
            if hangs > now:
                scheduler.at(hangs + draw() * 0.1, serve)
                return
            if host.cut_off_until > now:
                reply = None, StorageError("cannot reach the state directory: Input/output error")
            else:
                try:
                    reply = effect(), None
                except (StorageError, CheckpointError) as error:
                    reply = None, error
            delay, self.syncs_for = latency * draw() + self.syncs_for, 0.0
            scheduler.at(now + delay, lambda: waiter.resume(reply), life)

        scheduler.at(sent + latency * draw(), serve)
        value, error = waiter.wait()
        if error is not None:
            raise error
        return value

    def _create(self, path: str, data: bytes) -> None:
        if path not in self.disk.files:
            self.disk.put(path, data)
            self.disk.unreturned.add(path)
            self._simulation.appeared(path, data, self._life)


class NodePlace:
    """Stands for `agreement.place.Place`: a marker beside the checkpoints says that the state was there."""

    checkpoint_dir = Path("/simulated/checkpoints")  # on no disk, where names beside it would be looked at

    def __init__(self, simulation, life) -> None:
        self._simulation, self._host = simulation, life.host
        self._lost_since: float | None = None

    def check_beginning(self) -> None:
        """Raise an error if the state directory is away."""
        if self._is_away():
            raise StateUnavailableError("the state directory is away")

    def join(self, run) -> None:
        """Accept any run, in place of `Place.join`."""

    def check(self, run) -> None:
        """Accept any run, in place of `Place.check`."""

    def note_present(self) -> None:
        """Forget since when the run was lost."""
        self._lost_since = None

    def lost(self, run: str, found: str | None) -> StorageError:
        """Return the error for a lost run: unavailable at first, replaced after a lease."""
        records = any(path.startswith(("plans/", "outcomes/")) for path in self._simulation.disk.files)
        if self._is_away() or (found is None and records):
            self._lost_since = None
            return StateUnavailableError(f"the state of run {run} is away")
        now = self._simulation.scheduler.now
        self._lost_since = now if self._lost_since is None else self._lost_since
        if now - self._lost_since < self._host.spec.settings.lease:
            return StateUnavailableError(f"run {run} is gone, or {found} is there")
        return RunReplacedError(f"run {run} was replaced by {found}")

    def _is_away(self) -> bool:
        return self._simulation.away_until > self._simulation.scheduler.now


def _first(data: bytes | None, limit: int | None) -> bytes | None:
    """Return what a reader with a limit gets of a file."""
    return data if data is None or limit is None else data[: limit + 1]


def refused(verb: str, path: str, number: int) -> StorageError:
    """Return what a daemon is told of an error about one entry: as `PosixStorage` says it, with its cause."""
    error = StorageError(f"cannot {verb} {path}: {os.strerror(number)}")
    error.__cause__ = OSError(number, os.strerror(number))
    return error


def plain(data: bytes) -> bytes:
    """Return a record of any release as one of the first."""
    return data.replace(b'"schema":9', b'"schema":')


def is_journal(path: str) -> bool:
    """Return whether a name may never change once it stands."""
    return path.startswith(JOURNAL)
