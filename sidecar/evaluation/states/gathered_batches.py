"""Gather contents of any size from all batches, in the order of the data. Imports numpy, never a framework.

Some metrics keep lists of values whose number is unknown in advance. Each rank has the contents of its own batches. The
rows that a rank reports as used are the bits of the size of its contents. So after the first sum of an evaluation all
ranks know all sizes, and in the second sum each rank fills its own part of one long vector.
"""

import base64
import json
from abc import ABC, abstractmethod
from typing import Any, Final, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from sidecar.errors import RecordError
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.states.state import chosen_rows

MAX_BYTES: Final = 64 << 20
"""Limit of the contents of all ranks together, which every rank holds several times."""

_BITS: Final = 40  # of the number of int64 that a rank contributes
_HEAD: Final = 2  # numbers before the content of a batch: first example, or -1 if it is unknown, and number of bytes
_WORD: Final = 8

T = TypeVar("T")


class GatheredBatches:
    """Keep one content for each batch, as bytes; those of all ranks together have at most `max_bytes`."""

    def __init__(self, shard: Shard, max_bytes: int = MAX_BYTES) -> None:
        self._shard, self._max_bytes = shard, max_bytes
        self._batches: list[tuple[int, bytes]] = []
        self._bytes = 0

    @property
    def rows(self) -> int:
        """Number of rows: one for each rank and each bit of the size of its contents."""
        return self._shard.world_size * _BITS

    @property
    def width(self) -> int:
        """Number of columns. The pack is longer: it has the contents of all ranks."""
        return 1

    def put(self, first: int | None, content: NDArray[np.uint8]) -> None:
        """Add the content of the batch whose first example has this number, or None if the number is unknown.

        Raises `OverflowError` beyond the limit.
        """
        self._batches.append((-1 if first is None else first, content.tobytes()))
        self._bytes += content.nbytes + _WORD * (_HEAD + 1)
        self._require_within(self._bytes)

    def merge(self, other: Self) -> None:
        """Add the contents of another state. Raises `ValueError` if both have a content for the same batch."""
        known = {first for first, _ in self._batches if first >= 0}
        if twice := sorted(known.intersection(first for first, _ in other._batches)):
            raise ValueError(f"the batch from example {twice[0]} on is in both states")
        self._batches += other._batches
        self._bytes += other._bytes

    def contents(self) -> list[NDArray[np.uint8]]:
        """Return the contents in the order of the data. If that is unknown, the order depends on the contents alone."""
        return [np.frombuffer(content, np.uint8) for _, content in sorted(self._batches)]

    def used(self) -> NDArray[np.bool_]:
        """Return a bool for each row: in the rows of this rank the bits of the number of int64 that it contributes."""
        sizes = np.zeros(self._shard.world_size, np.int64)
        sizes[self._shard.rank] = len(self._words())
        return ((sizes[:, None] >> np.arange(_BITS)) & 1).astype(np.bool_).reshape(-1)

    def pack(self, rows: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """Return a vector for the contents of all ranks, with those of this rank in their place.

        Without rows, which tell the sizes, no other rank has any content. Raises `OverflowError` beyond the limit.
        """
        sizes = self._sizes(self.used() if rows is None else rows)
        self._require_within(_WORD * sum(sizes))
        packed = np.zeros(sum(sizes), np.int64)
        start = sum(sizes[: self._shard.rank])
        words = self._words()  # none in a follower, though its worker has some
        packed[start : start + len(words)] = words
        return packed

    def unpack(self, packed: NDArray[np.int64], rows: NDArray[np.bool_] | None = None) -> None:
        """Replace the contents by those of a pack, or of the sum of all ranks' packs."""
        if packed.dtype != np.int64 or (rows is not None and packed.shape != (sum(self._sizes(rows)),)):
            raise ValueError(f"expected a pack of int64 with the sizes of all ranks, found {packed.dtype}")
        batches, place = [], 0
        while place < len(packed):
            first, size = (int(number) for number in packed[place : place + _HEAD])
            place += _HEAD
            words = -(-size // _WORD)
            if not 0 <= words <= len(packed) - place:
                raise ValueError(f"a batch has {size} bytes, which the pack does not hold: it is damaged")
            batches.append((first, packed[place : place + words].tobytes()[:size]))
            place += words
        self._batches, self._bytes = batches, _WORD * len(packed)

    def to_json(self) -> dict[str, Any]:
        """Return strict JSON: for each batch its first example, or -1 if it is unknown, and its content in base 64."""
        batches = [[first, base64.b64encode(content).decode()] for first, content in sorted(self._batches)]
        return {"reduction": "gathered", "batches": batches}

    @classmethod
    def from_json(cls, parsed: dict[str, Any]) -> Self:
        """Build the state of a single rank from the output of `to_json`. Raises `RecordError` for anything else."""
        state = cls(Shard(0, 1))
        try:
            for first, text in parsed["batches"]:
                content = np.frombuffer(base64.b64decode(text, validate=True), np.uint8)
                state.put(None if first == -1 else int(first), content)
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise RecordError(f"not the saved state of a metric: {error!r}") from error
        return state

    def _sizes(self, rows: NDArray[np.bool_]) -> list[int]:
        """Return the number of int64 of each rank, which the used rows of all ranks tell."""
        chosen_rows(self, rows)
        sizes: list[int] = (rows.reshape(-1, _BITS) @ (1 << np.arange(_BITS))).tolist()
        return sizes

    def _words(self) -> NDArray[np.int64]:
        """Return the contents of this rank, each after its head and filled up to whole int64."""
        parts = []
        for first, content in self._batches:
            filled = content.ljust(-(-len(content) // _WORD) * _WORD, b"\0")
            parts += [np.array([first, len(content)], np.int64), np.frombuffer(filled, np.int64)]
        return np.concatenate([*parts, np.zeros(0, np.int64)])

    def _require_within(self, size: int) -> None:
        if size > self._max_bytes:
            raise OverflowError(f"values of {size >> 20} MiB must be gathered, at most {self._max_bytes >> 20} can be")


class GatheredText(ABC, Generic[T]):
    """Keep few and small things by name. Each rank sends its own as a text, and all ranks merge those of all texts."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._kept: dict[str, T] = {}

    @property
    def rows(self) -> int:
        """Number of rows, which tell the size of the texts of all ranks."""
        return GatheredBatches(self._shard).rows

    @property
    def width(self) -> int:
        """Number of columns. The pack is longer: it has the texts of all ranks."""
        return 1

    def used(self) -> NDArray[np.bool_]:
        """Return a bool for each row, as `GatheredBatches.used` does."""
        return self._text().used()

    def pack(self, rows: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """Return a vector for the texts of all ranks, as `GatheredBatches.pack` does."""
        return self._text().pack(rows)

    def unpack(self, packed: NDArray[np.int64], rows: NDArray[np.bool_] | None = None) -> None:
        """Replace what is kept by that of a pack, or of the sum of all ranks' packs."""
        texts = GatheredBatches(self._shard)
        texts.unpack(packed, rows)
        self._kept = {}
        for text in texts.contents():
            self.merge(self.from_json(json.loads(text.tobytes())))

    @abstractmethod
    def merge(self, other: Self) -> None:
        """Add what another state keeps. Raises `ValueError` if kinds differ."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return strict JSON: what is kept, by name."""

    @classmethod
    @abstractmethod
    def from_json(cls, parsed: dict[str, Any]) -> Self:
        """Build the state of a single rank from the output of `to_json`. Raises `RecordError` for anything else."""

    def _text(self) -> GatheredBatches:
        text = GatheredBatches(self._shard)
        if self._kept:
            text.put(self._shard.rank, np.frombuffer(json.dumps(self.to_json()).encode(), np.uint8))
        return text
