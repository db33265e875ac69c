"""Sum values and weights by group of examples, as intervals need it if values are not independent. Imports numpy only.

Values of one example, or of examples that belong together such as those of one patient, are not independent. Their sums
are. There are at most `MOST_GROUPS` sums, so that a state stays small: more groups are united by their numbers, which
leaves the sums independent, and makes their variance hardly less certain.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sidecar.evaluation.states.exact_sum import ExactSum

MOST_GROUPS: Final = 512
"""Student's t with 511 degrees of freedom is 0.3 % longer than a normal interval."""

_PARTS: Final = 2  # values and weights


class GroupSums(ExactSum):
    """Sum weighted values (m,) and weights (m,) by group, exactly: an array (2, groups) of float64.

    `groups`: the number of the group of each example (n,), from 0; None: each example is a group. Without a known
    number of `examples`, the groups are unknown, too.
    """

    def __init__(self, examples: int | None, groups: NDArray[np.int64] | None) -> None:
        self.groups = groups
        count = (examples or 1) if groups is None else int(groups.max(initial=0)) + 1
        super().__init__((_PARTS, min(count, MOST_GROUPS)), "float64")

    def add_values(
        self,
        places: NDArray[np.intp],
        values: NDArray[np.float64],
        weights: NDArray[np.floating[Any]],
        rows: NDArray[np.intp] | None = None,
    ) -> None:
        """Add values (m,), which are weighted already, and their weights (m,). `places`: numbers of their examples.

        `rows`: see `add_each`.
        """
        columns = self.shape[-1]
        numbers = (places if self.groups is None else self.groups[places]).astype(np.int64) % columns
        self.add_at(numbers, np.asarray(values, np.float64), rows)
        self.add_at(numbers + columns, weights.astype(np.float64), rows)
