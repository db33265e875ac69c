"""The clock of a node jumps by an hour, back and forth, or is slow: nobody is given up, and each result comes once."""

import ctypes
import json

import pytest
from integration.clock import Clock
from receivers import receiver
from tensorboard_reader import read_events

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def clock(tmp_path):
    return Clock(tmp_path / "clock")


@pytest.mark.nightly
def test_the_clock_of_the_publisher_jumps(trial, clock, tmp_path):
    """Its sinks get each result once, in order, with times that only rise."""
    with receiver() as server:
        board = tmp_path / "board"
        settings = {"SIDECAR_TENSORBOARD_DIR": str(board), "SIDECAR_HOOKS": f'{{"result": {{"url": "{server.url}"}}}}'}
        trial.start(**settings, **clock.environ)
        for hours in (0, 1, -1, 0, 24, 0):
            clock.set(hours)
            trial.save()
            trial.evaluated()
        trial.judge()
    steps = [each["step"] for each in trial.saved]
    assert [_step(request) for request in server.requests] == steps

    shown = read_events(board / "test").Scalars("loss")
    assert [each.step for each in shown] == steps
    assert [each.value for each in shown] == [ctypes.c_float(each["loss"]).value for each in trial.saved]
    times = [each.wall_time for each in shown]
    assert times == sorted(times)


@pytest.mark.nightly
@pytest.mark.parametrize("odd", ["worker-0", "worker-1"])
def test_the_clock_of_one_of_two_nodes_jumps(trial, clock, odd):
    """Leases are counted by each node for itself, so nobody is lost, and no attempt fails."""
    for node in ("worker-0", "worker-1"):
        trial.start(node, **(clock.environ if node == odd else {}))
    for hours in (0, 1, -1, 0):
        clock.set(hours)
        trial.save()
        trial.evaluated()
    trial.judge()


@pytest.mark.nightly
def test_the_clock_of_one_of_two_nodes_is_slow(trial, clock):
    """It beats half as often as it should, which is often enough for the others."""
    clock.set(0, 0.5)
    trial.start("worker-0")
    trial.start("worker-1", **clock.environ)
    for _ in range(3):
        trial.save()
        trial.evaluated()
    trial.judge()


def _step(request):
    return json.loads(request.body)["checkpoint"]["step"]
