"""`engine = "ray"`: a real cluster of four raylets. Its processes, machines and head are killed while it evaluates."""

import json
import os
import shutil
import signal
import subprocess
import time
from datetime import datetime
from pathlib import Path

import psutil
import pytest
from integration.conftest import TASKS
from integration.test_buckets import Bucket, numbers
from integration.torch_trainer import TORCH
from numpy_trainer import NUMPY
from ray_cluster import PROGRAMS, RayCluster

pytestmark = pytest.mark.nightly

EVAL, CHIEF = ("127.0.0.3", "127.0.0.4"), "127.0.0.5"
TASK = "numpy_plain.py"
IDLE_SECONDS = 4
TENSORFLOW = {"SIDECAR_FRAMEWORK": "tensorflow", "SIDECAR_JOIN_TIMEOUT_SECONDS": "600"}
"""Waits for a processor on another machine are not known, and so count: tests import it on a busy one."""

WORKER = "sidecar/evaluation/__main__.py"


@pytest.fixture(scope="module")
def ray(needs):
    """A head, two nodes that may evaluate, and one of the chief."""
    needs("ray", PROGRAMS)
    with RayCluster() as cluster:
        cluster.add(*EVAL, role="eval")
        cluster.add(CHIEF, role="chief")
        yield cluster


def on(ray):
    """Return the settings of a daemon that evaluates on the cluster."""
    return {
        "SIDECAR_ENGINE": "ray",
        "SIDECAR_RAY_ADDRESS": ray.address,
        "SIDECAR_RAY_WORKERS": str(len(EVAL)),
        "SIDECAR_RAY_LABELS": '{"role": "eval"}',
        "SIDECAR_RAY_RESOURCES": '{"CPU": 1}',
        "SIDECAR_RAY_TOKEN_FILE": str(ray.token),
        "SIDECAR_WORKER_PYTHON": str(PROGRAMS / "python"),
        "SIDECAR_MIN_WORKERS": str(len(EVAL)),
    }


@pytest.fixture(scope="module")
def start(sidecar, ray):
    """Start a daemon that evaluates on the cluster."""

    def run(folder, *options, command="run", task=TASK, trained=NUMPY, **changes):
        settings = trained | on(ray) | changes
        if command == "run":
            return sidecar.run(folder, *options, task=task, **settings)
        return sidecar.start(command, folder, "--task", f"{TASKS / task}:task", *options, **settings)

    return run


@pytest.fixture(scope="module")
def watched(start, tmp_path_factory):
    """A daemon whose group is warm, and the folder that it watches."""
    folder = tmp_path_factory.mktemp("watched") / "ckpts"
    folder.mkdir()
    daemon = start(folder, SIDECAR_MIN_WORKERS="1")
    yield daemon, folder
    daemon.process.kill()
    daemon.process.wait()


def bits(daemon):
    """Return for each evaluation, in order, what must be equal to the last bit."""
    records = [json.loads(path.read_bytes()) for path in sorted((daemon.run_dir / "outcomes").glob("*.json"))]
    results = [record["result"] for record in records]
    return [
        (each["variables"], {name: metric["hex"] for name, metric in each["metrics"]["test"].items()})
        for each in results
    ]


def seconds_until(daemon, event, since):
    """Return the time from `since` to the first line of the log about an event after that."""

    def look():
        times = [datetime.fromisoformat(line["timestamp"]).timestamp() for line in daemon.log(event)]
        return [moment - since for moment in times if moment >= since]

    return daemon.until(look, f"another {event}")[0]


def workers_of(ray):
    """Return the worker processes on each machine that may evaluate."""
    return {address: ray.nodes[address].processes(WORKER, "--reports") for address in EVAL}


def placed(daemon):
    """Return the ids of all worker processes that this daemon had on the cluster, which is this machine."""
    return [line["pid"] for line in daemon.log("worker_placed")]


