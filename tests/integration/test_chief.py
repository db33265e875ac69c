"""A node on which the training job's chief runs never starts a process, whichever hint says so."""

import json
import stat

import pytest
from numpy_trainer import NUMPY

CLUSTER = {"chief": ["10.0.0.1:2222"], "worker": ["10.0.0.2:2222", "10.0.0.3:2222"]}
WITHOUT_CHIEF = {"worker": CLUSTER["worker"]}


def tf_config(cluster, kind, index):
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})


HINTS = {
    "role": (("--role", "chief", "--node", "a"), {}),
    "chief_nodes": (("--node", "head-1"), {"SIDECAR_CHIEF_NODES": "head-*"}),
    "TF_CONFIG chief": ((), {"TF_CONFIG": tf_config(CLUSTER, "chief", 0)}),
    "TF_CONFIG worker 0": ((), {"TF_CONFIG": tf_config(WITHOUT_CHIEF, "worker", 0)}),
    "RANK": (("--node", "b"), {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1"}),
    "SLURM_NODEID": (("--node", "c"), {"SLURM_NODEID": "0", "SLURM_NNODES": "2"}),
}
TRIED = ("role", "TF_CONFIG chief", "SLURM_NODEID")
"""A setting, the cluster's own word, a launcher. tests/policy/test_roles.py decides by all of them."""
BEATS = 4


@pytest.fixture(scope="module")
def place_of_chiefs(numpy_trainer, tmp_path_factory):
    """A directory with a checkpoint, its name, and an interpreter that leaves a trace if it is ever run."""
    folder = tmp_path_factory.mktemp("chiefs")
    (saved,) = numpy_trainer.save(folder / "ckpts", 1)
    trap = folder / "python"
    trap.write_text(f"#!/bin/sh\ntouch {folder}/started\nexit 1\n")
    trap.chmod(trap.stat().st_mode | stat.S_IXUSR)
    return folder / "ckpts", saved["name"], trap


@pytest.mark.parametrize("hint", [pytest.param(h, marks=() if h in TRIED else pytest.mark.nightly) for h in HINTS])
def test_a_chief_is_healthy_and_idle_and_evaluates_nothing(sidecar, place_of_chiefs, hint):
    """It says who it is and why, beats, and has no child although a checkpoint lies there.

    `sidecar eval` refuses there: exit code 2, the hint, and how to override it.
    """
    (options, environ), (folder, name, trap) = HINTS[hint], place_of_chiefs
    environ = environ | NUMPY | {"SIDECAR_WORKER_PYTHON": str(trap), "SIDECAR_BEAT_SECONDS": "0.2"}
    daemon = sidecar.run(folder, *options, task="numpy_plain.py", **environ)
    refused = sidecar.start("eval", folder / name, "--task", "numpy_plain.py:task", *options, **environ)
    daemon.until(lambda: _beats(daemon) >= BEATS, f"{BEATS} heartbeats")
    assert daemon.get("/healthz") == (200, "ok\n")
    assert daemon.get("/readyz") == (200, "ok\n")
    ((labels, value),) = daemon.samples("sidecar_node_info").items()
    assert (dict(labels)["role"], value) == ("chief", 1)
    (line,) = daemon.log("chief_idles")
    assert hint.split()[0] in line["source"]
    assert "--role worker" in line["remedy"]
    done = refused.wait()
    assert done.code == 2
    assert "is the chief" in done.sentence
    assert hint.split()[0] in done.sentence
    assert "--role worker" in done.sentence
    assert daemon.children() == []
    assert not trap.with_name("started").exists()
    assert not (daemon.run_dir / "plans").exists()
    assert daemon.process.poll() is None
    daemon.process.kill()


def _beats(daemon):
    name = daemon.status()["node"]
    path = daemon.run_dir / "members" / f"{name}.json"
    return json.loads(path.read_text())["beat"] if path.exists() else 0


@pytest.mark.parametrize("variable", ["NOTIFY_SOCKET", "KUBERNETES_SERVICE_HOST"])
def test_where_a_launcher_hides_the_hints_the_daemon_refuses(sidecar, place, variable):
    """Under systemd or Kubernetes nothing may be guessed: exit code 2, and what to set."""
    done = sidecar.run(place, task="numpy_plain.py", **NUMPY, **{variable: "10.0.0.1"}).wait()
    assert done.code == 2
    assert variable in done.sentence
    assert "--role" in done.sentence
    assert "chief_nodes" in done.sentence
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    "variable", ["NOTIFY_SOCKET", pytest.param("KUBERNETES_SERVICE_HOST", marks=pytest.mark.nightly)]
)
def test_with_a_role_it_starts_there(sidecar, place, variable):
    """A daemon with an explicit role starts under systemd and Kubernetes."""
    daemon = sidecar.run(place, "--role", "chief", **{variable: "10.0.0.1"})
    daemon.until(lambda: daemon.get("/readyz")[0] == 200, "readiness")
    daemon.process.kill()
