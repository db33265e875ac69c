"""Simulate the catalog, the pins and the saves of one daemon.

Modelled, not real: reading real files in each scan would take a hundred times as long. So what the product concludes
from an error about one entry is repeated here, in `NodeCatalog._scan`, as `checkpoints.scan.ScanResult` states it:
what was known stays known, and is in `unknown`. That the product's own folders do so is shown by their tests.
"""

import contextlib
import errno
from dataclasses import dataclass, field
from functools import partial

from sidecar.checkpoints.discovery_order import DiscoveryOrder
from sidecar.checkpoints.files import File
from sidecar.checkpoints.presence import Answer, Presence
from sidecar.checkpoints.scan import BrokenPin, DiscoveredCheckpoint, ScanResult
from sidecar.errors import CheckpointError, IncompleteError, MustCopyError, StorageError, VanishedError
from sidecar.protocol.records import Checkpoint, Key, Plan, Settlement, folder_name
from sidecar.protocol.states import Verdict
from sidecar.retention.exports.export_report import NO_EXPORTS, ExportsReport
from sidecar.retention.pins.policy import Fate
from sidecar.retention.saves.retention import CleanupResult
from simulation.disk import Content, Disk, is_bad
from simulation.storage import refused

_BYTES = 1
"""Size of every checkpoint, and of every pin in the making: `pin_max` is a number of them."""


@dataclass(slots=True)
class _Seen:
    """Hold what one scan has seen so far."""

    found: dict[Key, DiscoveredCheckpoint] = field(default_factory=dict)
    corrupt: list[Settlement] = field(default_factory=list)
    waiting: list[tuple[str, str]] = field(default_factory=list)
    broken: list[BrokenPin] = field(default_factory=list)
    unknown: dict[str, str] = field(default_factory=dict)


