"""Keep exports in the bucket that holds the state of a run: `export_folder.OpenExports` says what the methods do.

Nothing can be renamed there. The manifest of an export is its first object and its last one to go, so that a part shows
which evaluation it belongs to; the record of the pin is the last one to come, and the first to go, so that an export
which has both is whole. An object names the best export. Several nodes may upload the same, which is harmless.
"""

import contextlib
import errno
from collections.abc import Callable
from typing import Final

from sidecar.checkpoints.inspect import FETCHED
from sidecar.errors import RecordError
from sidecar.protocol.codec import dumps, loads
from sidecar.protocol.record_limits import SMALL
from sidecar.protocol.records import Checkpoint
from sidecar.retention.exports.export_folder import EXPORTS, PINS, remove_folder
from sidecar.retention.exports.export_manifest import (
    LONGEST,
    MANIFESTS,
    MOST_FILES,
    ExportedFile,
    Manifest,
    NamedBest,
    decoded,
    encoded,
    manifest_name,
)
from sidecar.retention.pins.names import PIN_RECORD, removed_name
from sidecar.retention.saves.bucket_saves import upload
from sidecar.system.bucket_folder import BucketState
from sidecar.system.confined import Folder, open_folder
from sidecar.system.object_store import StoredObject

_BEST: Final = "best.json"
_RECORDS: Final = (*MANIFESTS, PIN_RECORD, FETCHED)  # what is not a file of the checkpoint


class BucketExports:
    """Read and change exports by one listing, which is made at once. Methods raise `BucketError`."""

    def __init__(self, root: BucketState) -> None:
        assert root.objects is not None, "`state_storage` sets it"
        self._root, self._objects = root, root.objects
        self._top: set[str] = set()
        self._listed: dict[str, dict[str, StoredObject]] = {}
        for found in self._objects.listing(EXPORTS):
            name, is_folder, path = found.key.removeprefix(f"{EXPORTS}/").partition("/")
            if is_folder:
                self._listed.setdefault(name, {})[path] = found
            else:
                self._top.add(name)

    def names(self) -> list[str]:
        """Return the names of those that have their first object and their last one."""
        return [
            name
            for name, found in self._listed.items()
            if PIN_RECORD in found and not found.keys().isdisjoint(MANIFESTS)
        ]

    def unfinished(self) -> list[str]:
        """Return the names of all others."""
        return sorted(self._listed.keys() - set(self.names()))

    def others(self) -> list[str]:
        """Return the names of objects next to the exports."""
        return sorted(self._top - {_BEST})

    def best(self) -> str | None:
        """Return the export that the object names."""
        data = self._objects.content(f"{EXPORTS}/{_BEST}", SMALL.size) if _BEST in self._top else None
        try:
            name = "" if data is None else loads(NamedBest, data).export
        except RecordError:
            return None
        return None if "/" in name or name in ("", ".", "..") else name

    def name_best(self, name: str) -> None:
        """Write the object that names the best export."""
        self._objects.put(f"{EXPORTS}/{_BEST}", dumps(NamedBest(name)))
        self._top.add(_BEST)

    def name_none(self) -> None:
        """Delete the object that names the best export."""
        if _BEST in self._top:
            self._objects.delete(f"{EXPORTS}/{_BEST}")

    def manifest(self, name: str) -> Manifest | None:
        """Return the manifest of an export."""
        for each in MANIFESTS:
            if each in self._listed.get(name, ()):
                found = self._objects.beginning(f"{EXPORTS}/{name}/{each}", LONGEST + 1)
                if found is not None and (manifest := decoded(found[0])) is not None:
                    return manifest
        return None

    def describe(self, name: str, manifest: Manifest) -> None:
        """Write the manifest of an export."""
        self._objects.put(f"{EXPORTS}/{name}/{manifest_name(manifest.path)}", encoded(manifest))

    def files(self, checkpoint: Checkpoint) -> tuple[ExportedFile, ...]:
        """Return the files that were uploaded."""
        found = self._listed.get(checkpoint.folder, {})
        return tuple(ExportedFile(path, found[path].size) for path in sorted(found.keys() - {*_RECORDS})[:MOST_FILES])

    def take_pin(self, checkpoint: Checkpoint) -> bool:
        """Upload a pin, unless the export is there, and remove the pin."""
        name = checkpoint.folder
        is_new = name not in self.names()
        if is_new:
            with contextlib.suppress(FileNotFoundError):
                upload(self._objects, self._root, f"{PINS}/{name}", f"{EXPORTS}/{name}", MANIFESTS, PIN_RECORD)
        with open_folder(self._root) as state, state.folder(PINS) as pins:
            remove_folder(pins, name)
        return is_new

    def give_back(self, name: str, require_room: Callable[[int], None]) -> bool:
        """Fetch an export into a pin of this node, and leave it where it is: other nodes need it, too."""
        with open_folder(self._root) as state, state.folder(PINS, make=True) as pins:
            with contextlib.suppress(FileNotFoundError):
                pins.stat(name)
                return False  # it is pinned again already
            require_room(sum(found.size for found in self._listed.get(name, {}).values()))
            temporary = removed_name()
            try:
                with pins.folder(temporary, make=True) as folder:
                    self.fetch(name, folder)
                    folder.sync()
                pins.rename(temporary, name)
            except OSError as error:
                with contextlib.suppress(OSError):
                    pins.remove(temporary)
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                    return False
                raise
            pins.sync()
        return True

    def fetch(self, name: str, into: Folder) -> None:
        """Fetch all objects of an export into an empty folder."""
        for path, found in self._listed.get(name, {}).items():
            above, _, base = path.rpartition("/")
            with (
                into.folder(above, make=True) if above else contextlib.nullcontext(into) as folder,
                folder.create_file(base) as file,
            ):
                self._objects.fetch(found.key, found.etag, found.size, file)

    def is_whole(self, name: str, manifest: Manifest) -> bool:
        """Return whether all files that a manifest names are there with their sizes."""
        found = self._listed.get(name, {})
        return name in self.names() and all(
            file.name in found and found[file.name].size == file.size for file in manifest.files
        )

    def remove(self, name: str) -> None:
        """Delete the objects of an export, in the order in which a part of it shows what it is."""
        for path in sorted(self._listed.get(name, {}), key=lambda path: (path in MANIFESTS, path != PIN_RECORD)):
            self._objects.delete(f"{EXPORTS}/{name}/{path}")

    def remove_leftovers(self, names: set[str]) -> set[str]:
        """Do nothing: `unfinished` names them."""
        return names

    def bytes(self) -> int:
        """Return the bytes of all objects."""
        return sum(found.size for listed in self._listed.values() for found in listed.values())
