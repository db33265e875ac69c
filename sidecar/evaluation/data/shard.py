"""Define which part of the data belongs to a worker. Imports no framework, so that tasks can import it anywhere."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of every eval set that belongs to one worker: batch b belongs to rank b mod world_size.

    A source that takes a `Shard` divides the data itself. It must put every example into exactly one shard:

        def read(shard: Shard):
            for path in sorted(Path("data").glob("*.npz"))[shard.rank :: shard.world_size]:
                yield from examples_of(path)

        task = Task(eval_sets={"test": EvalSet(read)}, ...)

    Attributes:
        rank: Number of this worker in its group, from 0.
        world_size: Number of workers in the group.
    """

    rank: int
    world_size: int

    def owns(self, batch: int) -> bool:
        """Return whether the batch with this number (from 0) belongs to this worker."""
        return batch % self.world_size == self.rank


def all_to_first(shard: Shard) -> Shard:
    """Return a shard for the same rank in which rank 0 owns every batch, and other ranks own none."""
    return Shard(shard.rank, 1)
