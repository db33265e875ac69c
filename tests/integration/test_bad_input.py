"""Answer mistakes of users before any evaluation by one sentence and a documented exit code."""

import os
import shutil
import socket
import subprocess

import pytest
from numpy_trainer import NUMPY

SETTINGS, TASK, STORAGE = 2, 3, 4
SECONDS = 20.0


def test_a_missing_checkpoint_directory_fails_without_waiting(sidecar, tmp_path):
    """With --no-wait there is nothing to wait for."""
    done = sidecar.run(tmp_path / "ckpts", "--no-wait", task="plain.py").wait(SECONDS)
    assert done.code == SETTINGS
    assert f"{tmp_path / 'ckpts'}' does not exist" in done.sentence
    assert not (tmp_path / "ckpts").exists()


def test_no_checkpoint_directory(sidecar):
    """It is the one setting without a default."""
    done = sidecar.command("run")
    assert done.code == SETTINGS
    assert "checkpoint_dir is not set: give --checkpoint-dir" in done.sentence


def test_no_task(sidecar, place):
    """A node that evaluates must know with what."""
    done = sidecar.run(place).wait(SECONDS)
    assert done.code == SETTINGS
    assert "task is not set: give --task" in done.sentence


def test_a_file_in_place_of_the_state_directory(sidecar, place):
    """Nobody can write below a file."""
    (place / ".sidecar").write_text("")
    done = sidecar.run(place, task="plain.py").wait(SECONDS)
    assert done.code == STORAGE
    assert str(place / ".sidecar") in done.sentence
    assert "there is a file where a folder is expected" in done.sentence


def test_a_read_only_state_directory(sidecar, place):
    """As when storage is mounted read-only; root may write anywhere else."""
    unshare = shutil.which("unshare")
    words = [unshare, *(() if os.geteuid() == 0 else ("-Ur",)), "-m"]
    if unshare is None or subprocess.run([*words, "true"], capture_output=True, check=False).returncode:
        pytest.skip("mount namespaces are not allowed here")
    mount = f'mount --bind {place} {place} && mount -o remount,ro,bind {place} && exec "$@"'
    done = sidecar.run(place, task="plain.py", before=(*words, "sh", "-c", mount, "sh")).wait(SECONDS)
    assert done.code == STORAGE
    assert str(place / ".sidecar") in done.sentence
    assert "Read-only file system" in done.sentence
    assert "remount it writable" in done.sentence


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("{not json", "TF_CONFIG: Expecting property name"),
        pytest.param('{"cluster": {"worker": ["a:1"]}}', "TF_CONFIG: task is missing", marks=pytest.mark.nightly),
        pytest.param(
            '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 3}}',
            "worker:3 is not in cluster",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_a_malformed_tf_config(sidecar, place, value, told):
    """It is never guessed over: the chief might be hidden in it."""
    done = sidecar.run(place, task="plain.py", TF_CONFIG=value).wait(SECONDS)
    assert done.code == SETTINGS
    assert told in done.sentence
    assert "--node" in done.sentence


def test_an_unknown_setting_in_the_file(sidecar, place, tmp_path):
    """The message names file, key and the setting that was probably meant."""
    (tmp_path / "sidecar.toml").write_text("replica = 2\n")
    done = sidecar.run(place, "--config", tmp_path / "sidecar.toml", task="plain.py").wait(SECONDS)
    assert done.code == SETTINGS
    assert f"file {tmp_path}/sidecar.toml, key replica" in done.sentence
    assert "did you mean replicas?" in done.sentence


def test_an_unknown_setting_in_the_environment(sidecar, place):
    """A typing error in a unit file does not pass silently."""
    done = sidecar.run(place, task="plain.py", SIDECAR_REPLICA="2").wait(SECONDS)
    assert done.code == SETTINGS
    assert "environment SIDECAR_REPLICA: there is no such setting; did you mean SIDECAR_REPLICAS?" in done.sentence


def test_all_problems_are_told_at_once(sidecar, place):
    """One line each, so that nobody has to start four times."""
    done = sidecar.run(
        place, "--replicas", 0, "--http", "nowhere", task="plain.py", SIDECAR_REPLICA="2", SIDECAR_LEASE_SECONDS="soon"
    ).wait(SECONDS)
    assert done.code == SETTINGS
    for named in ("SIDECAR_REPLICA", "option --replicas", "option --http", "SIDECAR_LEASE_SECONDS"):
        assert named in done.said
    assert "Traceback" not in done.said


def test_an_unknown_option(sidecar, place):
    """The command line says so itself."""
    done = sidecar.run(place, "--replica", 2, task="plain.py").wait(SECONDS)
    assert done.code == SETTINGS
    assert "--replicas" in done.said
    assert "Traceback" not in done.said


def test_a_port_in_use(sidecar, place):
    """The address is named, and how to choose another."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = sidecar.run(place, "--http", f"127.0.0.1:{port}", task="plain.py").wait(SECONDS)
    assert done.code == SETTINGS
    assert f"cannot serve HTTP on 127.0.0.1:{port}: Address already in use" in done.sentence
    assert "--http" in done.sentence


BROKEN = {
    "no file": ("{tasks}/nowhere.py:task", "there is no file {tasks}/nowhere.py"),
    "no module": ("no_such_package.eval:task", "there is no module 'no_such_package'"),
    "no attribute": ("{tasks}/stranger.py:tusk", "has no 'tusk'; it defines TASK, task"),
    "raises at import": ("{tasks}/raises.py:task", "KeyError: 'heavy'"),
    "no task": ("{tasks}/stranger.py:task", "expected a sidecar.Task or a function that returns one, found dict"),
    "text": ("{tasks}/stranger.py:TASK", "found str 'accuracy'"),
}


@pytest.fixture(scope="module")
def broken(sidecar, tasks, tmp_path_factory):
    """How daemons end that were given these tasks; started together, since each tries it in a process of its own."""
    folder = tmp_path_factory.mktemp("broken")
    started = {}
    for number, (name, (task, _)) in enumerate(BROKEN.items()):
        place = folder / f"ckpts-{number}"
        place.mkdir()
        started[name] = sidecar.run(place, "--task", task.format(tasks=tasks), **NUMPY)
    return {name: daemon.wait() for name, daemon in started.items()}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_task_ends_the_daemon_at_its_start(broken, name, tasks):
    """Not at the first checkpoint, hours later: exit code 3, and the reason."""
    judge(broken[name], name, tasks)


@pytest.mark.tensorflow
@pytest.mark.nightly
def test_a_broken_task_with_tensorflow(sidecar, place, tasks):
    """The same, though TensorFlow was imported before the task."""
    name = "raises at import"
    task = BROKEN[name][0].format(tasks=tasks)
    judge(sidecar.run(place, "--task", task, SIDECAR_FRAMEWORK="tensorflow").wait(), name, tasks)


def judge(done, name, tasks):
    """The daemon ended with the reason that belongs to this task."""
    assert done.code == TASK, done.err
    assert BROKEN[name][1].format(tasks=tasks) in done.said
    assert done.said.startswith("sidecar: task '")
    if name == "raises at import":
        assert f'File "{tasks}/raises.py", line 4, in <module>\n    HEAVY = WEIGHTS["heavy"]' in done.said
        assert "sidecar/evaluation" not in done.said
    else:
        assert "\n" not in done.said
        assert "Traceback" not in done.said
