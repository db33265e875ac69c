"""Define the rule by which the best checkpoints are exported, as the settings of a node state it. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRule:
    """Name the checkpoints that a node wants to be retained below `exports`."""

    metric: str  # EVAL_SET/METRIC, the metric that says which checkpoints are best (`best_metric`)
    count: int  # the number of best checkpoints that are retained (`export_best`)
    # How a checkpoint becomes the new best one (`best_by`): `value` or `significant`, or a newer release's value
    by: str = "value"
