"""Add up the states of all ranks with sums of integers, as a framework's all-reduce offers them.

Two sums, whatever the number of metrics: the first carries the digest of what every rank restored, its times, and which
rows of the states it uses; the second carries those rows.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sidecar.evaluation.backend import TIMED, Int64s, RankReport, Reduced
from sidecar.evaluation.failures import EvaluationError
from sidecar.evaluation.rank_comparison import differing, short_digest, sides_of
from sidecar.workers.messages import Evaluate, Join


def reduce_packs(sum_over_ranks: Callable[[Int64s], Int64s], join: Join, report: RankReport) -> Reduced:
    """Return the states of all ranks added up, and each phase's time on the slowest rank.

    Raises `EvaluationError` (`mismatch`) if ranks restored different values, before any sum exists.
    """
    ordered = [report.states[name][key] for name in sorted(report.states) for key in sorted(report.states[name])]
    said = np.zeros((len(join.members), 1 + len(TIMED)), np.int64)
    said[join.rank] = [short_digest(report.variables), *(int(report.seconds[name] * 1e6) for name in TIMED)]
    used = np.concatenate([state.used() for state in ordered])
    heard = sum_over_ranks(np.concatenate([said.ravel(), used.astype(np.int64)]))
    restored, *times = heard[: said.size].reshape(said.shape).T
    require_equal_values(restored, join)
    # Most states are counts, which fill one row in nine: a row that nobody uses does not travel.
    rows = np.split(heard[said.size :] > 0, np.cumsum([state.rows for state in ordered])[:-1])
    packs = [state.pack(chosen) for state, chosen in zip(ordered, rows, strict=True)]
    total = sum_over_ranks(np.concatenate(packs))
    ends = np.cumsum([len(pack) for pack in packs])[:-1]
    for state, chosen, pack in zip(ordered, rows, np.split(total, ends), strict=True):
        state.unpack(pack, chosen)
    return Reduced(report.states, slowest_of({name: row / 1e6 for name, row in zip(TIMED, times, strict=True)}))


def require_equal_values(restored: Int64s, join: Join) -> None:
    """Raise `EvaluationError` (`mismatch`) unless the digests of what the ranks restored are equal."""
    if groups := differing(restored):
        complaint = "restored different values from the same checkpoint (variables)"
        raise EvaluationError("mismatch", f"ranks {complaint}: {sides_of(groups, join)}", sides=groups)


def slowest_of(seconds: dict[str, NDArray[np.float64]]) -> dict[str, float]:
    """Return the time of each phase on the slowest rank, from the seconds that every rank took for it."""
    slowest = {name: float(row.max()) for name, row in seconds.items()}
    slowest["reduce"] = float(seconds["reduce"].min())  # the other ranks waited there for the slowest one
    return slowest


class LocalCollective:
    """The collective of a group of one: its sum is its own vector."""

    def begin(self, command: Evaluate) -> None:
        """Prepare nothing."""

    def sum(self, mine: Int64s) -> Int64s:
        """Return the vector."""
        return mine

    def reduce(self, join: Join, report: RankReport) -> Reduced:
        """Return the rank's own states."""
        return reduce_packs(self.sum, join, report)
