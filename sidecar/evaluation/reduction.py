"""Add up the states of all ranks with sums of integers, as a framework's all-reduce offers them.

There are two sums for any number of metrics. The first one carries, for every rank, the digest of the restored values,
the times, and which rows of the states it uses. The second one carries those rows.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sidecar.evaluation.backend import TIMED, Int64s, RankReport, Reduced
from sidecar.evaluation.failures import EvaluationError
from sidecar.evaluation.output_comparison import differing, short_digest, sides_of
from sidecar.protocol.messages import Evaluate, Join


def reduce_packs(sum_over_ranks: Callable[[Int64s], Int64s], join: Join, report: RankReport) -> Reduced:
    """Return the sum of the states of all ranks, and the time of each phase on the slowest rank.

    Raises `EvaluationError` (`mismatch`) if ranks restored different values, before any sum exists.
    """
    ordered = [report.states[name][key] for name in sorted(report.states) for key in sorted(report.states[name])]
    values = np.zeros((len(join.members), 1 + len(TIMED)), np.int64)
    values[join.rank] = [short_digest(report.variables), *(int(report.seconds[name] * 1e6) for name in TIMED)]
    used = np.concatenate([np.zeros(0, np.bool_), *(state.used() for state in ordered)])
    summed = sum_over_ranks(np.concatenate([values.ravel(), used.astype(np.int64)]))
    restored, *times = summed[: values.size].reshape(values.shape).T
    require_equal_values(restored, join)
    slowest = slowest_of({name: row / 1e6 for name, row in zip(TIMED, times, strict=True)})
    if not ordered:  # functions alone measure, and they are not tried out
        return Reduced(report.states, slowest)
    # Most states are counts, which fill one row in nine. A row that no rank uses is not sent.
    rows = np.split(summed[values.size :] > 0, np.cumsum([state.rows for state in ordered])[:-1])
    packs = [state.pack(chosen) for state, chosen in zip(ordered, rows, strict=True)]
    total = sum_over_ranks(np.concatenate(packs))
    ends = np.cumsum([len(pack) for pack in packs])[:-1]
    for state, chosen, pack in zip(ordered, rows, np.split(total, ends), strict=True):
        state.unpack(pack, chosen)
    return Reduced(report.states, slowest)


def require_equal_values(restored: Int64s, join: Join) -> None:
    """Raise `EvaluationError` (`mismatch`) unless the digests of the restored values are equal."""
    if groups := differing(restored):
        complaint = "restored different values from the same checkpoint (variables)"
        raise EvaluationError("mismatch", f"ranks {complaint}: {sides_of(groups, join)}", sides=groups)


def slowest_of(seconds: dict[str, NDArray[np.float64]]) -> dict[str, float]:
    """Return the time of each phase on the slowest rank, from the seconds that every rank took for it."""
    slowest = {name: float(row.max()) for name, row in seconds.items()}
    slowest["reduce"] = float(seconds["reduce"].min())  # the other ranks waited for the slowest one in this phase
    return slowest


class LocalCollective:
    """Serve as the collective of a group with a single rank, without any communication."""

    def begin(self, command: Evaluate) -> None:
        """Prepare nothing."""

    def sum(self, vector: Int64s) -> Int64s:
        """Return the vector itself, which is the sum over one rank."""
        return vector

    def reduce(self, join: Join, report: RankReport) -> Reduced:
        """Return the states of this rank, which are the sum over one rank."""
        return reduce_packs(self.sum, join, report)