class NodeCatalog:
    """Stands for `checkpoints.catalog.Catalog`: what one daemon sees of checkpoints and pins."""

    def __init__(self, simulation, life, corrupt_after: float) -> None:
        self._simulation, self._life, self._corrupt_after = simulation, life, corrupt_after
        self._disk: Disk = simulation.disk
        self._pins = simulation.disk.pins_of(life.host.name)
        self.discovery = DiscoveryOrder()
        self._before: dict = {}
        self._bad_since: dict[tuple[str, str], float] = {}
        self._told: set[tuple[str, str]] = set()
        self._accepted: set = set()  # files that do not change are not read again
        self.seen_at: dict[Key, float] = {}  # when it was there last, as a scan found or an answer said

    def scan(self, *, at_once: bool = False) -> ScanResult:  # noqa: ARG002 - a scan of this disk is always of now
        """Scan the shared disk, unless storage fails."""
        return self._life.storage.call(self._scan)

    def is_missing(self) -> bool:
        """Return whether the checkpoint directory is missing."""
        return not self._disk.exists

    def ask_directory(self, found) -> Answer:
        """As `Catalog.ask_directory`: nothing is renamed here."""
        raise AssertionError(found)

    def _scan(self) -> ScanResult:
        if self._life.host.is_wrong("reads_fail"):
            raise refused("read", "the checkpoint directory", errno.EIO)
        if not self._disk.exists:
            return ScanResult(missing=True)
        now, away, seen = self._simulation.scheduler.now, self._is_away(), _Seen()
        self._look_at_directory(seen, now)
        lying = set(seen.found)
        if not away:
            self._look_at_pins(seen, now)
        found, waiting = seen.found, seen.waiting
        self.discovery.add(found.values(), self._before, lying, now)
        self.discovery.forget_gone(found)
        self._before = found
        ordered = sorted(found.values(), key=lambda each: self.discovery.places[each.checkpoint.key])
        copies = () if away else self._disk.copies_of(self._life)
        making = frozenset(digest for digest, _ in copies).difference(digest[:12] for _, digest in found)
        waiting += [(digest, "is being pinned") for digest in sorted(making)]
        known = {each.checkpoint.folder for each in found.values()}
        return ScanResult(
            by_key={each.checkpoint.key: each for each in ordered},
            corrupt=tuple(seen.corrupt),
            waiting=tuple(waiting),
            places=self.discovery.places,
            broken=tuple(seen.broken),
            making=making,
            unknown=seen.unknown,
            unclaimed=frozenset(seen.unknown.keys() & self._pins) - known,
        )

    def _look_at_directory(self, seen: "_Seen", now: float) -> None:
        host = self._life.host
        for content in self._disk.checkpoints.values():
            may_hide = content.written_at > host.sees_until and content.key not in self.discovery.places
            if may_hide and now - content.written_at < host.stale_for:
                continue  # not visible here yet; a cache does not go back behind what it has shown
            if content.schema > host.spec.schema or self._is_missed(content):
                continue  # its name says nothing to this release, or the listing leaves it out
            if (why := host.trouble_with(f"checkpoint:{content.name}")) is not None:
                self._doubt(content, why, seen)
            elif is_bad(content, host.name) and (content.key, None) not in self._accepted:
                self._judge(content, seen, now)
            else:
                self._accepted.add((content.key, None))
                self.seen_at[content.key] = now
                seen.found[content.key] = self.discovered(content, None)

    def _judge(self, content: Content, seen: "_Seen", now: float) -> None:
        since = self._bad_since.setdefault(content.key, now)
        if now - since < self._corrupt_after:
            seen.waiting.append((content.name, "bad checksum"))
        elif content.key not in self._told:
            self._told.add(content.key)
            name, digest = content.key
            corrupt = Settlement(
                name=name, digest=digest, step=content.step, verdict=Verdict.CORRUPT, reason="bad checksum"
            )
            seen.corrupt.append(corrupt)

    def _look_at_pins(self, seen: "_Seen", now: float) -> None:
        host, since = self._life.host, self._simulation.referee.pinned_since
        for folder, content in self._pins.items():
            if now - since.get(content.key, -1e9) < host.pins_late or self._is_missed(content):
                continue
            why = host.trouble_with(f"pin:{folder}")
            if why is None and content.schema > host.spec.schema:
                why = "it needs a newer release"
            if why is not None:
                self._doubt(content, why, seen)
            elif is_bad(content, host.name) and (content.key, folder) not in self._accepted:
                self._judge_pin(content, folder, seen, now)
            else:
                self._accepted.add((content.key, folder))
                self.seen_at[content.key] = now
                seen.found[content.key] = self.discovered(content, folder)

    def _judge_pin(self, content: Content, folder: str, seen: "_Seen", now: float) -> None:
        seen.waiting.append((folder, "unusable pin"))
        since = self._bad_since.setdefault((folder, ""), now)
        seen.broken.append(BrokenPin(self.discovered(content, folder), "bad", now - since >= self._corrupt_after))

    def _doubt(self, content: Content, why: str, seen: "_Seen") -> None:
        """Note what this node cannot tell now: what it knew of it stays."""
        known = self._before.get(content.key)
        if known is not None:
            seen.found[content.key] = known
        seen.unknown[self.discovered(content, None).checkpoint.folder] = why

    def pin_bad_since(self, folder: str) -> float:
        """Return since when scans find that pin bad; infinity if they do not."""
        return self._bad_since.get((folder, ""), float("inf"))

    def bad_since(self, key: Key) -> float:
        """Return since when scans find that checkpoint or its pin bad; infinity if they do not."""
        return min(self._bad_since.get(key, float("inf")), self.pin_bad_since(folder_name(key)))

    def ask(self, found: DiscoveredCheckpoint) -> Answer:
        """As `Catalog.ask`: by name, not by a listing."""
        checkpoint, host = found.checkpoint, self._life.host

        def effect() -> Answer:
            entries = f"checkpoint:{checkpoint.name}", f"pin:{checkpoint.folder}"
            why = next((why for entry in entries if (why := host.trouble_with(entry)) is not None), None)
            if why is not None:
                return Answer(Presence.UNKNOWN, why)
            pins = () if self._is_away() else self._pins.values()
            there = any(content.key == checkpoint.key for content in (*self._disk.checkpoints.values(), *pins))
            if there:
                self.seen_at[checkpoint.key] = self._simulation.scheduler.now
            return Answer(Presence.THERE if there else Presence.GONE)

        return self._life.storage.call(effect)

    def _is_away(self) -> bool:
        return self._simulation.away_until > self._simulation.scheduler.now

    def _is_missed(self, content: Content) -> bool:
        """Return whether a listing leaves out what an earlier one had."""
        missing = content.key in self.discovery.places and self._life.host.is_wrong("listing_misses")
        return missing and self._simulation.random.random() < 0.3

    def ordered(self, content: Content, other: Content) -> bool:
        """Return whether one scan found both and put the other behind it, as its step is higher."""
        first, second = (self.discovery.seen_at.get(each.key, -1.0) for each in (content, other))
        return first == second >= 0 and content.step < other.step

    def discovered(self, content: Content, folder: str | None) -> DiscoveredCheckpoint:
        """Return what a scan says of a content, in the directory or in a pin."""
        key = content.key, folder
        known = self._simulation.found.get(key)
        if known is None:
            pin = None if folder is None else f"pins/{folder}"
            checkpoint = Checkpoint(
                name=content.name, digest=content.digest, step=content.step, format="tf_object", pin=pin
            )
            place = self._simulation.run_dir / (pin or "..")
            files = (File(content.name, _BYTES, 0, 0, 0),)
            known = self._simulation.found[key] = DiscoveredCheckpoint(
                checkpoint=checkpoint, folder=place, written_at=content.written_at, seen_at=0.0, files=files
            )
        return known


