"""Read single integers in an HDF5 file by their paths, without HDF5's library.

Source: "HDF5 File Format Specification Version 3.0": III.A.1 (B-trees), III.C (symbol table nodes), III.D (local
heaps), IV.A (object headers and their messages). This reader supports groups of the old style, as h5py writes them,
groups whose links lie in their own header, and data sets of one integer that are stored in one piece.

The bytes are untrusted. Every address is compared with the file's length before it is read, and the calls and bytes
per file are bounded. Any other content raises `UnexpectedError`.
"""

from collections.abc import Iterator
from typing import BinaryIO, Final, NamedTuple

from sidecar.checkpoints.files import read_at

_MAX_READS: Final = 1000
_MAX_BYTES: Final = 4 * 1024 * 1024
_MAX_CHUNK_BYTES: Final = 1024 * 1024  # one chunk of an object header, which may contain attributes
_MAX_DEPTH: Final = 16  # levels of a tree of names
_NAME_BYTES: Final = 256
_SUPERBLOCK_BYTES: Final = 128
_ROOT_AT: Final = {0: 64, 1: 68, 2: 36, 3: 36}  # the address of the root's object header, by version, all 8 bytes wide
_WIDTHS_AT: Final = {0: 13, 1: 13, 2: 9, 3: 9}
_WIDTHS: Final = b"\x08\x08"  # bytes of addresses and of lengths
_ENTRY_BYTES: Final = 40  # one entry of a symbol table
_SOFT_LINK: Final = 2
_INTEGER_BYTES: Final = (4, 8)

# Types of messages
_DATASPACE: Final = 0x01
_DATATYPE: Final = 0x03
_LINK: Final = 0x06
_EXTERNAL: Final = 0x07
_LAYOUT: Final = 0x08
_CONTINUATION: Final = 0x10
_SYMBOL_TABLE: Final = 0x11


class UnexpectedError(ValueError):
    """Report content that this reader does not support, damaged or not."""


class _Message(NamedTuple):
    """Hold one message of an object header."""

    kind: int
    data: bytes


