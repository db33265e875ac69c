"""Which part of the data is a worker's own. Imports no framework, so that tasks can name it anywhere."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shard:
    """One worker's part of every eval set: batch b belongs to rank b mod world_size.

    A source that takes a `Shard` divides the data itself; it then promises that every example is in exactly one shard.
    """

    rank: int
    world_size: int

    def owns(self, batch: int) -> bool:
        """Whether the batch with this number (from 0) is this worker's."""
        return batch % self.world_size == self.rank
