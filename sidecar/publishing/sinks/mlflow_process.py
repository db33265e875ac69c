"""Talk to MLflow, in a process of its own. `sinks.mlflow` starts it, and sends one line of JSON per request.

Only this module imports mlflow. The library takes 70 MB, or 140 MB where numpy and pandas are installed, which it then
imports as well. Each answer is `{"run": …}`, `{"done": true}`, or
`{"error": …, "refused": …, "gone": …}`.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sidecar.publishing.sinks.line_process import answer_lines, error_sentence

TAG: Final = "sidecar.run_id"
"""Tag of MLflow's run with the id of the run that the daemons evaluate."""

BEST_TAG: Final = "sidecar.best"
"""Tag of MLflow's run with the folder of the export that was logged last."""

_NO_RIGHT: Final = ("UNAUTHENTICATED", "PERMISSION_DENIED")
_LOGIN: Final = "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"


class _GoneError(Exception):
    """A run cannot take results until a person acts."""


class _RefusedError(Exception):
    """The server will never take these numbers."""


def main() -> None:
    """Answer requests until standard input ends, or until none comes for a while."""
    answer_lines(_Client().answer)


class _Client:
    def __init__(self) -> None:
        self._client: Any = None

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return what MLflow says to a request."""
        try:
            if self._client is None:
                from mlflow.tracking import MlflowClient  # noqa: PLC0415 - an answer says why it cannot be imported

                self._client = MlflowClient()
            return _REQUESTS[request["do"]](self._client, request)
        except Exception as error:  # noqa: BLE001 - libraries below raise what they like
            return _failure(error, request["do"])


def _find_run(client: Any, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the run with the tag in the experiment that the environment names; create both if they are missing."""
    experiment = _experiment(client)
    found = client.search_runs([experiment], f"tags.`{TAG}` = '{request['tag']}'", order_by=["attributes.start_time"])
    if found:
        return {"run": found[0].info.run_id}
    tags = {TAG: request["tag"], "mlflow.source.name": "sidecar-evaluator"}
    run = client.create_run(experiment, request["milliseconds"], tags, run_name=request["name"])
    return {"run": run.info.run_id}


def _experiment(client: Any) -> str:
    if given := os.environ.get("MLFLOW_EXPERIMENT_ID"):
        return given
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME")
    if not name:
        return "0"  # the experiment `Default`, as for training
    found = client.get_experiment_by_name(name)
    return str(client.create_experiment(name) if found is None else found.experiment_id)


def _delete_run(client: Any, request: Mapping[str, Any]) -> dict[str, Any]:
    """Delete a run that this program created in vain."""
    client.delete_run(request["run"])
    return {"done": True}


def _log(client: Any, request: Mapping[str, Any]) -> dict[str, Any]:
    """Log the numbers of one evaluation; if `ask` is true, only those that the run lacks."""
    from mlflow.entities import Metric  # noqa: PLC0415 - likewise

    run, milliseconds = request["run"], request["milliseconds"]
    _active(client, run)
    metrics = [Metric(name, float.fromhex(hex_), milliseconds, request["step"]) for name, hex_ in request["points"]]
    missing = _missing(client, run, metrics) if request["ask"] else metrics
    try:
        client.log_batch(run, missing)
    except Exception as error:
        if getattr(error, "error_code", None) != "INVALID_PARAMETER_VALUE":
            raise
        _active(client, run)  # a run that was deleted meanwhile has the same code
        raise _RefusedError(str(error)) from error
    if request["own"]:  # its duration is that of the evaluations; the run of a trainer is the trainer's to end
        client.set_terminated(run, end_time=milliseconds)
    return {"done": True, "there": len(missing) < len(metrics)}


def _missing(client: Any, run: str, metrics: Sequence[Any]) -> Sequence[Any]:
    """Return the metrics that a run lacks. They are written in order, so the first and the last one tell nearly always.

    A server with a database ignores points that it has, but one with files would have them twice.
    """
    if not metrics or _has(client, run, metrics[-1]):
        return []
    if not _has(client, run, metrics[0]):
        return metrics
    return [metric for metric in metrics if not _has(client, run, metric)]


def _has(client: Any, run: str, metric: Any) -> bool:
    history = client.get_metric_history(run, metric.key)
    return any((point.step, point.timestamp) == (metric.step, metric.timestamp) for point in history)


def _log_best(client: Any, request: Mapping[str, Any]) -> dict[str, Any]:
    """Upload an export, unless the run has it: its tag is set when all of it is there."""
    run = _active(client, request["run"])
    if run.data.tags.get(BEST_TAG) == request["name"]:
        return {"done": False}
    client.log_artifacts(request["run"], request["folder"], f"best/{request['name']}")
    client.set_tag(request["run"], BEST_TAG, request["name"])
    return {"done": True}


def _active(client: Any, run_id: str) -> Any:
    run = client.get_run(run_id)
    if run.info.lifecycle_stage != "active":
        remedy = f"restore it there (mlflow runs restore --run-id {run_id})"
        raise _GoneError(f"run {run_id} was deleted in MLflow: {remedy}")
    return run


def _failure(error: Exception, what: str) -> dict[str, Any]:
    """Return the answer about an error: whether the numbers can never be logged, or the run cannot take any."""
    code = getattr(error, "error_code", None)
    gone = isinstance(error, _GoneError) or (code == "RESOURCE_DOES_NOT_EXIST" and what != "find_run")
    remedy = f"; correct {_LOGIN}, and restart the daemon" if code in _NO_RIGHT else ""
    return {"error": error_sentence(error) + remedy, "refused": isinstance(error, _RefusedError), "gone": gone}


_REQUESTS: Final = {"find_run": _find_run, "delete_run": _delete_run, "log": _log, "log_best": _log_best}

if __name__ == "__main__":
    main()
