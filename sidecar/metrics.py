"""Provide metrics without a framework, for tasks: `from sidecar.metrics import Accuracy`. Part of the public API.

A custom metric is a `Mean` of a function, `Sums` of a function by name, or a class with the methods of `Metric` and
with the states `ExactSum`, `MinMax` and `PerExampleValues`. This module imports numpy, so neither the daemon nor
`sidecar/__init__.py` imports it.
"""

from sidecar.system.required_packages import requiring

with requiring("numpy", by="sidecar.metrics"):
    from sidecar.evaluation.data.slice_table import by_length, by_size
    from sidecar.evaluation.metrics.accuracy import Accuracy, TopK
    from sidecar.evaluation.metrics.auc import AUC, BinnedAUC
    from sidecar.evaluation.metrics.calibration import Calibration
    from sidecar.evaluation.metrics.confusion_matrix import ConfusionMatrix
    from sidecar.evaluation.metrics.foreign import InTurn
    from sidecar.evaluation.metrics.log_loss import LogLoss, Perplexity
    from sidecar.evaluation.metrics.mean import Mean
    from sidecar.evaluation.metrics.metric import EvalBatch, EvalSetInfo, Metric, MetricResult, value
    from sidecar.evaluation.metrics.regression import MAE, MSE, R2, RMSE
    from sidecar.evaluation.metrics.sample import Sample, usual_interval
    from sidecar.evaluation.metrics.sums import Sums
    from sidecar.evaluation.states import ExactSum, MinMax, PerExampleValues

__all__ = [
    "AUC",
    "MAE",
    "MSE",
    "R2",
    "RMSE",
    "Accuracy",
    "BinnedAUC",
    "Calibration",
    "ConfusionMatrix",
    "EvalBatch",
    "EvalSetInfo",
    "ExactSum",
    "InTurn",
    "LogLoss",
    "Mean",
    "Metric",
    "MetricResult",
    "MinMax",
    "PerExampleValues",
    "Perplexity",
    "Sample",
    "Sums",
    "TopK",
    "by_length",
    "by_size",
    "usual_interval",
    "value",
]
