"""Settings of sinks are checked, and a mistake is one sentence without a password in it."""

import pytest

from sidecar.settings import load


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("sinks", "{", "not JSON"),
        ("sinks", "[]", "[sinks.NAME]"),
        ("sinks", '{"mlflow": {}}', "'mlflow'"),
        ("sinks", '{"../x": {}}', "'../x'"),
        ("sinks", '{"a\\nb": {}}', "letters, digits"),
        ("sinks", '{"acme": 5}', "'acme'"),
        ("mlflow_tracking_uri", "mlflow:5000", "http://mlflow:5000"),
        ("mlflow_tracking_uri", "sqlite:///mlflow.db", "tracking server"),
        ("mlflow_tracking_uri", "http://me:s3cret@/", "tracking server"),
        ("mlflow_tracking_uri", "http://[::1/x", "IPv6"),
        ("mlflow_tracking_uri", "http://me:s3cret@a/b?c", "tracking server"),
        ("mlflow", "http://mlflow", "write true or false"),
        ("wandb_project", "team/digits", "WANDB_ENTITY"),
    ],
)
def test_a_mistake_is_one_sentence(refusal, key, value, shown):
    """Which setting, and what to write."""
    text = refusal(key, value)
    assert shown in text
    assert "s3cret" not in text


def test_sinks_are_tables_or_json(tmp_path):
    """Their options keep their types."""
    (tmp_path / "sidecar.toml").write_text('[sinks.acme]\npath = "/x"\nsizes = [1, 2]\n')
    flags = {"checkpoint_dir": tmp_path, "config": tmp_path / "sidecar.toml"}
    assert load(flags, environ={}).sinks == {"acme": {"path": "/x", "sizes": [1, 2]}}
    environ = {"SIDECAR_SINKS": '{"acme": {"path": null}}'}
    assert load(flags, environ=environ).sinks == {"acme": {"path": None}}
