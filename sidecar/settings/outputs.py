"""Define the settings of what is done with results: where they are sent, and what happens after one.

`model` adds all other settings, and describes how fields and their documentation are written.
"""

from typing import Literal

from pydantic import BaseModel

from sidecar.settings import values
from sidecar.settings.hook_values import Hooks
from sidecar.settings.sink_values import InstalledSinks, Parameters, TrackingUri, WandbProject


class OutputSettings(BaseModel):
    """Hold the settings of results. Only `Settings`, which has all others as well, is ever made."""

    # Sinks of results
    remote_write: values.ReceiverUrl | None = None
    """URL to which every result is sent by Prometheus remote write, with its time, such as
    `http://prometheus:9090/api/v1/write`; it may hold `user:password@`. Default: only the user knows a receiver."""
    remote_write_authorization_file: values.OptionalPath = None
    """File with the value of the header `Authorization` for `remote_write`, such as `Bearer TOKEN`; it is read for each
    request. Default: no header, or the user and the password in the URL."""
    tensorboard_dir: values.OptionalPath = None
    """Log directory of TensorBoard to which every result is written. Default: nothing is written unless asked for."""
    tensorboard_tags: Literal["metric", "keras"] = "metric"
    """Names of TensorBoard's series: those of the metrics, or those of tf_keras' `SidecarEvaluator` (`keras`). Default:
    the metrics' own names, which training mostly uses, too."""
    tensorboard_parameters: Parameters = {}
    """Hyperparameters of the run for TensorBoard's page *HParams*, as a table with `NAME = VALUE`. Default: the sidecar
    does not know how training was started."""
    mlflow: bool = False
    """Whether every result is logged to MLflow, to the server that `mlflow_tracking_uri` or the variable
    `MLFLOW_TRACKING_URI` names. Default: the variable alone belongs to training, which must not find the numbers of
    another program in its server unasked."""
    mlflow_tracking_uri: TrackingUri | None = None
    """Tracking server of MLflow to which every result is logged, such as `http://mlflow:5000`; run, experiment and
    login come from the `MLFLOW_*` variables. Default: only the user knows a server."""
    mlflow_token_file: values.OptionalPath = None
    """File with the token for MLflow, in the place of the variable `MLFLOW_TRACKING_TOKEN`; it is read before each
    result. Default: the variables hold the login, if there is one."""
    mlflow_log_best: bool = False
    """Whether each new best export (`exports/best`) is uploaded as an artifact of MLflow's run. Default: a checkpoint
    may be many times larger than all numbers of a run, and the exports are on shared storage anyway."""
    wandb_project: WandbProject | None = None
    """Project of Weights & Biases to which every result is logged; account and server come from the `WANDB_*`
    variables. Default: only the user knows a project."""
    wandb_key_file: values.OptionalPath = None
    """File with the API key of Weights & Biases, in the place of the variable `WANDB_API_KEY`; it is read before each
    result. Default: the variable or `~/.netrc` holds the key, as for training."""
    sinks: InstalledSinks = {}
    """Sinks of your own or of installed packages, as tables `[sinks.NAME]` with their options, or a JSON object. `make`
    names the function of one that no package provides, such as `/opt/my_sink.py:make`. Default: no code of others is
    loaded unless it is named."""
    sink_timeout_seconds: values.Seconds = 10.0
    """Time that a sink, such as `remote_write`, may take for each step of a request, and for the last results when the
    daemon ends. Default: a receiver answers in milliseconds, and one that hangs delays its own results only."""

    # Hooks and early stop
    hooks: Hooks = {}
    """Commands or URLs that are called after each `result`, on a new `best` one, on a `failure`, on a result with
    `nan`, and at the `end` of the run. Default: only the user knows whom to call."""
    early_stop_patience: values.Count | None = None
    """Evaluations in a row without an improvement after which the daemon writes the signal to stop training, if the
    metric has levelled off: a straight line through the newest ones, three times as many and at least 15, does not
    rise. Default: no signal, since only the user knows how long a plateau of the metric may last."""
    early_stop_metric: values.MetricName | None = None
    """Metric, as EVAL_SET/METRIC, that must improve. Default: `best_metric`, else the first metric of the task that has
    a direction, since a task lists its main metric first."""
    early_stop_min_delta: values.Difference = 0.0
    """Difference by more than which a value must be better to count as an improvement, and the line must rise in
    `early_stop_patience` evaluations. Default: any improvement counts, since only the user knows which one is worth
    its time."""

    # The best checkpoints
    best_metric: values.MetricName | None = None
    """Metric, as EVAL_SET/METRIC, by which the best evaluations are chosen, whose saves are retained, too. Default: the
    first metric of the task that has a direction, since a task lists its main metric first."""
    export_best: values.ExportCount = 0
    """Number of best checkpoints that are kept whole in the state directory, in the folder `exports`, also when
    training deletes them: at most 10, and all nodes must have the same number. Default: they take as much space as
    checkpoints do, and only the user knows whether training keeps them anyway."""
    best_by: Literal["value", "significant"] = "value"
    """When another evaluation becomes the best one for the link `exports/best` and for hooks: whenever its number is
    better (`value`), or only if it is better by more than noise (`significant`). Default: the best one then has the
    best number, which is shown everywhere."""