def warm(daemon, folder, trainer, step):
    """Let the daemon evaluate one more checkpoint with both machines, and return its row."""

    def together():
        saved = trainer.save(folder, step)
        row = daemon.evaluated(*saved)[saved[0]["name"]]
        return row if row["workers"] == len(EVAL) else None

    row = None
    while row is None:
        row, step = together(), step + 1
    return row


@pytest.mark.parametrize(
    ("trainer", "task", "settings"),
    [
        ("numpy_trainer", TASK, NUMPY),
        ("torch_trainer", "torch_plain.py", TORCH),
        ("writer", "plain.py", TENSORFLOW),
    ],
)
def test_the_same_bits_as_locally(trainer, task, settings, start, ray, sidecar, request, tmp_path, record_property):
    """Two machines of the cluster give each number that two local processes give; no other machine had a worker."""
    there, here = tmp_path / "there" / "ckpts", tmp_path / "here" / "ckpts"
    saved = request.getfixturevalue(trainer).save(there, 1, 2, 3)
    shutil.copytree(there, here)
    there = start(there, task=task, trained=settings)
    here = sidecar.run(here, "--once", task=task, SIDECAR_REPLICAS="2", SIDECAR_MIN_WORKERS="2", **settings)
    there.evaluated(*saved)
    assert here.wait().code == 0
    assert bits(there) == bits(here)
    assert len(bits(there)) == len(saved)
    for name, daemon in (("there", there), ("here", here)):
        record_property(f"warm_seconds_{name}", min(each["took"] for each in daemon.log("evaluation_succeeded")[1:]))
    assert {row["workers"] for row in there.successes()} == {2}
    assert {line["address"].partition(":")[0] for line in there.log("worker_placed")} == set(EVAL)
    assert there.end(signal.SIGTERM).code == 0
    assert [each for found in workers_of(ray).values() for each in found] == []


DRIVER = """
import ray, sys
ray.init(address=sys.argv[1], log_to_driver=False)
ray.get(ray.remote(lambda path: open(path, "w").close()).options(num_cpus=1).remote(sys.argv[2]))
"""


@pytest.mark.parametrize("token", [None, "f" * 32])
def test_nobody_runs_code_in_the_cluster_without_its_token(ray, tmp_path, token):
    """Neither a driver without a login nor one with another token; one that has the token can."""
    login = {"RAY_AUTH_MODE": "disabled"} if token is None else {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    right = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(ray.token)}

    def drive(name, login):
        others = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        command = [PROGRAMS / "python", "-c", DRIVER, ray.address, tmp_path / name]
        done = subprocess.run(command, env=others | login, capture_output=True, text=True, timeout=600)
        return done.returncode == 0, done.stdout + done.stderr

    succeeded, words = drive("refused", login)
    assert (succeeded, (tmp_path / "refused").exists()) == (False, False), words
    assert "Unauthenticated" in words or "AuthenticationError" in words, words
    drive("right", right)
    assert (tmp_path / "right").exists()


def test_the_token_is_told_to_nobody(watched, ray, numpy_trainer):
    """It is in no log and no record, and in no argument or variable of a process of the daemon or of a worker."""
    daemon, folder = watched
    warm(daemon, folder, numpy_trainer, 1)
    secret = ray.token.read_bytes()
    files = [path for path in (daemon.folder / "err", *daemon.run_dir.rglob("*")) if path.is_file()]
    assert [path for path in files if secret in path.read_bytes()] == []
    own = psutil.Process(daemon.process.pid)
    workers = [each for found in workers_of(ray).values() for each in found]
    assert len(workers) >= len(EVAL)
    for each in (own, *own.children(recursive=True), *workers):
        told = b"".join((Path("/proc") / str(each.pid) / name).read_bytes() for name in ("cmdline", "environ"))
        assert secret not in told
        assert each not in workers or b"RAY_AUTH" not in told


