"""Compare values of the ranks of a group, and name the ranks that differ."""

import hashlib
from collections.abc import Iterable

import numpy as np

from sidecar.evaluation.backend import Int64s
from sidecar.protocol.messages import Join


def short_digest(text: str) -> int:
    """Return 64 bits of a text's digest as a number, which can be sent in a sum."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big", signed=True)


def differing(column: Int64s) -> list[list[int]]:
    """Return the ranks grouped by value; an empty list if all values are equal."""
    values = list(dict.fromkeys(column.tolist()))
    return [[int(rank) for rank in np.flatnonzero(column == value)] for value in values] if len(values) > 1 else []


def sides_of(groups: list[list[int]], join: Join) -> str:
    """Describe groups of ranks that differ, for a message."""
    return " against ".join(named(ranks, join) for ranks in groups)


def named(ranks: Iterable[int], join: Join) -> str:
    """Describe ranks with their nodes, for a message."""
    return ", ".join(f"rank {rank} on {join.members[rank].node}" for rank in ranks)
