"""Find settings that have no effect, because another setting contradicts them. Pure.

`sidecar check` and the start of a daemon tell of them. Settings that the task contradicts: `check.metric_settings`.
"""

from collections.abc import Iterator
from typing import Final

from sidecar.settings import Settings
from sidecar.system.bucket_folder import BucketFolder

_OF_RAY: Final = frozenset(
    f"ray_{name}" for name in ("address", "workers", "resources", "labels", "any_node", "idle_seconds", "token_file")
)
_OF_BUCKETS: Final = frozenset({"bucket_endpoint", "bucket_credentials", "bucket_timeout_seconds"})
_OF_RUNS: Final = frozenset({"runs_at_once", "run_turn_seconds", "runs_scan_seconds"})
_HAS_BEST = "set export_best = 1 and best_metric"


def ineffective(settings: Settings) -> Iterator[str]:
    """Yield a sentence with the remedy about each setting that has no effect."""
    if not settings.runs and (names := sorted(_OF_RUNS & settings.model_fields_set)):
        yield f"{', '.join(names)}: no effect on one run: set runs, too"
    yield from _of_the_best(settings)
    yield from _of_early_stop(settings)
    yield from _of_credentials(settings)
    if settings.mlflow_log_best and not settings.mlflow and settings.mlflow_tracking_uri is None:
        yield "mlflow_log_best has no effect, as nothing is logged to MLflow: set mlflow_tracking_uri"
    if settings.mlflow_log_best and not settings.export_best:
        yield f"mlflow_log_best has no effect without exports: {_HAS_BEST}"
    if not isinstance(settings.checkpoint_dir, BucketFolder):
        of_buckets = {"bucket_scan_seconds"} | (_OF_BUCKETS if settings.state_backup is None else set())
        if names := sorted(of_buckets & settings.model_fields_set):
            yield f"{', '.join(names)}: no effect without a bucket, such as checkpoint_dir = 's3://bucket/ckpts'"
    if settings.engine == "local" and (names := sorted(_OF_RAY & settings.model_fields_set)):
        yield f"{', '.join(names)}: no effect without a cluster: set engine = 'ray', too"
    if settings.engine == "ray" and "replicas" in settings.model_fields_set:
        yield "replicas has no effect on a Ray cluster, where each machine has one worker process: set ray_workers"
    if settings.model_parallel != "auto" and settings.processes_per_worker == 1:
        yield "model_parallel has no effect on workers of one process: set processes_per_worker, too"
    yield from _of_tensorboard(settings)


def acts_on_best(settings: Settings) -> list[str]:
    """Return what is done when an evaluation is a new best one."""
    acts = {
        "export_best": bool(settings.export_best),
        "the early stop": settings.early_stop_patience is not None,
        "the hook best": "best" in settings.hooks,
    }
    return [name for name, is_set in acts.items() if is_set]


def _of_tensorboard(settings: Settings) -> Iterator[str]:
    if settings.tensorboard_dir is not None:
        return
    if settings.tensorboard_parameters:
        yield "tensorboard_parameters has no effect without tensorboard_dir: set that, too"
    if settings.tensorboard_tags != "metric":
        yield f"tensorboard_tags = {settings.tensorboard_tags!r} has no effect without tensorboard_dir: set that, too"


def _of_credentials(settings: Settings) -> Iterator[str]:
    if settings.mlflow_token_file is not None and not settings.mlflow and settings.mlflow_tracking_uri is None:
        yield "mlflow_token_file has no effect, as nothing is logged to MLflow: set mlflow_tracking_uri"
    if settings.wandb_key_file is not None and settings.wandb_project is None:
        yield "wandb_key_file has no effect, as nothing is logged to Weights & Biases: set wandb_project"
    if settings.remote_write_authorization_file is not None and settings.remote_write is None:
        yield "remote_write_authorization_file has no effect without remote_write: set that, too"


def _of_the_best(settings: Settings) -> Iterator[str]:
    if settings.best_by == "significant" and not {"export_best", "the hook best"}.intersection(acts_on_best(settings)):
        yield (
            "best_by = 'significant' has no effect, as nothing is done with the best evaluation: "
            f"{_HAS_BEST}, or a hook best"
        )


def _of_early_stop(settings: Settings) -> Iterator[str]:
    metric = settings.early_stop_metric
    if settings.early_stop_patience is None:
        for name, is_set in (("metric", metric is not None), ("min_delta", settings.early_stop_min_delta > 0)):
            if is_set:
                yield f"early_stop_{name} has no effect without early_stop_patience: set that, to 5, say"
