"""Metrics that need no framework, for tasks: `from sidecar.metrics import Accuracy`. Imports numpy.

So nothing of the daemon may import this, `sidecar/__init__.py` included. A metric of one's own has what
`sidecar.worker.metrics.metric.Metric` says.
"""

from sidecar.worker.metrics.accuracy import Accuracy, TopK
from sidecar.worker.metrics.auc import AUC
from sidecar.worker.metrics.binned_auc import BinnedAUC
from sidecar.worker.metrics.confusion_matrix import ConfusionMatrix
from sidecar.worker.metrics.log_loss import LogLoss, Perplexity
from sidecar.worker.metrics.mean import Mean
from sidecar.worker.metrics.metric import Extent, Metric, Numbers, Seen, value
from sidecar.worker.metrics.r2 import R2
from sidecar.worker.metrics.regression import MAE, MSE, RMSE
from sidecar.worker.metrics.sample import Sample, usual_interval

__all__ = [
    "AUC",
    "MAE",
    "MSE",
    "R2",
    "RMSE",
    "Accuracy",
    "BinnedAUC",
    "ConfusionMatrix",
    "Extent",
    "LogLoss",
    "Mean",
    "Metric",
    "Numbers",
    "Perplexity",
    "Sample",
    "Seen",
    "TopK",
    "usual_interval",
    "value",
]
