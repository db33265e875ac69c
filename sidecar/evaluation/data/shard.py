"""Define the part of the data that is a worker's own. Imports no framework, so that tasks can name it anywhere."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shard:
    """One worker's part of every eval set: batch b belongs to rank b mod world_size.

    A source that takes a `Shard` divides the data itself; it then promises that every example is in exactly one shard:

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
        """Return whether the batch with this number (from 0) is this worker's."""
        return batch % self.world_size == self.rank


def all_to_first(shard: Shard) -> Shard:
    """Return the shard of the same rank where rank 0 owns every batch, and any other rank none."""
    return Shard(shard.rank, 1)
