"""The settings decide where the state lies, and which storage is opened for it."""

import re

import pytest

from sidecar.commands.state_storage import state_objects, state_storage
from sidecar.errors import SettingsError
from sidecar.settings import Settings
from sidecar.system.bucket_folder import place_of


def test_a_directory_is_opened_as_such_and_tells_of_answers(tmp_path):
    """Nothing is made before the first record, which lies in the folder of the run."""
    answers = []
    settings = Settings(checkpoint_dir=tmp_path / "ckpts", state_dir=tmp_path / "state", run="a")
    storage = state_storage(settings, lambda: answers.append(1))
    assert not settings.state_dir.exists()
    storage.create("run.json", b"{}")
    assert ((tmp_path / "state" / "a" / "run.json").read_bytes(), answers) == (b"{}", [1])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"framework": "python"}, 'framework = "python"'),
        ({"state_backup": "s3://bucket/backup"}, "leave state_backup out"),
    ],
)
def test_a_setting_that_needs_a_filesystem_is_refused_with_the_remedy(changes, words):
    """Nothing of the state in a bucket is offered in part."""
    settings = Settings(checkpoint_dir="s3://bucket/ckpts", state_dir="s3://bucket/state", **changes)
    with pytest.raises(SettingsError, match=re.escape(words)):
        state_storage(settings)


def test_the_records_of_a_run_lie_below_the_url(monkeypatch, tmp_path):
    """Its path is a folder of this user, for pins and saves, and the time limit is that of records."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    settings = Settings(checkpoint_dir="s3://bucket/ckpts", state_dir="s3://bucket/state/", run="a")
    assert (settings.run_dir.is_relative_to(tmp_path), tmp_path.exists()) == (True, True)
    objects = state_objects(settings)
    assert (objects.bucket, objects.prefix, objects.rules.bucket_timeout_seconds) == ("bucket", "state/a", 5.0)
    assert place_of(settings.run_dir) == "s3://bucket/state/a"
    assert list(tmp_path.iterdir()) == []


def test_runs_that_share_a_bucket_write_below_their_own_names():
    """The daemon of many runs gives the same place to each."""
    first = Settings(checkpoint_dir="s3://bucket/1/ckpts", state_dir="s3://bucket/state", run="a")
    second = Settings(checkpoint_dir="s3://bucket/2/ckpts", state_dir=first.state_dir, run="b")
    for settings in (first, second):
        state_storage(settings)
    assert [each.run_dir.objects.prefix for each in (first, second)] == ["state/a", "state/b"]
