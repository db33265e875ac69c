"""Provide the states that workers exchange for metrics: sums, extremes, and values of single examples."""

from sidecar.evaluation.states.exact_sum import ExactSum, exact_sum
from sidecar.evaluation.states.gathered_batches import GatheredBatches
from sidecar.evaluation.states.min_max import MinMax
from sidecar.evaluation.states.per_example_values import PerExampleValues
from sidecar.evaluation.states.state import SetStates, State, named, within

__all__ = [
    "ExactSum",
    "GatheredBatches",
    "MinMax",
    "PerExampleValues",
    "SetStates",
    "State",
    "exact_sum",
    "named",
    "within",
]
