"""Compare an eval set whose batches are listed, without reading all of them: a sample of the batches is read.

A dataset with indices says which examples each batch holds before any of them is read. So each rank can read its own
batches only. The ranks compare the list, and the contents of a few batches that all of them read.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from sidecar.evaluation.data.batch_source import Batch, ListedSource
from sidecar.evaluation.data.shard import Shard

_SAMPLED: Final = 6  # batches that are compared in addition to the first and the last


@dataclass(slots=True)
class ListedSet:
    """Describe an eval set as one rank knows it before it reads its own batches.

    Attributes:
        sizes: Number of examples in each batch.
        fingerprint: Hex digest of the list, and of the contents of the sampled batches.
        digests: Digests of the sampled batches by their numbers.
    """

    sizes: tuple[int, ...]
    fingerprint: str
    digests: dict[int, bytes] = field(default_factory=dict)

    def places(self, shard: Shard) -> list[tuple[int, int | None]]:
        """Return the number of each batch of the shard, and the number of its first example in the set."""
        places: list[tuple[int, int | None]] = []
        first = 0
        for number, size in enumerate(self.sizes):
            if shard.owns(number):
                places.append((number, first))
            first += size
        return places


def read_sample(source: ListedSource, digest_of: Callable[[Batch], bytes], tick: Callable[[], None]) -> ListedSet:
    """Read the first, the last and six other batches, which the list itself chooses, and return the fingerprint.

    `tick` is called after each batch.
    """
    sizes, of_list = tuple(source.sizes()), source.fingerprint_of_list()
    numbers = sampled(of_list, len(sizes))
    fingerprint = hashlib.blake2b(of_list.encode(), digest_size=16)
    digests = {}
    for number, batch in zip(numbers, source.chosen(numbers), strict=True):
        digests[number] = digest_of(batch)
        fingerprint.update(digests[number])
        tick()
    return ListedSet(sizes, fingerprint.hexdigest(), digests)


def sampled(fingerprint_of_list: str, batches: int) -> list[int]:
    """Return the numbers of the batches that all ranks read, in order."""
    chosen = {0, batches - 1}
    for turn in count():
        if len(chosen) == min(_SAMPLED + 2, batches):
            break
        digest = hashlib.sha256(f"{fingerprint_of_list} {turn}".encode()).digest()
        chosen.add(int.from_bytes(digest[:8], "big") % batches)
    return sorted(chosen)