class NodePins:
    """Stands for `daemon.pinner.Pinner`: pins linked at once or copied over some scans.

    They are on the shared disk; with the state in a bucket, on the disk of each node.
    """

    def __init__(self, simulation, life) -> None:
        self._simulation, self._life = simulation, life
        self._disk: Disk = simulation.disk
        self._pins = simulation.disk.pins_of(life.host.name)
        self.exports = NodeExports(simulation, life)

    def pin(self, found: DiscoveredCheckpoint, *, copies: bool) -> DiscoveredCheckpoint | None:
        """Pin a checkpoint; return None while the pin is not finished."""
        checkpoint = found.checkpoint
        folder, copy = checkpoint.folder, self._copy(checkpoint.key)

        def effect() -> Content | None:
            if folder in self._pins:
                return self._pins[folder]
            if self._never_ends(checkpoint):
                return None
            done, content, _ = self._disk.copies.get(copy, (0, self._disk.checkpoints.get(checkpoint.name), ""))
            if content is None:
                raise VanishedError(f"{checkpoint.name} was deleted before it could be pinned")
            if content.digest != checkpoint.digest or is_bad(content, self._life.host.name):
                raise IncompleteError(f"{checkpoint.name} has other content than when it was found")
            if not self._simulation.scenario.links and not (copies or copy in self._disk.copies):
                raise MustCopyError(checkpoint.name)
            if self._simulation.random.random() < self._goes_on():
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
        return self._life.catalog.discovered(content, folder)

    def _goes_on(self) -> float:
        """Return how probable it is that a pin in the making is not finished in a scan."""
        scenario = self._simulation.scenario
        return 0.1 if scenario.links else 0.95 if scenario.copies_slowly else 0.5

    def _never_ends(self, checkpoint: Checkpoint) -> bool:
        """Return whether reading it hangs; raises what writing a pin of it meets."""
        host = self._life.host
        if host.is_wrong(f"hangs:{checkpoint.name}"):
            return True
        if host.trouble_with(f"checkpoint:{checkpoint.name}") is not None:
            raise refused("pin", checkpoint.name, errno.EIO)
        if host.is_wrong("disk_full"):
            raise refused("pin", checkpoint.name, host.full_with)
        if self._simulation.away_until > self._simulation.scheduler.now:
            raise refused("pin", checkpoint.name, errno.EROFS)
        return False

    def unpin(self, checkpoint: Checkpoint) -> None:
        """Remove a pin, unless the storage is away."""

        def effect() -> None:
            if self._life.host.trouble_with(f"pin:{checkpoint.folder}") is not None:
                raise refused("remove", checkpoint.folder, errno.EIO)
            if self._simulation.away_until > self._simulation.scheduler.now:
                return
            if (content := self._pins.pop(checkpoint.folder, None)) is not None:
                self._simulation.unpinned(content, checkpoint.folder, self._life)

        self._life.storage.call(effect, writes=True)

    def bytes(self) -> int:
        """As `Pinner.bytes`: what a copier that died left counts until it did not grow for the patience of others."""
        now, patience = self._simulation.scheduler.now, 2 * self._life.host.spec.settings.patience
        running = {life.incarnation for life in self._simulation.running_lives()}
        making = sum(incarnation in running for _, incarnation in self._disk.copies_of(self._life))
        left = sum(now - at < patience for at in self._disk.leftovers.values())
        return _BYTES * (len(self._pins) + making + left)

    def bytes_alone(self) -> int:
        """Return the bytes of all pins, in place of `Pinner.bytes_alone`."""
        return self.bytes()

    def works_on(self, key: Key) -> bool:
        """Return whether this life copies the checkpoint."""
        return self._copy(key) in self._disk.copies

    def bytes_copied(self) -> dict[str, int]:
        """As `Pinner.bytes_copied`; what lives that ended have begun stays as it is."""
        copied: dict[str, int] = {}
        self._life.storage.call(self._copy_on, writes=True)
        for (digest, _), (size, _, _) in self._life.storage.call(
            lambda: list(self._disk.copies_of(self._life).items())
        ):
            copied[digest] = max(copied.get(digest, 0), size)
        return copied

    def _copy_on(self) -> None:
        """Return what this life copies though it was deleted meanwhile: no scan asks for it."""
        for (digest, incarnation), (done, content, folder) in list(self._disk.copies.items()):
            if incarnation != self._life.incarnation or self._disk.checkpoints.get(content.name) == content:
                continue
            if self._simulation.random.random() < max(0.5, self._goes_on()):
                self._disk.copies[digest, incarnation] = done + 1, content, folder
                continue
            del self._disk.copies[digest, incarnation]
            if folder not in self._pins and self._simulation.random.random() < 0.8:
                self._publish(content, folder)

    def _publish(self, content: Content, folder: str) -> None:
        self._pins[folder] = content
        self._simulation.pinned(content, folder, self._life)

    def _copy(self, key: Key) -> tuple[str, str]:
        _, digest = key
        return digest[:12], self._life.incarnation

    def clean(self, *_) -> None:
        """Remove nothing, in place of `Pinner.clean`."""

    def hanging(self) -> dict[str, str]:
        """Return that no pin hangs."""
        return {}


