"""Hold the keys of very many checkpoints in little memory. Pure.

A long run has evaluated a hundred thousand checkpoints, and every daemon knows all of them. A key is a name and a
digest of 64 digits, and takes 250 bytes as two texts in a tuple. In bytes it takes 80, and says the same.
"""

import re
from binascii import unhexlify
from collections.abc import Collection, Iterable, Iterator, MutableSet
from heapq import merge
from typing import Any, Final

from sidecar.protocol.records import Key, folder_name

_BYTES: Final = 32  # of a digest
_FOLDER_DIGITS: Final = re.compile("[0-9a-f]{12}")  # at the end of the name of a folder
_FOLDER_BYTES: Final = 6

PackedKey = bytes | Key  # a key whose digest is not one, or whose name is not UTF-8, stays as it is


class KeySet(MutableSet[Key]):
    """Be a set of keys. It equals every set with the same keys.

    A set that is made `beside` another one shares its `table`, so a key that is in both takes its memory once. The
    table has a `bit` for each of these sets. It is a dict, because a set reserves four times as many places.
    """

    __slots__ = ("_count", "bit", "bits", "table")

    def __init__(self, keys: Iterable[Key] = (), *, beside: "KeySet | None" = None) -> None:
        self.table: dict[PackedKey, int] = {} if beside is None else beside.table
        self.bits: list[int] = [] if beside is None else beside.bits
        self.bit: int = 1 << len(self.bits)
        self.bits.append(self.bit)
        self._count = 0
        for key in keys:
            self.add(key)

    def __contains__(self, key: object) -> bool:
        """Return whether a key is in the set."""
        return self.table.get(pack(key), 0) & self.bit != 0

    def __iter__(self) -> Iterator[Key]:
        """Yield the keys, in no order."""
        return map(unpack, self._packed())

    def __len__(self) -> int:
        """Return the number of keys."""
        return self._count

    def __repr__(self) -> str:
        """Return the keys as text."""
        return f"KeySet({set(self)})"

    def add(self, value: Key) -> None:
        """Add a key."""
        self._add(pack(value))

    def discard(self, value: Key) -> None:
        """Remove a key if it is there."""
        packed = pack(value)
        bits = self.table.get(packed, 0)
        if bits & self.bit:
            self._count -= 1
            self.table[packed] = bits ^ self.bit
            if bits == self.bit:
                del self.table[packed]

    def without(self, others: "KeySet") -> "KeySet":
        """Return the keys that are not in another set, as a set beside this one."""
        found = KeySet(beside=self)
        for packed in list(self._packed()):
            if not others.table.get(packed, 0) & others.bit:
                found._add(packed)
        return found

    def _add(self, packed: PackedKey) -> None:
        bits = self.table.get(packed, 0)
        if not bits & self.bit:
            self._count += 1
            self.table[packed] = bits | self.bit

    def _packed(self) -> Iterator[PackedKey]:
        return (packed for packed, bits in self.table.items() if bits & self.bit)

    def in_order(self) -> list[PackedKey]:
        """Return the keys, packed, in the order of their texts `DIGEST/NAME`, which are not made all at once."""
        plain: list[PackedKey] = sorted(
            key for key in self._packed() if isinstance(key, bytes)
        )  # UTF-8 has the order of the text
        odd: list[PackedKey] = sorted((key for key in self._packed() if isinstance(key, tuple)), key=_text)
        return list(merge(plain, odd, key=_text))

    def in_folders(self, folders: Collection[str]) -> Iterator[Key]:
        """Yield the keys of checkpoints with these folder names (`folder_name`), without unpacking all others."""
        ends = {folder.rpartition("@")[2] for folder in folders}
        starts = {bytes.fromhex(end) for end in ends if _FOLDER_DIGITS.fullmatch(end)}
        for packed in self._packed():
            if (packed[:_FOLDER_BYTES] in starts) if isinstance(packed, bytes) else (packed[1][:12] in ends):
                key = unpack(packed)
                if folder_name(key) in folders:
                    yield key


def pack(key: Any) -> PackedKey:
    """Return a key in a third of its memory."""
    name: str
    digest: str
    name, digest = key
    try:
        packed = unhexlify(digest)
        if len(packed) == _BYTES and packed.hex() == digest:  # capital letters are not
            return packed + name.encode()
    except ValueError:  # it has other characters, or the name is not UTF-8
        pass
    return name, digest


def _text(packed: PackedKey) -> str:
    name, digest = unpack(packed)
    return f"{digest}/{name}"


def unpack(packed: PackedKey) -> Key:
    """Return the key that `pack` returned as this."""
    if isinstance(packed, tuple):
        return packed
    return packed[_BYTES:].decode(), packed[:_BYTES].hex()
