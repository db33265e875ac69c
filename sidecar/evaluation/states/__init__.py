"""Provide the states that workers exchange for metrics: sums, extremes, and values of examples or batches."""

from sidecar.evaluation.states.exact_sum import ExactSum, exact_sum
from sidecar.evaluation.states.gathered_batches import GatheredBatches
from sidecar.evaluation.states.group_sums import GroupSums
from sidecar.evaluation.states.keyed_states import KeyedStates
from sidecar.evaluation.states.min_max import MinMax
from sidecar.evaluation.states.named_sums import NamedSums
from sidecar.evaluation.states.per_example_values import PerExampleValues
from sidecar.evaluation.states.state import SetStates, State, named, state_of, within

__all__ = [
    "ExactSum",
    "GatheredBatches",
    "GroupSums",
    "KeyedStates",
    "MinMax",
    "NamedSums",
    "PerExampleValues",
    "SetStates",
    "State",
    "exact_sum",
    "named",
    "state_of",
    "within",
]
