"""Simulate an object store as the storage of the state: the product's `ObjectStorage` over requests that go wrong.

An object is whole or absent, and seen by all as soon as its write was carried out. But a request may be refused (429)
or answered with an error (503) before or after its effect; a create at the same moment is a conflict (409), which says
nothing; an object that was just written may refuse the next write; a page of a listing is older than the next page.
Each node has a disk of its own: for its pins, which are downloads, and for its saves, which it uploads. Hanging
servers, nodes that are cut off and stopped daemons are those of `storage.NodeStorage`.
"""

import errno
import hashlib

from sidecar.coordination.object_storage import ObjectStorage
from sidecar.system.object_store import BucketError, StoredObject

ABSENT = frozenset(
    {
        "names_lost",
        "state_away",
        "stale_reads",
        "short_reads",
        "run_missing",
        "listing_misses",
        "reads_go_back",
        "rewind",
    }
)
"""Faults of filesystems that no object store has, which is strongly consistent."""

_CHANCE = 0.02  # of each kind of trouble, for each request
_CONFLICT_SECONDS = 0.5
_SAVES = "evaluations"
_OF_AN_OUTCOME = _SAVES, "outcomes", "run.json"
_WRITE_LIMIT_SECONDS = 0.5


class BucketStorage(ObjectStorage):
    """The product's storage, which tells of which node it is."""

    def __init__(self, objects, url, spec):
        super().__init__(objects, url)
        self.spec = spec


def bucket_storage(objects: "SimulatedObjects") -> ObjectStorage:
    """Return the run's state as one life of a daemon reaches it in a bucket."""
    return BucketStorage(objects, "s3://bucket/run", objects.spec)


class SimulatedObjects:
    """The requests of one life, as `system.object_store.ObjectStore` makes them."""

    def __init__(self, simulation, node) -> None:
        self._simulation, self._node, self.spec = simulation, node, node.spec
        self.record_refused_at = 0.0  # when the server last answered with an error to what an outcome needs
        self._contents = {}
        self._probes = {}  # objects that a daemon tries conditions with, and that no other node sees

    def beginning(self, key, most):
        """Return the first bytes and the etag."""
        self.may_fail(key)
        data = self._probes.get(key) if _is_probe(key) else self._node.read(key)
        if data is None:
            return None
        etag = _etag(data)
        self._contents[etag] = data
        return data[:most], etag

    def create(self, key, data):
        """Create an object, unless the name exists."""
        self.may_fail(key)
        if _is_probe(key):
            self._probes.setdefault(key, data)
            return True
        creating, now = self._simulation.creating, self._simulation.scheduler.now
        if now - creating.get(key, -1e9) < _CONFLICT_SECONDS and self._simulation.random.random() < 0.5:
            raise _error("409 (ConditionalRequestConflict)")
        creating[key] = now
        self._node.create(key, data)
        self.may_fail(key)
        return True

    def put(self, key, data, *, instead_of=""):
        """Write an object, or only in place of one with this etag, which the server compares."""
        self.may_fail(key)
        now, written = self._simulation.scheduler.now, self._simulation.disk.written
        if now - written.get(key, -1e9) < _WRITE_LIMIT_SECONDS and self._is_trouble(0.2):
            raise _error("429 (SlowDown)")
        before = self._contents[instead_of] if instead_of else None
        if _is_probe(key):
            self._probes[key] = data if before in (None, self._probes[key]) else self._probes[key]
            return ""
        self._node.replace(key, data, survives_crash=True, instead_of=before)
        self.may_fail(key)
        return _etag(data)

    def delete(self, key):
        """Delete an object."""
        self.may_fail(key)
        if _is_probe(key):
            self._probes.pop(key, None)
            return
        self._node.remove(key)
        self.may_fail(key)

    def listing(self, folder=""):
        """List in two pages: what came between them into the first is missing, and what went from it is there."""
        self.may_fail(folder)
        first = self._node.names(folder)
        middle = first[len(first) // 2] if first else ""
        second = self._node.names(folder)
        written = self._simulation.disk.written
        names = [*(name for name in first if name < middle), *(name for name in second if name >= middle)]
        files = self._simulation.disk.files
        return [
            StoredObject(key := f"{folder}/{name}", 1, int(written.get(key, 0) * 1e9), _etag(files.get(key, b"")))
            for name in names
        ]

    def _is_trouble(self, chance=_CHANCE):
        return not self._simulation.healed and self._simulation.random.random() < chance

    def may_fail(self, key=_SAVES):
        """Raise the answer of a server that is overloaded, now and then."""
        if self._is_trouble():
            if key.startswith(_OF_AN_OUTCOME):
                self.record_refused_at = self._simulation.scheduler.now
            raise _error("503 (ServiceUnavailable)")


def _etag(data):
    return hashlib.sha256(data).hexdigest()


def _is_probe(key):
    return key.startswith(".probe-")


def _error(answer):
    return BucketError(errno.ETIMEDOUT, f"the server answered {answer}")
