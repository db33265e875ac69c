"""Hold the keys of very many checkpoints in little memory. Pure.

A long run has evaluated a hundred thousand checkpoints, and every daemon knows all of them. A key is a name and a
digest of 64 digits, and takes 250 bytes as two texts in a tuple. In bytes it takes 80, and says the same.
"""

import re
from collections.abc import Collection, Iterable, Iterator, MutableSet
from functools import lru_cache
from typing import Any, Final

from sidecar.protocol.records import Key, folder_name

_DIGITS: Final = 64
_BYTES: Final = _DIGITS // 2
_FOLDER_DIGITS: Final = re.compile("[0-9a-f]{12}")  # at the end of the name of a folder
_FOLDER_BYTES: Final = 6

_Packed = bytes | Key  # a key whose digest is not one, as no daemon writes it, stays as it is


class KeySet(MutableSet[Key]):
    """Be a set of keys. It equals every set with the same keys."""

    __slots__ = ("_packed",)

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self._packed: set[_Packed] = set(map(_pack, keys))

    def __contains__(self, key: object) -> bool:
        """Return whether a key is in the set."""
        return _pack(key) in self._packed

    def __iter__(self) -> Iterator[Key]:
        """Yield the keys, in no order."""
        return map(_unpack, self._packed)

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._packed)

    def __repr__(self) -> str:
        """Return the keys as text."""
        return f"KeySet({set(self)})"

    def add(self, value: Key) -> None:
        """Add a key."""
        self._packed.add(_shared(value))

    def discard(self, value: Key) -> None:
        """Remove a key if it is there."""
        self._packed.discard(_pack(value))

    def difference(self, others: "KeySet") -> "KeySet":
        """Return the keys that are not in another set."""
        found = KeySet()
        found._packed = self._packed - others._packed  # noqa: SLF001 - of the same class
        return found

    def in_folders(self, folders: Collection[str]) -> Iterator[Key]:
        """Yield the keys of checkpoints with these folder names (`folder_name`), without unpacking all others."""
        ends = {folder.rpartition("@")[2] for folder in folders}
        starts = {bytes.fromhex(end) for end in ends if _FOLDER_DIGITS.fullmatch(end)}
        for packed in self._packed:
            if (packed[:_FOLDER_BYTES] in starts) if isinstance(packed, bytes) else (packed[1][:12] in ends):
                key = _unpack(packed)
                if folder_name(key) in folders:
                    yield key


def _pack(key: Any) -> _Packed:
    name: str
    digest: str
    name, digest = key
    if len(digest) == _DIGITS:
        try:
            packed = bytes.fromhex(digest)
        except ValueError:
            return name, digest
        if packed.hex() == digest:  # `fromhex` also takes capital letters and blanks
            return packed + name.encode(errors="surrogatepass")
    return name, digest


@lru_cache(maxsize=2)
def _shared(key: Key) -> _Packed:
    """Return the packed key. Sets to which the same key is added one after the other share its bytes."""
    return _pack(key)


def _unpack(packed: _Packed) -> Key:
    if isinstance(packed, tuple):
        return packed
    return packed[_BYTES:].decode(errors="surrogatepass"), packed[:_BYTES].hex()