class NodeExports:
    """Stands for `pins.exports.Exports`: renames between pins and exports; the policy decides as in the product."""

    def __init__(self, simulation, life) -> None:
        self._simulation, self._life = simulation, life
        self._disk: Disk = simulation.disk
        self._pins = simulation.disk.pins_of(life.host.name)
        self._unneeded: set[str] = set()

    def export(self, checkpoint: Checkpoint, policy) -> bool:
        """Turn the pin of a checkpoint into an export."""
        folder = checkpoint.folder
        plan = next(best.plan for _, best in policy.exported()[folder].values())

        def effect() -> None:
            self._refuse(f"pin:{folder}")
            if (content := self._pins.pop(folder, None)) is not None:
                self._disk.exports[folder] = content, plan
                self._simulation.unpinned(content, folder, self._life, exported=True)

        self._life.storage.call(effect, writes=True)
        return True

    def reconcile(self, policy, *, leaving: bool = False) -> ExportsReport:
        """As `Exports.reconcile`, without a link."""
        if policy.exports and self._life.host.spec.settings.export_best:
            with contextlib.suppress(StorageError):
                self._life.storage.call(lambda: self._reconcile(policy, leaving=leaving), writes=True)
        return NO_EXPORTS

    def _reconcile(self, policy, *, leaving: bool) -> None:
        self._refuse("exports")
        unneeded, self._unneeded = self._unneeded, set()
        for folder, (content, plan) in list(self._disk.exports.items()):
            name, digest = content.key
            best = policy.exported().get(folder)
            if best:
                self._disk.exports[folder] = content, next(each.plan for _, each in best.values())
            checkpoint = Checkpoint(name=name, digest=digest, step=content.step, format="tf_object")
            fate = policy.fate_of_export(checkpoint, plan)
            if fate is Fate.RETURNS and folder not in self._pins:
                del self._disk.exports[folder]
                self._pins[folder] = content
                self._simulation.pinned(content, folder, self._life)
            elif fate is Fate.GOES and (leaving or folder in unneeded):
                del self._disk.exports[folder]
                self._simulation.unexported(content, folder, self._life)
            elif fate is Fate.GOES:
                self._unneeded.add(folder)

    def _refuse(self, entry: str) -> None:
        if self._life.host.trouble_with(entry) is not None or self._life.host.is_wrong("disk_full"):
            raise refused("export", entry, errno.EIO)
        if self._simulation.away_until > self._simulation.scheduler.now:
            raise refused("export", entry, errno.EROFS)


class NodeSaves:
    """Stands for `retention.saves`: saves on the shared disk; with the state in a bucket, on the disk of each node."""

    def __init__(self, simulation, life) -> None:
        self._simulation, self._life = simulation, life

    def store(self, plan: Plan) -> bool:
        """As `BucketSaves.store`: upload the saves of this node, and return whether those of all nodes are there."""
        saves, storage = self._simulation.disk.saves, self._life.storage

        def upload(folder: str) -> None:
            if folder in saves:
                saves[folder].uploaded_at = min(saves[folder].uploaded_at, self._simulation.scheduler.now)

        def are_there() -> bool:
            return all(each in saves and saves[each].uploaded_at < float("inf") for each in plan.saves)

        try:
            for member, folder in zip(plan.members or (), plan.saves, strict=True):
                if member.node == self._life.host.name:
                    self._life.objects.may_fail()
                    storage.call(partial(upload, folder), writes=True)
                    self._life.objects.may_fail()
            return bool(storage.call(are_there))
        except OSError as error:
            raise StorageError(f"cannot upload the saves of plan {plan.plan}: {error.strerror}") from error

    def tidy(self, tidying) -> CleanupResult:
        """Remove saves and measure the others, unless the host cannot read them."""
        sizes, storage = dict.fromkeys(tidying.measure, 1), self._life.storage
        try:
            if self._life.host.is_wrong("saves_unreadable") and (tidying.drop or tidying.measure):
                storage.call(self._refuse)
            if tidying.drop:
                storage.call(lambda: self._simulation.tidied(tidying.drop, self._life), writes=True)
        except StorageError as error:
            return CleanupResult(sizes=sizes, failed=dict.fromkeys(tidying.drop, str(error)))
        return CleanupResult(sizes=sizes)

    def _refuse(self) -> None:
        raise refused("measure", "evaluations", errno.EIO)
