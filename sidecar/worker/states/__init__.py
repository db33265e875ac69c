"""The states in which metrics travel between workers: sums, extremes, and values of single examples."""

from sidecar.worker.states.each import Each
from sidecar.worker.states.exact_sum import ExactSum, exact_sum
from sidecar.worker.states.extreme import Extreme
from sidecar.worker.states.state import SetStates, State, named, within

__all__ = ["Each", "ExactSum", "Extreme", "SetStates", "State", "exact_sum", "named", "within"]
