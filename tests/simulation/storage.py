"""What one daemon reaches of the shared disk: every operation takes time, and everything that can go wrong does.

`NodeStorage` is a `sidecar.agreement.storage.Storage`. An operation is sent, carried out by the storage a moment later,
and answered some time after that; others act in between. The daemon may be stopped at any of these moments. A write
that was sent by a daemon that died since may still be carried out.
"""

from sidecar.checkpoints.discovery import Discovery
from sidecar.checkpoints.found import BrokenPin, Found, Look
from sidecar.errors import CheckpointError, IncompleteError, MustCopyError, StorageError, VanishedError
from sidecar.records import Checkpoint, Key, Settlement
from simulation.disk import JOURNAL, Content, Disk


class NodeStorage:
    """The run's state directory, as one life of a daemon reaches it. Called from inside its courier."""

    def __init__(self, simulation, life) -> None:
        self._simulation, self._life, self._host = simulation, life, life.host
        self._disk: Disk = simulation.disk
        self._random = simulation.random
        self.syncs_for = 0.0  # seconds that the next reply takes longer

    # -- sidecar.agreement.storage.Storage --------------------------------------------------------------------------

    def create(self, path: str, data: bytes) -> None:
        """As `Storage.create`."""
        host, data = self._host, self._written(data)
        if host.stop_before_create and path.startswith(("plans/", "outcomes/")):
            length, host.stop_before_create = host.stop_before_create, 0.0
            self._simulation.stop_daemon(host, length, f"before it creates {path}")
            self._life.rest(0.0)

        def effect() -> None:
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
            self._disk.unreturned.discard(path)  # a creator that raises reads the name, or creates it again

    def read(self, path: str) -> bytes | None:
        """As `Storage.read`; what the node has read before may be what it reads again."""
        host = self._host
        if not host.stale_for:
            return self._understood(self.call(lambda: self._disk.files.get(path)))

        def effect() -> bytes | None:
            now = self._simulation.scheduler.now
            found, at = host.cache.get(path, (None, -1e9))
            if now - at <= host.stale_for and self._random.random() < 0.8:
                return found
            found = self._disk.files.get(path)
            host.cache[path] = found, now
            return found

        return self._understood(self.call(effect))

    def replace(self, path: str, data: bytes) -> None:
        """As `Storage.replace`."""
        host, data = self._host, self._written(data)
        host.cache.pop(path, None)
        host.replaced.add(path)

        def effect() -> None:
            before = self._disk.files.get(path)
            self._disk.replace(path, data)
            if is_journal(path) and before is None:
                self._simulation.appeared(path, data, self._life)
            elif is_journal(path):
                self._simulation.referee.replaced(path, before, data, self._life)

        self.call(effect, writes=True)

    def sync(self, folder: str) -> None:
        """As `Storage.sync`; the folder is opened for it, so what was cached of it is asked for again."""
        host = self._host

        def effect() -> None:
            self._disk.unreturned -= {path for path in self._disk.unreturned if path.rpartition("/")[0] == folder}

        for path in [path for path in host.cache if path.rpartition("/")[0] == folder]:
            del host.cache[path]
        self.call(effect)

    def names(self, folder: str) -> list[str]:
        """As `Storage.names`."""
        host = self._host

        def effect() -> list[str]:
            now = self._simulation.scheduler.now
            found, at = host.listings.get(folder, ((), -1e9))
            if not (host.stale_for and now - at <= host.stale_for):
                found = self._disk.names(folder)
                host.listings[folder] = found, now
            return found

        return list(self.call(effect))

    def is_done(self) -> bool:
        """As `files.is_there` of the trainer's marker, which nobody sees before what was saved before it."""

        def effect() -> bool:
            at = self._disk.done_at
            return at is not None and self._simulation.scheduler.now - at >= self._host.stale_for

        return bool(self.call(effect))

    def _written(self, data: bytes) -> bytes:
        """Return a record as a release with newer records writes it."""
        schema = self._host.spec.schema
        return data if schema == 1 else data.replace(b'"schema":1', b'"schema":%d' % schema)

    def _understood(self, data: bytes | None) -> bytes | None:
        """Return a record as this node's release reads it: a newer one stays what it is."""
        return plain(data) if data is not None and self._host.spec.schema > 1 else data

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
        if path not in self._disk.files:
            self._disk.put(path, data)
            self._disk.unreturned.add(path)
            self._simulation.appeared(path, data, self._life)