@pytest.mark.timeout(900)
def test_checkpoints_and_state_may_lie_in_a_bucket(ray, start_bucket, sidecar, torch_trainer, tasks, tmp_path):
    """The folder of pins and saves is one that all machines share, as these do; the daemon uploads the saves."""
    server, folder = start_bucket("moto_server"), tmp_path / "ckpts"
    bucket = Bucket(server, sidecar, tmp_path, tasks / "torch_plain.py", TORCH)
    saved = torch_trainer.save(folder, 1, 2)
    for each in saved:
        bucket.upload(folder / each["name"])
    bucket.environ |= on(ray) | {"SIDECAR_STATE_DIR": f"{server.url}/state"}
    ended = bucket.command("run", "--once", "--role", "worker")
    assert ended.code == 0, ended.err
    found = [metrics["test"] for *_, metrics in numbers(bucket.command("history", "--json"))]
    assert [each["accuracy"]["value"] for each in found] == [each["correct"] / each["examples"] for each in saved]
    assert [each["loss"]["value"] for each in found] == pytest.approx([each["loss"] for each in saved])
    assert all(f'"address": "{address}:' in ended.err for address in EVAL)


def test_a_worker_process_that_is_killed(watched, ray, numpy_trainer, record_property):
    """The daemon hears of it within a moment, and replaces the worker."""
    daemon, folder = watched
    warm(daemon, folder, numpy_trainer, 100)
    child, since = workers_of(ray)[EVAL[0]][0], time.time()
    child.kill()
    record_property("seconds", seconds_until(daemon, "worker_exited", since))
    assert warm(daemon, folder, numpy_trainer, 200)["status"] == "succeeded"


def test_an_actor_that_is_killed_takes_its_worker_process_with_it(watched, ray, numpy_trainer, record_property, until):
    """Nothing is left on the machine that computes for nobody."""
    daemon, folder = watched
    warm(daemon, folder, numpy_trainer, 300)
    child = workers_of(ray)[EVAL[0]][0]
    actor, since = next(each for each in child.parents() if each.name().startswith("ray::")), time.time()
    actor.kill()
    record_property("seconds", seconds_until(daemon, "worker_exited", since))
    until(lambda: not child.is_running(), "the end of the worker process")
    warm(daemon, folder, numpy_trainer, 400)


def test_a_helper_process_that_is_killed(watched, ray, numpy_trainer, until):
    """The daemon lives, all workers end with the connection, and another helper process gets new ones."""
    daemon, folder = watched
    warm(daemon, folder, numpy_trainer, 500)
    before = [each for found in workers_of(ray).values() for each in found]
    (helper,) = [pid for pid in daemon.children() if "bridge.py" in " ".join(psutil.Process(pid).cmdline())]
    os.kill(helper, signal.SIGKILL)
    until(lambda: not any(each.is_running() for each in before), "the end of all worker processes")
    warm(daemon, folder, numpy_trainer, 600)


def test_a_machine_that_hangs(watched, ray, numpy_trainer, record_property):
    """It is given up after a few seconds without an answer, evaluation goes on without it, and it may come back."""
    daemon, folder = watched
    warm(daemon, folder, numpy_trainer, 700)
    hung, since = ray.nodes[EVAL[1]], time.time()
    hung.signal(signal.SIGSTOP)
    try:
        (saved,) = numpy_trainer.save(folder, 800)
        row = daemon.evaluated(saved)[saved["name"]]
        record_property("seconds", seconds_until(daemon, "worker_exited", since))
        record_property("evaluated_after_seconds", time.time() - since)
        assert row["workers"] == 1
        failed = [each for each in daemon.log("plan_failed") if each["checkpoint"] == saved["name"]]
        assert {each["node"].partition("/")[2] for each in failed} <= {EVAL[1]}
    finally:
        hung.signal(signal.SIGCONT)
    warm(daemon, folder, numpy_trainer, 900)


