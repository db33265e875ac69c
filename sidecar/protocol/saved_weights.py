"""Decide which ranks save the restored weights. Pure: worker processes and `sidecar check` ask."""

from typing import Final, Literal

SaveWeights = Literal["auto", "all", "first", "none"]

MOST_BYTES_BY_DEFAULT: Final = 10**9
"""Weights that take more are not copied by `auto`: the checkpoint has them, and every result has their digest."""


def saving_ranks(rule: SaveWeights, workers: int, weights_bytes: int, *, divided: bool = False) -> range:
    """Return the ranks that save weights of so many bytes. All ranks restored the same, so one can save for all.

    `divided`: processes of a worker divide the weights, and none has them all.
    """
    if divided:
        return range(0)
    saves = {"auto": workers if weights_bytes <= MOST_BYTES_BY_DEFAULT else 0, "all": workers, "first": 1, "none": 0}
    return range(saves[rule])