def plain(data: bytes) -> bytes:
    """Return a record of any release as one of the first."""
    return data.replace(b'"schema":2', b'"schema":1')


def is_journal(path: str) -> bool:
    """Whether a name may never change once it stands."""
    return path.startswith(JOURNAL)


class NodeCatalog:
    """Stands for `checkpoints.catalog.Catalog`: what one daemon sees of checkpoints and pins."""

    def __init__(self, simulation, life, corrupt_after: float) -> None:
        self._simulation, self._life, self._corrupt_after = simulation, life, corrupt_after
        self._disk: Disk = simulation.disk
        self._discovery = Discovery()
        self._before: dict = {}
        self._bad_since: dict[tuple[str, str], float] = {}
        self._told: set[tuple[str, str]] = set()
        self._accepted: set = set()  # files that do not change are not read again

    def look(self) -> Look:
        """As `Catalog.look`."""
        return self._life.storage.call(self._look)

    def _look(self) -> Look:
        if not self._disk.exists:
            return Look((), (), (), missing=True)
        node, now = self._life.host.name, self._simulation.scheduler.now
        corrupt, waiting, broken, found = [], [], [], {}
        for content in self._disk.checkpoints.values():
            if now - content.written_at < self._life.host.stale_for and content.key not in self._discovery.order:
                continue  # not visible here yet; a cache does not go back behind what it has shown
            if content.schema > self._life.host.spec.schema:
                continue  # its name says nothing to this release
            if is_bad(content, node) and (content.key, None) not in self._accepted:
                since = self._bad_since.setdefault(content.key, now)
                if now - since < self._corrupt_after:
                    waiting.append((content.name, "bad checksum"))
                elif content.key not in self._told:
                    self._told.add(content.key)
                    corrupt.append(Settlement(content.name, content.digest, content.step, "corrupt", "bad checksum"))
                continue
            self._accepted.add((content.key, None))
            found[content.key] = self._found(content, None)
        lying = set(found)
        for folder, content in self._disk.pins.items():
            if is_bad(content, node) and (content.key, folder) not in self._accepted:
                waiting.append((folder, "unusable pin"))
                since = self._bad_since.setdefault((folder, ""), now)
                broken.append(BrokenPin(self._found(content, folder), "bad", now - since >= self._corrupt_after))
            else:
                self._accepted.add((content.key, folder))
                found[content.key] = self._found(content, folder)
        self._discovery.add(found.values(), self._before, lying, now)
        self._before = found
        ordered = sorted(found.values(), key=lambda each: self._discovery.order[each.checkpoint.key])
        making = frozenset(digest for digest, _ in self._disk.copies).difference(digest[:12] for _, digest in found)
        waiting += [(digest, "is being pinned") for digest in sorted(making)]
        return Look(tuple(ordered), tuple(corrupt), tuple(waiting), missing=False, broken=tuple(broken), making=making)

    def ordered(self, content: Content, other: Content) -> bool:
        """Whether one look found both and put the other behind it, as its step is higher."""
        (_, first), (_, second) = (self._discovery.order.get(each.key, (0.0, -1.0)) for each in (content, other))
        return first == second >= 0 and content.step < other.step

    def _found(self, content: Content, folder: str | None) -> Found:
        key = content.key, folder
        known = self._simulation.found.get(key)
        if known is None:
            pin = None if folder is None else f"pins/{folder}"
            checkpoint = Checkpoint(content.name, content.digest, content.step, "tf_object", pin)
            place = self._simulation.run_dir / (pin or "..")
            known = self._simulation.found[key] = Found(checkpoint, place, content.written_at, 0.0)
        return known