def test_check_restores_on_the_cluster(start, numpy_trainer, tmp_path):
    """It restores a checkpoint and evaluates a batch there, and leaves no file on the shared storage."""
    folder = tmp_path / "ckpts"
    numpy_trainer.save(folder, 1)
    checked = start(folder, command="check", SIDECAR_RAY_WORKERS="1").wait()
    assert checked.code == 0, checked.out
    assert "model-1.npz (step 1) was restored, and the first batch" in " ".join(checked.out.split())
    assert list((folder / ".sidecar").glob("sidecar-check-*")) == []


def test_two_daemons_share_a_cluster(start, sidecar, numpy_trainer, tmp_path):
    """Each has a machine; together they find the bits of one daemon with two local processes."""
    there, here = tmp_path / "there" / "ckpts", tmp_path / "here" / "ckpts"
    saved = numpy_trainer.save(there, 1, 2, 3)
    shutil.copytree(there, here)
    daemons = [start(there, SIDECAR_NODE=node, SIDECAR_RAY_WORKERS="1") for node in ("first", "second")]
    alone = sidecar.run(here, "--once", task=TASK, SIDECAR_REPLICAS="2", SIDECAR_MIN_WORKERS="2", **NUMPY)
    daemons[0].evaluated(*saved)
    assert alone.wait().code == 0
    assert bits(daemons[0]) == bits(alone)
    assert {row["workers"] for row in daemons[0].successes()} == {2}
    for daemon in daemons:
        assert daemon.end(signal.SIGTERM).code == 0


def test_idle_machines_are_given_back(start, numpy_trainer, tmp_path, until, alive):
    """No process is left there until the next checkpoint, for which the cluster is asked again."""
    folder = tmp_path / "ckpts"
    saved = numpy_trainer.save(folder, 1)
    daemon = start(folder, SIDECAR_RAY_IDLE_SECONDS=str(IDLE_SECONDS))
    daemon.evaluated(*saved)
    daemon.logged("cluster_released")
    until(lambda: alive(placed(daemon)) == [], "the end of all worker processes")
    daemon.evaluated(*numpy_trainer.save(folder, 2))
    assert daemon.end(signal.SIGTERM).code == 0


def test_a_daemon_that_is_killed(start, numpy_trainer, tmp_path, until, alive, record_property):
    """Its actors and worker processes end at once."""
    folder = tmp_path / "ckpts"
    saved = numpy_trainer.save(folder, 1)
    daemon = start(folder)
    daemon.evaluated(*saved)
    assert alive(placed(daemon))
    since = time.time()
    daemon.process.kill()
    until(lambda: alive(placed(daemon)) == [], "the end of all worker processes", 10)
    record_property("seconds", time.time() - since)


def test_a_machine_that_fails(watched, ray, numpy_trainer, record_property):
    """Evaluation goes on without it, and with it again once it is back."""
    daemon, folder = watched
    warm(daemon, folder, numpy_trainer, 1000)
    since = time.time()
    ray.nodes[EVAL[1]].kill()
    record_property("seconds", seconds_until(daemon, "worker_exited", since))
    (saved,) = numpy_trainer.save(folder, 1100)
    assert daemon.evaluated(saved)[saved["name"]]["workers"] == 1
    ray.add(EVAL[1], role="eval")
    warm(daemon, folder, numpy_trainer, 1200)


def test_a_head_that_fails(watched, ray, numpy_trainer):
    """The daemon lives and says that the cluster is lost; results are as before when a cluster is there again."""
    daemon, folder = watched
    row = warm(daemon, folder, numpy_trainer, 1300)
    ray.nodes.pop("127.0.0.2").kill()
    daemon.until(lambda: any("connection to the Ray cluster" in str(each) for each in daemon.log()), "the loss")
    for node in list(ray.nodes.values()):
        node.kill()
    ray.start_head()
    ray.add(*EVAL, role="eval")
    warm(daemon, folder, numpy_trainer, 1400)
    assert row["status"] == "succeeded"
    assert daemon.end(signal.SIGTERM).code == 0
