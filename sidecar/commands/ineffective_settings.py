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
_OF_MLFLOW: Final = frozenset({"mlflow_log_best", "mlflow_token_file"})
_OF_STOP: Final = frozenset({"early_stop_metric", "early_stop_min_delta"})
_OF_TENSORBOARD: Final = frozenset({"tensorboard_parameters", "tensorboard_tags"})
_OF_RUNS: Final = frozenset({"runs_at_once", "run_turn_seconds", "runs_scan_seconds"})
_HAS_BEST = "set export_best = 1 and best_metric"


def ineffective(settings: Settings) -> Iterator[str]:
    """Yield a sentence with the remedy about settings that have no effect."""
    given, fields = settings.model_fields_set, type(settings).model_fields
    changed = {name for name in given if getattr(settings, name) != fields[name].get_default(call_default_factory=True)}
    has_mlflow = settings.mlflow or settings.mlflow_tracking_uri is not None
    of_best = {"best_by = 'significant'"} if settings.best_by == "significant" else set[str]()
    of_buckets = {"bucket_scan_seconds"} | (_OF_BUCKETS if settings.state_backup is None else set())
    table = (  # what makes them so, their names, and why
        (not settings.runs, given & _OF_RUNS, "on one run: set runs, too"),
        (
            not {"export_best", "the hook best"}.intersection(acts_on_best(settings)),
            of_best,
            f"as nothing is done with the best evaluation: {_HAS_BEST}, or a hook best",
        ),
        (settings.early_stop_patience is None, changed & _OF_STOP, "without early_stop_patience: set that, to 5, say"),
        (not has_mlflow, changed & _OF_MLFLOW, "as nothing is logged to MLflow: set mlflow_tracking_uri"),
        (not settings.export_best, changed & {"mlflow_log_best"}, f"without exports: {_HAS_BEST}"),
        (settings.wandb_project is None, changed & {"wandb_key_file"}, "without Weights & Biases: set wandb_project"),
        (
            settings.remote_write is None,
            changed & {"remote_write_authorization_file"},
            "without remote_write: set that, too",
        ),
        (settings.tensorboard_dir is None, changed & _OF_TENSORBOARD, "without tensorboard_dir: set that, too"),
        (
            not isinstance(settings.checkpoint_dir, BucketFolder),
            given & of_buckets,
            "without a bucket, such as checkpoint_dir = 's3://bucket/ckpts'",
        ),
        (settings.engine == "local", given & _OF_RAY, "without a cluster: set engine = 'ray', too"),
        (
            settings.engine == "ray",
            given & {"replicas"},
            "on a Ray cluster, where each machine has one worker process: set ray_workers",
        ),
        (
            settings.processes_per_worker == 1,
            changed & {"model_parallel"},
            "on workers of one process: set processes_per_worker, too",
        ),
    )
    for is_ineffective, names, why in table:
        if is_ineffective and names:
            yield f"{', '.join(sorted(names))}: no effect {why}"


def acts_on_best(settings: Settings) -> list[str]:
    """Return what is done when an evaluation is a new best one."""
    acts = {
        "export_best": bool(settings.export_best),
        "the early stop": settings.early_stop_patience is not None,
        "the hook best": "best" in settings.hooks,
    }
    return [name for name, is_set in acts.items() if is_set]