class NodePins:
    """Stands for `daemon.pinner.Pinner`: pins on the shared disk, linked at once or copied over some looks."""

    def __init__(self, simulation, life) -> None:
        self._simulation, self._life = simulation, life
        self._disk: Disk = simulation.disk

    def pin(self, found: Found, *, copies: bool) -> Found | None:
        """As `Pinner.pin`."""
        checkpoint = found.checkpoint
        folder, copy = checkpoint.folder, self._copy(checkpoint.key)

        def effect() -> Content | None:
            if folder in self._disk.pins:
                return self._disk.pins[folder]
            done, content, _ = self._disk.copies.get(copy, (0, self._disk.checkpoints.get(checkpoint.name), ""))
            if content is None:
                raise VanishedError(f"{checkpoint.name} was deleted before it could be pinned")
            if content.digest != checkpoint.digest or is_bad(content, self._life.host.name):
                raise IncompleteError(f"{checkpoint.name} has other content than when it was found")
            if not self._simulation.scenario.links and not (copies or copy in self._disk.copies):
                raise MustCopyError(checkpoint.name)
            if self._simulation.random.random() < (0.1 if self._simulation.scenario.links else 0.5):
                self._disk.copies[copy] = done + 1, content, folder
                return None  # it is not finished yet
            self._publish(content, folder)
            return content

        try:
            content = self._life.storage.call(effect, writes=True)
        except CheckpointError:
            self._disk.copies.pop(copy, None)
            raise
        if content is None:
            return None
        self._disk.copies.pop(copy, None)
        return self._life.catalog._found(content, folder)

    def unpin(self, checkpoint: Checkpoint) -> None:
        """As `Pinner.unpin`."""

        def effect() -> None:
            if (content := self._disk.pins.pop(checkpoint.folder, None)) is not None:
                self._simulation.unpinned(content, checkpoint.folder, self._life)

        self._life.storage.call(effect, writes=True)

    def bytes(self) -> int:
        """As `Pinner.bytes`."""
        return len(self._disk.pins)

    def bytes_alone(self) -> int:
        """As `Pinner.bytes_alone`."""
        return self.bytes()

    def works_on(self, key: Key) -> bool:
        """As `Pinner.works_on`."""
        return self._copy(key) in self._disk.copies

    def bytes_copied(self) -> dict[str, int]:
        """As `Pinner.bytes_copied`; what lives that ended have begun stays as it is."""
        copied: dict[str, int] = {}
        self._life.storage.call(self._copy_on, writes=True)
        for (digest, _), (size, _, _) in self._life.storage.call(lambda: list(self._disk.copies.items())):
            copied[digest] = max(copied.get(digest, 0), size)
        return copied

    def _copy_on(self) -> None:
        """What this life copies though it was deleted meanwhile: no look asks for it."""
        for (digest, incarnation), (done, content, folder) in list(self._disk.copies.items()):
            if incarnation != self._life.incarnation or self._disk.checkpoints.get(content.name) == content:
                continue
            if self._simulation.random.random() < 0.5:
                self._disk.copies[digest, incarnation] = done + 1, content, folder
                continue
            del self._disk.copies[digest, incarnation]
            if folder not in self._disk.pins and self._simulation.random.random() < 0.8:
                self._publish(content, folder)

    def _publish(self, content: Content, folder: str) -> None:
        self._disk.pins[folder] = content
        self._simulation.pinned(content, folder, self._life)

    def _copy(self, key: Key) -> tuple[str, str]:
        _, digest = key
        return digest[:12], self._life.incarnation

    def clean(self) -> None:
        """Nothing is ever left half made."""


class NodeSaves:
    """Stands for `daemon.saves.Saves`."""

    def __init__(self, simulation, life) -> None:
        self._simulation, self._life = simulation, life

    def tidy(self, tidying) -> dict[str, int]:
        """As `Saves.tidy`."""
        if tidying.drop:
            self._life.storage.call(lambda: self._simulation.tidied(tidying.drop, self._life), writes=True)
        return dict.fromkeys(tidying.measure, 1)


def is_bad(content: Content, node: str) -> bool:
    """Whether it cannot be read on that node."""
    return "*" in content.corrupt_on or node in content.corrupt_on
