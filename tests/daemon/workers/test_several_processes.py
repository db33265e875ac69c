"""Workers of several processes, which divide the model among them: the same numbers, and nothing is left of them."""

import dataclasses
import importlib
import os
import signal
import sys
import time

import psutil
import pytest
from daemon.workers.conftest import PATIENT, TASKS
from support.processes import gone

from sidecar.daemon.workers.process import Exited
from sidecar.protocol.messages import Done, Failed
from sidecar.protocol.states import FailureKind

pytestmark = [pytest.mark.torch, pytest.mark.seconds]

SHORT = dataclasses.replace(PATIENT, restore_timeout_seconds=5, first_batch_timeout_seconds=5, stall_seconds=5)


def saved(build, folder):
    """The same values in a folder of torch.distributed.checkpoint and in a file of safetensors."""
    import torch
    from evaluation.backends.torch.weights import save_distributed, save_file

    torch.manual_seed(3)
    model = build()
    return [str(save_distributed(model, folder / "step-5")), str(save_file(model, folder / "step-5.safetensors"))]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Those of the network of `divided_net.py`."""
    return saved(task_file("divided_net").Net, tmp_path_factory.mktemp("checkpoints"))


def task_file(name):
    """The module of a task."""
    sys.path.insert(0, str(TASKS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(TASKS))


@pytest.fixture
def divided(worker_group, tmp_path):
    """Form a group of workers that are so many processes each."""

    def form(size, processes, task="divided_net.py:task", options=None, **changes):
        environment = {"WITHOUT_MEMORY": str(tmp_path / "without-memory")}
        group = worker_group(size, environment=environment, framework="torch", **changes)
        group.form(task, framework="torch", processes=processes, options=options or {})
        return group

    return form


def followers(group):
    """The processes that a worker's process has started, apart from guards."""
    (leader,) = group.workers.all()
    found = psutil.Process(leader.process.pid).children()
    return [process for process in found if "--follows" in process.cmdline()]


def numbers(reports):
    """The values of the result, which all ranks hold, and the digest of the restored values."""
    assert all(isinstance(report, Done) for report in reports), reports
    (result,) = {repr((report.result.metrics, report.result.examples)) for report in reports}
    return result, reports[0].result


def end(group):
    """Observe the events of a worker until it ends; its last failure, and its end."""
    failed = None
    while True:
        worker, event = group.inbox.get(timeout=240)
        group.workers.observe(worker, event, time.monotonic())
        failed = event if isinstance(event, Failed) else failed
        if isinstance(event, Exited):
            return failed, event


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "way"), [("divided_net", "fully_shard"), ("divided_lm", "tensor")])
def test_any_number_of_workers_gives_the_bits_of_one(divided, tmp_path, name, way):
    """One process gives the same numbers up to rounding."""
    module = task_file(name)
    given = {"task": f"{name}.py:task", "options": {"model_parallel": way}}
    one, two = divided(1, 2, **given), divided(2, 2, **given)
    for checkpoint in saved(module.task.build_model, tmp_path):
        of_one, result = numbers(one.evaluate(checkpoint))
        of_two, other = numbers(two.evaluate(checkpoint))
        assert of_one == of_two
        assert result.variables == other.variables
        assert (result.profile["processes"], result.profile["model parallel"]) == ("2", way)
    _, alone = numbers(divided(1, 1, **given).evaluate(checkpoint))
    assert "processes" not in alone.profile
    for metric, value in alone.metrics["test"].items():
        assert result.metrics["test"][metric].value == pytest.approx(value.value, rel=1e-6)
    for path in two.folder.glob("plan-1/*"):
        assert [each.name for each in path.iterdir()] == ["states.json"]


def test_a_process_that_is_killed_ends_its_worker(divided, checkpoints):
    """As the kernel does when memory is short: the daemon sees the signal, and the log tells which process it was."""
    group = divided(1, 3)
    numbers(group.evaluate(checkpoints[0]))
    first, second = followers(group)
    os.kill(second.pid, signal.SIGKILL)
    _, exited = end(group)
    assert exited.status == -signal.SIGKILL
    assert "process 3 of 3 of this worker" in exited.tail
    assert gone(first.pid)


@pytest.mark.nightly
def test_a_process_that_hangs_ends_its_worker_within_the_limit(divided, checkpoints):
    """The leader waits for it, makes no progress, and is killed; so is the one that hangs."""
    group = divided(1, 2, bounds=SHORT)
    (follower,) = followers(group)
    follower.suspend()
    (leader,) = group.workers.all()
    command_sent = time.monotonic()
    group.send(checkpoints[0])
    while not (overruns := group.workers.overruns(time.monotonic())):
        assert time.monotonic() < command_sent + 60
        if not group.inbox.empty():
            worker, event = group.inbox.get()
            group.workers.observe(worker, event, time.monotonic())
        time.sleep(0.05)
    assert overruns[0].kind in (FailureKind.DEADLINE, FailureKind.STALLED)
    group.workers.kill(leader)
    end(group)
    assert gone(follower.pid)


def test_a_process_that_fails_alone_is_heard(divided, checkpoints, tmp_path):
    """The leader waits for the follower in a sum, and cannot tell: the follower's own report reaches the daemon."""
    group = divided(1, 2)
    (follower,) = followers(group)
    (tmp_path / "without-memory").touch()
    group.send(checkpoints[0])
    failed, exited = end(group)
    assert (failed.kind, failed.plan, failed.rank) == (FailureKind.OUT_OF_MEMORY, 1, 0)
    assert exited.status == 1
    assert gone(follower.pid)
