"""Hold the keys of very many checkpoints in little memory. Pure.

A long run has evaluated a hundred thousand checkpoints, and every daemon knows all of them. A key is a name and a
digest of 64 digits, and takes 250 bytes as two texts in a tuple. Packed in bytes and in a dict it takes 130, and each
of these small objects keeps a page of memory that is free otherwise. In one block of memory it takes 60.
"""

import re
from array import array
from binascii import unhexlify
from collections.abc import Collection, Iterable, Iterator, MutableSet
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from sidecar.protocol.records import Key, folder_name

_BYTES: Final = 32  # of a digest
_LENGTH: Final = 2  # bytes that tell the length of a key
_LONGEST: Final = 2 ** (8 * _LENGTH) - 1
_ALL: Final = 255  # bits
_FOLDER_DIGITS: Final = re.compile("[0-9a-f]{12}")  # at the end of the name of a folder
_FOLDER_BYTES: Final = 6

PackedKey = bytes | Key  # a key whose digest is not one, or whose name is too long or not UTF-8, stays as it is


class _Table:
    """Map packed keys to bits; 0 if a key is absent.

    The block has a key behind the other, each after a byte of its bits and two of its length. A hash table has the
    places of their lengths. Keys stay in the block once they are there, in the order in which they came.
    """

    __slots__ = ("block", "count", "odd", "places")

    def __init__(self) -> None:
        self.block = bytearray()
        self.places = array("I", bytes(4 * 8))  # 0: free; no length is at the beginning of the block
        self.count = 0
        self.odd: dict[Key, int] = {}

    def get(self, key: PackedKey) -> int:
        """Return the bits of a key."""
        if isinstance(key, tuple):
            return self.odd.get(key, 0)
        place = self.places[self._slot(_entry(key))]
        return self.block[place - 1] if place else 0

    def set_bit(self, key: PackedKey, bit: int) -> bool:
        """Set a bit of a key, and return whether it was not set."""
        if isinstance(key, tuple):
            bits = self.odd.get(key, 0)
            self.odd[key] = bits | bit
            return not bits & bit
        slot = self._slot(entry := _entry(key))
        if place := self.places[slot]:
            return self.set_bit_at(place - 1, bit)
        self.block.append(bit)
        self.places[slot] = len(self.block)
        self.block += entry
        self.count += 1
        if 2 * self.count >= len(self.places):
            self._grow()
        return True

    def set_bit_at(self, at: int, bit: int) -> bool:
        """Set a bit of the key that begins there, and return whether it was not set."""
        bits = self.block[at]
        self.block[at] = bits | bit
        return not bits & bit

    def clear_bit(self, key: PackedKey, bit: int) -> bool:
        """Clear a bit of a key, and return whether it was set."""
        bits = self.get(key)
        if not bits & bit:
            return False
        if isinstance(key, tuple):
            self.odd[key] = bits ^ bit
        else:
            self.block[self.places[self._slot(_entry(key))] - 1] = bits ^ bit
        return True

    def entries(self, bit: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Yield where they begin and the keys of the first bytes of the block that have this bit.

        The table may grow meanwhile.
        """
        at, block = 0, self.block
        while at < end:
            begin = at + 1 + _LENGTH
            after = begin + (block[at + 1] << 8) + block[at + 2]
            if block[at] & bit:
                yield at, bytes(block[begin:after])
            at = after

    def _slot(self, entry: bytes) -> int:
        """Return the slot of the hash table that has the place of an entry, or where it belongs."""
        places, begins = self.places, self.block.startswith
        last = len(places) - 1
        slot = hash(entry) & last
        while (place := places[slot]) and not begins(entry, place):
            slot = (slot + 1) & last
        return slot

    def _grow(self) -> None:
        self.places = places = array("I", bytes(8 * len(self.places)))
        last = len(places) - 1
        for at, key in self.entries(_ALL, len(self.block)):
            slot = hash(_entry(key)) & last
            while places[slot]:
                slot = (slot + 1) & last
            places[slot] = at + 1


@dataclass(frozen=True, slots=True)
class PackedKeys:
    """Yield the keys that were in a set, in the order in which they came, whatever is added to the set meanwhile."""

    table: _Table
    bit: int
    end: int
    odd: tuple[Key, ...]

    def __iter__(self) -> Iterator[PackedKey]:
        """Yield the keys."""
        return chain((key for _, key in self.table.entries(self.bit, self.end)), self.odd)


def _entry(key: bytes) -> bytes:
    return len(key).to_bytes(_LENGTH) + key


class KeySet(MutableSet[Key]):
    """Be a set of keys. It equals every set with the same keys.

    A set that is made `beside` another one shares its `table`, so a key that is in both takes its memory once. The
    table has a `bit` for each of these sets, of which there are at most eight.
    """

    __slots__ = ("_count", "bit", "bits", "table")

    def __init__(self, keys: Iterable[Key] = (), *, beside: "KeySet | None" = None) -> None:
        self.table: _Table = _Table() if beside is None else beside.table
        self.bits: list[int] = [] if beside is None else beside.bits
        self.bit: int = 1 << len(self.bits)
        self.bits.append(self.bit)
        self._count = 0
        for key in keys:
            self.add(key)

    def __contains__(self, key: object) -> bool:
        """Return whether a key is in the set."""
        return self.table.get(pack(key)) & self.bit != 0

    def __iter__(self) -> Iterator[Key]:
        """Yield the keys."""
        return map(unpack, self.packed())

    def __len__(self) -> int:
        """Return the number of keys."""
        return self._count

    def __repr__(self) -> str:
        """Return the keys as text."""
        return f"KeySet({set(self)})"

    def add(self, value: Key) -> None:
        """Add a key."""
        self._count += self.table.set_bit(pack(value), self.bit)

    def discard(self, value: Key) -> None:
        """Remove a key if it is there."""
        self._count -= self.table.clear_bit(pack(value), self.bit)

    def without(self, others: "KeySet") -> "KeySet":
        """Return the keys that are not in another set, as a set beside this one."""
        found, table = KeySet(beside=self), self.table
        for at, key in table.entries(self.bit, len(table.block)):
            if not others or not others.table.get(key) & others.bit:
                found._count += table.set_bit_at(at, found.bit)
        for odd in self.packed().odd:
            if not others.table.get(odd) & others.bit:
                found._count += table.set_bit(odd, found.bit)
        return found

    def packed(self) -> "PackedKeys":
        """Return the keys that are in the set now, packed."""
        odd = tuple(key for key, bits in self.table.odd.items() if bits & self.bit)
        return PackedKeys(self.table, self.bit, len(self.table.block), odd)

    def in_folders(self, folders: Collection[str]) -> Iterator[Key]:
        """Yield the keys of checkpoints with these folder names (`folder_name`), without unpacking all others."""
        ends = {folder.rpartition("@")[2] for folder in folders}
        starts = {bytes.fromhex(end) for end in ends if _FOLDER_DIGITS.fullmatch(end)}
        for packed in self.packed():
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
            packed += name.encode()
            return packed if len(packed) <= _LONGEST else (name, digest)
    except ValueError:  # it has other characters, or the name is not UTF-8
        pass
    return name, digest


def unpack(packed: PackedKey) -> Key:
    """Return the key that `pack` returned as this."""
    if isinstance(packed, tuple):
        return packed
    return packed[_BYTES:].decode(), packed[:_BYTES].hex()
