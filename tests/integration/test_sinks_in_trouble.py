"""Receivers are away or silent, and the folder of TensorBoard is removed: evaluations go on, and nothing grows."""

import ctypes
import json
import shutil
from importlib.util import find_spec

import pytest
from receivers import raw_server, receiver
from tensorboard_reader import read_events

pytestmark = pytest.mark.timeout(900)

SILENT = {"SIDECAR_SINK_TIMEOUT_SECONDS": "2"}


def silent(connection, ended):
    """Take a connection, and say nothing."""
    ended.wait(0.5)
    connection.recv(1 << 20)


def scalars(folder):
    """Return what TensorBoard shows of the loss."""
    return read_events(folder).Scalars("loss")


@pytest.mark.nightly
def test_every_receiver_is_dead(trial, tmp_path):
    """Each sink says so once, TensorBoard gets its numbers all the same, and the daemon ends in time."""
    with raw_server(silent) as hole:
        hooks = {"result": {"url": hole, "timeout_seconds": 1}, "best": ["sleep", "600"], "failure": ["false"]}
        settings = {
            "SIDECAR_HOOKS": json.dumps(hooks),
            "SIDECAR_BEST_METRIC": "test/loss",
            "SIDECAR_REMOTE_WRITE": f"{hole}/api/v1/write",
            "SIDECAR_TENSORBOARD_DIR": str(tmp_path / "board"),
        }
        daemon = trial.start(**settings, **SILENT)
        for _ in range(4):
            trial.save(3)
            trial.evaluated()
        daemon.until(lambda: {"hook_result", "remote_write"} <= failing(daemon), "the sinks to fail")
        trial.judge("hook_result", "remote_write")
    assert len(daemon.log("sink_failed")) <= 8
    assert [each.step for each in scalars(tmp_path / "board" / "test")] == [each["step"] for each in trial.saved]


@pytest.mark.nightly
@pytest.mark.skipif(find_spec("mlflow") is None, reason="mlflow is not installed")
def test_mlflow_is_silent(trial):
    """Its process is asked within a bound and ended; it does not outlive a daemon that is killed in between."""
    with raw_server(silent) as hole:
        settings = {"SIDECAR_MLFLOW_TRACKING_URI": hole.removesuffix("/hook"), "SIDECAR_SINK_TIMEOUT_SECONDS": "5"}
        daemon = trial.start(**settings)
        trial.save(3)
        trial.evaluated()
        daemon.logged("sink_failed")
        daemon.end(9)
        trial.start(**settings)
        trial.save(2)
        trial.judge("mlflow", unfinished=True)


def failing(daemon):
    return {line["sink"] for line in daemon.log("sink_failed")}


@pytest.mark.nightly
def test_a_receiver_comes_back(trial):
    """The events that waited are delivered when the receiver comes back, each one once and in order."""
    with receiver() as server:
        server.answers += [503] * 3
        hooks = {"result": {"url": server.url, "timeout_seconds": 1}}
        daemon = trial.start(SIDECAR_HOOKS=json.dumps(hooks), **SILENT)
        trial.save(4)
        trial.evaluated()
        daemon.until(lambda: len(server.requests) >= 7, "the events that waited")
        trial.judge("hook_result")
    steps = [json.loads(request.body)["checkpoint"]["step"] for request in server.requests]
    assert list(dict.fromkeys(steps)) == [each["step"] for each in trial.saved]
    assert len(steps) == 7


@pytest.mark.nightly
@pytest.mark.parametrize("removed", ["board", pytest.param("board/test", marks=pytest.mark.nightly)])
def test_the_folder_of_tensorboard_is_removed(trial, tmp_path, removed):
    """Results that follow are written into a new one, without an error."""
    board = tmp_path / "board"
    daemon = trial.start(SIDECAR_TENSORBOARD_DIR=str(board))
    trial.save(2)
    trial.evaluated()
    daemon.until(lambda: (board / "test").exists() and len(scalars(board / "test")) == 2, "two events")
    shutil.rmtree(tmp_path / removed)
    later = trial.save(2)
    trial.evaluated()
    daemon.until(lambda: (board / "test").exists() and len(scalars(board / "test")) >= 2, "new events")
    trial.judge()
    shown = scalars(board / "test")
    assert [each.step for each in shown][-2:] == [each["step"] for each in later]
    assert [each.value for each in shown][-2:] == [ctypes.c_float(each["loss"]).value for each in later]
