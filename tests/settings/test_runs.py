"""Find the runs of a daemon, and give each its settings."""

import os

import pytest

from sidecar.errors import SettingsError
from sidecar.settings import load, load_shared
from sidecar.settings.runs import why_ignored


@pytest.fixture
def make(tmp_path):
    """Make the directory of a run, with the text of its own settings file if there is one."""

    def make(name, text=None):
        directory = tmp_path / "shared" / name
        directory.mkdir(parents=True)
        if text is not None:
            (directory / "sidecar.toml").write_text(text)
        return directory

    return make


def shared(tmp_path, *patterns, **environ):
    runs = ",".join(str(pattern if "://" in str(pattern) else tmp_path / "shared" / pattern) for pattern in patterns)
    environ = {"SIDECAR_RUNS": runs} | {f"SIDECAR_{key.upper()}": value for key, value in environ.items()}
    return load_shared({}, environ=environ), environ


def runs_of(settings):
    return {
        settings.settings_of(place).run: str(settings.settings_of(place).checkpoint_dir) for place in settings.places()
    }


def test_runs_have_the_names_of_their_directories_or_of_what_the_wildcards_stand_for(tmp_path, make):
    """Many directories are called ckpts."""
    a, b, other = make("a/ckpts"), make("b/ckpts"), make("other")
    (tmp_path / "shared" / "file").mkdir()
    (tmp_path / "shared" / "file" / "ckpts").write_text("not a directory")
    settings, _ = shared(tmp_path, "*/ckpts", "other", "missing")
    missing = tmp_path / "shared" / "missing"
    assert runs_of(settings) == {"a": str(a), "b": str(b), "other": str(other), "missing": str(missing)}


def test_a_url_is_a_run(tmp_path):
    """Its state lies below the user's own directory, as for one run."""
    settings, _ = shared(tmp_path, "s3://bucket/exp-7")
    (place,) = settings.places()
    assert settings.settings_of(place).run == "exp-7"
    assert settings.settings_of(place).checkpoint_dir.url == "s3://bucket/exp-7"


def test_the_state_of_runs_in_buckets_may_be_in_one(tmp_path):
    """Each run has a folder of its own in it, and intervals that suit a bucket."""
    settings, _ = shared(tmp_path, "s3://bucket/exp-7", "s3://bucket/exp-8", state_dir="s3://bucket/state")
    assert settings.node.http_port == 19108
    found = [settings.settings_of(place) for place in settings.places()]
    assert [each.run_dir.url for each in found] == ["s3://bucket/state/exp-7", "s3://bucket/state/exp-8"]
    assert {each.beat_seconds for each in found} == {3.5}


def test_a_directory_that_two_patterns_find_is_one_run(tmp_path, make):
    """The first pattern names it."""
    make("a/ckpts")
    settings, _ = shared(tmp_path, "*/ckpts", "a/*")
    assert list(runs_of(settings)) == ["a"]


def test_the_file_of_a_run_replaces_shared_settings(tmp_path, make):
    """Its task, say, and its share."""
    make("a", 'task = "/a.py:task"\npriority = 2')
    make("b")
    settings, _ = shared(tmp_path, "*", task="/shared.py:task")
    tasks = {place.name: settings.settings_of(place) for place in settings.places()}
    assert [(name, each.task, each.priority) for name, each in tasks.items()] == [
        ("a", "/a.py:task", 2.0),
        ("b", "/shared.py:task", 1.0),
    ]


def test_shared_folders_are_divided(tmp_path, make):
    """TensorBoard must not draw two runs as one."""
    make("a")
    settings, _ = shared(tmp_path, "*", tensorboard_dir="/tb", state_dir="/state")
    (place,) = settings.places()
    found = settings.settings_of(place)
    assert (str(found.tensorboard_dir), str(found.run_dir)) == ("/tb/a", "/state/a")


@pytest.mark.parametrize("harm", ["writable", "link", "folder"])
def test_a_file_that_another_user_may_have_made_is_not_read(tmp_path, make, harm):
    """It could name a program to run."""
    directory = make("a")
    path = directory / "sidecar.toml"
    if harm == "folder":
        path.mkdir()
    elif harm == "link":
        (tmp_path / "elsewhere.toml").write_text('task = "/evil.py:task"')
        path.symlink_to(tmp_path / "elsewhere.toml")
    else:
        path.write_text('task = "/evil.py:task"')
        path.chmod(0o666)
    settings, _ = shared(tmp_path, "*", task="/shared.py:task")
    (place,) = settings.places()
    assert settings.settings_of(place).task == "/shared.py:task"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
@pytest.mark.parametrize(
    ("user", "group", "mode", "why"),
    [
        (12345, 12345, 0o644, "it belongs to another user"),
        (0, 12345, 0o664, "its group may write to it"),
        (0, 12345, 0o644, None),
        (0, os.getegid(), 0o664, None),
    ],
)
def test_a_file_of_another_user_is_not_read(tmp_path, make, user, group, mode, why):
    """As in the current directory; and none that a group of several users may write to."""
    path = make("a", 'task = "/own.py:task"') / "sidecar.toml"
    os.chown(path, user, group)
    path.chmod(mode)
    settings, _ = shared(tmp_path, "*", task="/shared.py:task")
    (place,) = settings.places()
    assert settings.settings_of(place).task == ("/shared.py:task" if why else "/own.py:task")
    assert why_ignored(place) == why


@pytest.mark.parametrize("line", ['http = "127.0.0.1:1"', 'node = "x"', "nonsense = 1", "replicas = 0", "= ="])
def test_a_wrong_file_fails_its_own_run_alone(tmp_path, make, line):
    """The error names the file and the key."""
    make("a", line)
    make("b")
    settings, _ = shared(tmp_path, "*")
    first, second = settings.places()
    with pytest.raises(SettingsError, match=r"a/sidecar\.toml"):
        settings.settings_of(first)
    assert settings.settings_of(second).run == "b"


@pytest.mark.parametrize(("key", "value"), [("engine", "ray"), ("min_workers", "2"), ("lease_seconds", "0")])
def test_settings_that_no_run_can_have_are_refused_at_the_start(tmp_path, key, value):
    """And not once for each run."""
    with pytest.raises(SettingsError, match=f"(?i){key}"):
        _ = shared(tmp_path, "*", **{key: value})[0].node


def test_a_pattern_of_any_depth_is_refused(tmp_path):
    """It would walk through everything again and again."""
    with pytest.raises(SettingsError, match=r"\*\*"):
        _ = shared(tmp_path, "**/ckpts")[0].node


def test_commands_choose_one_run_by_its_name_or_directory(tmp_path, make):
    """They find it under the name that the daemon gave it."""
    directory = make("a/ckpts")
    make("b/ckpts")
    _, environ = shared(tmp_path, "*/ckpts")
    assert load({"run": "a"}, environ=environ).checkpoint_dir == directory
    assert load({"checkpoint_dir": str(directory)}, environ=environ).run == "a"
    assert load_shared({"run": "a"}, environ=environ) is None
    for flags in ({}, {"run": "c"}):
        with pytest.raises(SettingsError, match="a, b"):
            load(flags, environ=environ)


def test_a_directory_that_is_no_run_is_served_by_itself(tmp_path, make):
    """A person may look at any directory."""
    make("a/ckpts")
    _, environ = shared(tmp_path, "*/ckpts")
    assert load({"checkpoint_dir": str(tmp_path)}, environ=environ).run == tmp_path.name