class Hdf5Numbers:
    """Read integers of one HDF5 file, or of a part of a file that begins at `start` and has `size` bytes."""

    def __init__(self, file: BinaryIO, start: int, size: int) -> None:
        self._file, self._start, self._size = file, start, size
        self._reads, self._bytes = _MAX_READS, _MAX_BYTES

    def root(self) -> int:
        """Return the address of the root group."""
        head = self._read(0, min(_SUPERBLOCK_BYTES, self._size))
        version = head[8] if len(head) > max(_ROOT_AT.values()) + 8 else -1
        if version not in _ROOT_AT or head[_WIDTHS_AT[version] :][:2] != _WIDTHS:
            raise UnexpectedError(f"superblock {version}")
        return _number(head, _ROOT_AT[version], 8)

    def child(self, group: int, *path: str) -> int | None:
        """Return the address of the object at a path within a group; None if there is no such object."""
        for name in path:
            address = self._links(group, name.encode()).get(name.encode())
            if address is None:
                return None
            group = address
        return group

    def children(self, group: int) -> dict[str, int]:
        """Return the addresses of all objects in a group, by name."""
        return {name.decode("utf-8", "replace"): address for name, address in sorted(self._links(group).items())}

    def integer(self, dataset: int) -> int | None:
        """Return the value of a data set that is a single integer; None for any other data set."""
        messages = {message.kind: message.data for message in self._messages(dataset)}
        space, kind, layout = (messages.get(number, b"") for number in (_DATASPACE, _DATATYPE, _LAYOUT))
        # The first bytes are the version and the rank. A null dataspace has no value.
        is_scalar = space[:2] in (b"\x01\x00", b"\x02\x00") and space[3:4] == b"\x00"
        if not is_scalar or len(kind) < 8 or kind[0] & 15 or _EXTERNAL in messages:  # noqa: PLR2004 - class 0: integers
            return None
        width, is_big, is_signed = _number(kind, 4, 4), kind[1] & 1, bool(kind[1] & 8)
        if width not in _INTEGER_BYTES or layout[:1] not in (b"\x03", b"\x04"):
            return None
        if layout[1:2] == b"\x00" and _number(layout, 2, 2) == width:  # compact
            raw = layout[4 : 4 + width]
        elif layout[1:2] == b"\x01" and _number(layout, 10, 8) == width:  # contiguous
            raw = self._read(_number(layout, 2, 8), width)
        else:
            return None
        return int.from_bytes(raw, "big" if is_big else "little", signed=is_signed) if len(raw) == width else None

    def _links(self, group: int, wanted: bytes | None = None) -> dict[bytes, int]:
        """Return the addresses of a group's links by name. In a large group only links near the `wanted` name count."""
        links = dict[bytes, int]()
        for message in self._messages(group):
            if message.kind == _SYMBOL_TABLE:
                links |= self._symbols(_number(message.data, 0, 8), _number(message.data, 8, 8), wanted)
            elif message.kind == _LINK:
                links |= _link(message.data)
        return links

    def _symbols(self, tree: int, heap: int, wanted: bytes | None) -> dict[bytes, int]:
        """Return the addresses in a symbol table by name: entries in the nodes of `tree` point to names in `heap`."""
        head = self._read(heap, 32)
        if head[:4] != b"HEAP":
            raise UnexpectedError("local heap")
        size, data = _number(head, 8, 8), _number(head, 24, 8)
        names = self._read(data, min(size, _MAX_CHUNK_BYTES))
        symbols = dict[bytes, int]()
        for node in self._leaves(tree, names, wanted, _MAX_DEPTH):
            table = self._read(node, 8)
            count = _number(table, 6, 2)
            if table[:4] != b"SNOD":
                raise UnexpectedError("symbol table node")
            entries = self._read(node + 8, count * _ENTRY_BYTES)
            for at in range(0, len(entries), _ENTRY_BYTES):
                name_at, address, cache = (_number(entries, at + i, n) for i, n in ((0, 8), (8, 8), (16, 4)))
                name = _name(names, name_at)
                if cache != _SOFT_LINK and name:
                    symbols[name] = address
        return symbols

    def _leaves(self, tree: int, names: bytes, wanted: bytes | None, depth: int) -> Iterator[int]:
        """Yield the addresses of the tree's leaves whose range of keys contains `wanted`; None: of all leaves."""
        head = self._read(tree, 24)
        if head[:5] != b"TREE\0" or not depth:
            raise UnexpectedError("tree of names")
        level, count = head[5], _number(head, 6, 2)
        body = self._read(tree + 24, 16 * count + 8)
        for at in range(8, 16 * count, 16):
            lower, upper = (_name(names, _number(body, key, 8)) for key in (at - 8, at + 8))
            if wanted is not None and not lower < wanted <= upper:
                continue
            if level:
                yield from self._leaves(_number(body, at, 8), names, wanted, depth - 1)
            else:
                yield _number(body, at, 8)

    def _messages(self, address: int) -> Iterator[_Message]:
        """Yield the messages of an object header of version 1 or 2."""
        head = self._read(address, 16)
        if head[:4] == b"OHDR" and head[4] == 2:  # noqa: PLR2004 - the second version
            flags = head[5]
            at = 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0)
            width = 1 << (flags & 3)
            length = _number(self._read(address + at, width), 0, width)
            yield from self._chunks(address + at + width, length, 4, 6 if flags & 4 else 4)
        elif head[0] == 1:
            yield from self._chunks(address + 16, _number(head, 8, 4), 0, 8)
        else:
            raise UnexpectedError("object header")

    def _chunks(self, start: int, length: int, margin: int, head: int) -> Iterator[_Message]:
        """Yield the messages of the chunks of a header. Chunks after the first have `margin` bytes on both sides.

        `head`: bytes before the content of each message.
        """
        waiting = [(start, length)]
        while waiting:
            chunk, at = self._read(*waiting.pop(0)), 0
            while at + head <= len(chunk):
                # Version 1 has two bytes for the type, version 2 has one.
                kind_bytes = 1 if margin else 2
                kind, size = _number(chunk, at, kind_bytes), _number(chunk, at + kind_bytes, 2)
                data = chunk[at + head : at + head + size]
                at += head + size
                if kind == _CONTINUATION:
                    waiting.append((_number(data, 0, 8) + margin, max(0, _number(data, 8, 8) - 2 * margin)))
                else:
                    yield _Message(kind, data)

    def _read(self, at: int, length: int) -> bytes:
        """Return `length` bytes from the address `at` on, within the bounds of the file and of what may be read."""
        self._reads -= 1
        self._bytes -= length
        if self._reads < 0 or self._bytes < 0 or length > _MAX_CHUNK_BYTES:
            raise UnexpectedError("more than any model needs")
        if at < 0 or at + length > self._size:
            raise UnexpectedError("an address outside the file")
        data = read_at(self._file, length, self._start + at)
        if len(data) < length:
            raise UnexpectedError("the file became shorter")
        return data


def _link(message: bytes) -> dict[bytes, int]:
    """Return the name and address of a hard link from its message; empty for a soft or external link."""
    if message[:1] != b"\x01" or len(message) < 4:  # noqa: PLR2004 - the shortest
        return {}
    flags, at = message[1], 2
    if flags & 8:
        if message[at]:  # soft, or external
            return {}
        at += 1
    at += (8 if flags & 4 else 0) + (1 if flags & 0x10 else 0)
    width = 1 << (flags & 3)
    length, at = _number(message, at, width), at + width
    return {message[at : at + length]: _number(message, at + length, 8)}


def _name(names: bytes, at: int) -> bytes:
    """Return the name that begins at the offset `at` in the heap, up to its zero byte."""
    return names[at : at + _NAME_BYTES].split(b"\0", 1)[0]


def _number(data: bytes, at: int, length: int) -> int:
    """Return a little-endian number of `length` bytes. Raises `UnexpectedError` if it is cut off."""
    part = data[at : at + length]
    if len(part) < length:
        raise UnexpectedError("a number that is cut off")
    return int.from_bytes(part, "little")
