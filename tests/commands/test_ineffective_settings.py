"""Settings that contradict each other are told, each with the line to write."""

from pathlib import Path

import pytest

from sidecar.commands.ineffective_settings import ineffective
from sidecar.settings import Settings

BACKUP = {"state_backup": "s3://bucket/backups"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"best_by": "significant"}, ["best_by = 'significant'", "export_best = 1"]),
        ({"early_stop_metric": "test/a"}, ["early_stop_metric", "early_stop_patience"]),
        ({"early_stop_min_delta": 0.1}, ["early_stop_min_delta", "early_stop_patience"]),
        (
            {"early_stop_min_delta": 0.1, "early_stop_metric": "test/a"},
            ["early_stop_metric, early_stop_min_delta: ", "early_stop_patience"],
        ),
        ({"best_by": "significant", "early_stop_patience": 3}, ["best_by = 'significant'", "a hook best"]),
        ({"mlflow_log_best": True, "export_best": 1, "best_metric": "test/a"}, ["mlflow_tracking_uri"]),
        ({"mlflow_log_best": True, "mlflow_tracking_uri": "http://m:5000"}, ["export_best = 1"]),
        ({"tensorboard_tags": "keras"}, ["tensorboard_dir"]),
        ({"tensorboard_parameters": {"lr": 1}}, ["tensorboard_dir"]),
        ({"wandb_key_file": "/run/key"}, ["wandb_key_file", "wandb_project"]),
        ({"run_turn_seconds": 5, "runs_at_once": 2}, ["run_turn_seconds, runs_at_once", "set runs"]),
        (
            {"bucket_scan_seconds": 5, "bucket_endpoint": "http://127.0.0.1:9000"},
            ["bucket_endpoint, bucket_scan_seconds", "s3://"],
        ),
        ({"bucket_scan_seconds": 5, "bucket_timeout_seconds": 9, **BACKUP}, ["bucket_scan_seconds: ", "s3://"]),
    ],
)
def test_a_setting_without_effect_is_told(given, words):
    """One sentence names it, and the setting that is missing."""
    (found,) = ineffective(Settings(checkpoint_dir=Path("/ckpts"), **given))
    assert [word for word in words if word not in found] == []


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"best_metric": "test/a"},
        {"mlflow_log_best": False, "tensorboard_tags": "metric", "tensorboard_parameters": {}},
        {"export_best": 1, "best_metric": "test/a", "best_by": "significant", "mlflow": True, "mlflow_log_best": True},
        {"early_stop_patience": 3, "early_stop_metric": "test/b", "early_stop_min_delta": 0.1},
        {"best_by": "significant", "hooks": {"best": "true"}},
        {"bucket_timeout_seconds": 9, **BACKUP},
        {"bucket_scan_seconds": 5, "checkpoint_dir": "s3://bucket/ckpts"},
    ],
)
def test_settings_that_go_together(given):
    """Settings that go together cause no warning."""
    assert list(ineffective(Settings(**{"checkpoint_dir": Path("/ckpts")} | given))) == []
