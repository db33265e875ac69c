"""Jobs of a real Slurm with four nodes, as docs/how-to/slurm.md says: the blocks of the page are run as they stand."""

import os
import re
import shutil
import sys
import time
from pathlib import Path

import pytest
from numpy_trainer import NumpyTrainer
from slurm_cluster import PROGRAMS, SECONDS, SlurmCluster

from sidecar.coordination.journal import read_history
from sidecar.coordination.storage import PosixStorage
from sidecar.publishing.report import rows

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/how-to/slurm.md").read_text()
SETTINGS = {
    "SIDECAR_FRAMEWORK": "python",
    "SIDECAR_CHECKPOINT_PATTERN": "model-*.npz",
    "SIDECAR_LOG_FORMAT": "json",
    "SIDECAR_STANDBY": "false",
    "SIDECAR_YIELD_SECONDS": "0",
    "SIDECAR_BEAT_SECONDS": "0.3",
    "SIDECAR_LEASE_SECONDS": "3",
    "SIDECAR_VISIBILITY_SECONDS": "2",
    "SIDECAR_QUIET_SECONDS": "0.1",
    "SIDECAR_HTTP": "127.0.0.1:0",  # all nodes are one machine
    "PYTHONPATH": str(ROOT / "tests/support"),
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
}
TRAIN = """
import os, pathlib, time
from numpy_trainer import NumpyTrainer

if os.environ["SLURM_PROCID"] == "0":
    trainer = NumpyTrainer()
    for step in range(1, 5):
        if not pathlib.Path(f"ckpts/model-{step}.npz").exists():
            trainer.save("ckpts", step)
        while step == 2 and pathlib.Path("hold").exists():
            time.sleep(0.1)
    trainer.close()
"""


@pytest.fixture(scope="module")
def slurm(needs, tmp_path_factory):
    """Run a cluster, which takes less than a second."""
    for program in PROGRAMS:
        needs(program)
    if os.geteuid() != 0:
        pytest.skip("only root can start slurmd")
    with SlurmCluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture
def job(tmp_path):
    """Write the page's scripts, a task and a training that takes them at their word; return the folder."""
    for name, code in re.findall(r"<!-- (\S+) -->\n```sh\n(.*?)```", PAGE, re.DOTALL):
        (tmp_path / name).write_text(code)
    shutil.copy(ROOT / "tests/integration/tasks/numpy_plain.py", tmp_path / "my_eval.py")
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def until(condition, what):
    end = time.monotonic() + SECONDS
    while not (found := condition()):
        assert time.monotonic() < end, what() if callable(what) else what
        time.sleep(0.1)
    return found


def submitted(command):
    """Return the words after `sbatch` of a command that the page shows."""
    assert f"```sh\nsbatch {command}\n```" in PAGE
    return command.split()


def evaluated(folder):
    """Return the names of the checkpoints of all successful evaluations in the journal."""
    found = rows(read_history(PosixStorage(folder / "ckpts/.sidecar/ckpts")))
    return sorted(row["checkpoint"] for row in found if row["status"] == "succeeded")


def starts(folder):
    """Return node and role of all daemons that started, in natural order."""
    said = (folder / "out").read_text()
    return sorted(re.findall(r'"node": "(\w+)", [^\n]*"role": "(\w+)"[^\n]*"event": "daemon_started"', said))


def ended(slurm, folder, *jobs):
    """Wait until jobs are over, and have all succeeded."""
    over = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
    for job in jobs:
        until(lambda job=job: slurm.field(job, "JobState") in over, f"the end of job {job}")
        assert slurm.field(job, "JobState") == "COMPLETED", (folder / "out").read_text()[-4000:]


ALL = [f"model-{step}.npz" for step in range(1, 5)]
ROLE = "from os import environ; from sidecar.policy.roles import decide_role; from sidecar.settings import Settings; "
ROLE += "print(environ['SLURMD_NODENAME'], decide_role(Settings(checkpoint_dir='/tmp'), 'any', environ).role)"


@pytest.mark.seconds
def test_every_step_of_a_job_knows_the_first_node(slurm, tmp_path):
    """A step counts its own nodes, as does a component of a heterogeneous job; the chief is the first one of all."""
    script = tmp_path / "job"
    script.write_text(
        "#!/bin/sh\n#SBATCH --nodes=1\n#SBATCH hetjob\n#SBATCH --nodes=3\n"
        f'role() {{ srun --overlap "$@" {sys.executable} -c "{ROLE}"; }}\n'
        "role --het-group=0,1; role --het-group=1 --relative=1 --nodes=2 --ntasks=2; role --het-group=0\n"
    )
    job = slurm.submit(tmp_path, "job")
    ended(slurm, tmp_path, job)
    said = [line.split() for line in (tmp_path / "out").read_text().splitlines()]
    first = slurm.field(job, "NodeList")
    assert len(said) == 4 + 2 + 1
    assert all((role == "chief") == (node == first) for node, role in said), said


@pytest.mark.nightly
@pytest.mark.seconds
def test_the_page_next_to_training(slurm, job):
    """One step on all nodes: the first node is the chief's, all checkpoints are evaluated once, and the job ends.

    Another job does the same at the same time, and on some of the same nodes: all daemons have ports of their own.
    """
    other = job / "other"
    shutil.copytree(job, other)
    for folder in (job, other):
        (folder / "hold").touch()
    jobs = {folder: slurm.submit(folder, *submitted("train.sbatch"), **SETTINGS) for folder in (job, other)}
    nodes = {}
    for folder, number in jobs.items():
        until((folder / "out").exists, f"the start of job {number}")
        nodes[folder] = slurm.run("scontrol", "show", "hostnames", slurm.field(number, "NodeList")).split()
        until(lambda folder=folder: len(starts(folder)) == len(nodes[folder]), f"all daemons of job {number}")
    assert set(nodes[job]) & set(nodes[other])
    ports = [
        port for folder in jobs for port in re.findall(r'"http": "http://\S+:(\d+)"', (folder / "out").read_text())
    ]
    assert len(set(ports)) == len(nodes[job] + nodes[other])
    for folder in jobs:
        (folder / "hold").unlink()
    for folder, number in jobs.items():
        ended(slurm, folder, number)
        assert evaluated(folder) == ALL
        first, *rest = nodes[folder]
        assert starts(folder) == [(first, "chief"), *((node, "worker") for node in rest)]


@pytest.mark.nightly
@pytest.mark.seconds
@pytest.mark.parametrize("how", ["requeued", "preempted"])
def test_a_job_that_is_started_anew_goes_on(slurm, job, how):
    """The evaluation that was under way is given up when its time is over, and comes once in the restarted job."""
    for name in ("numpy_plain.py", "gate.py"):
        shutil.copy(ROOT / "tests/integration/tasks" / name, job / name)
    shutil.copy(ROOT / "tests/integration/tasks/numpy_gated.py", job / "my_eval.py")
    (job / "hold").touch()
    (job / "hold-evaluate").touch()
    number = slurm.submit(job, *submitted("train.sbatch"), **SETTINGS, GATE=str(job), SIDECAR_DRAIN_SECONDS="1")
    until(lambda: list(job.glob("at-evaluate-*")), lambda: (job / "out").read_text()[-4000:])
    if how == "requeued":
        slurm.run("scontrol", "requeue", number)
    else:
        (job / "urgent").write_text("#!/bin/sh\ntrue\n")
        slurm.run(
            "sbatch", "--wait", "--partition=urgent", "--nodes=4", "--exclusive", "--output=/dev/null", job / "urgent"
        )
    (job / "hold").unlink()
    (job / "hold-evaluate").unlink()
    until(lambda: slurm.field(number, "JobState") == "PENDING", "the job in the queue again")
    slurm.run("scontrol", "update", f"JobId={number}", "StartTime=now")  # Slurm would wait for two minutes
    ended(slurm, job, number)
    assert slurm.field(number, "Restarts") == "1"
    assert evaluated(job) == ALL
    assert len(starts(job)) == 6
    kinds = {row.get("kind") for row in rows(read_history(PosixStorage(job / "ckpts/.sidecar/ckpts")))}
    assert '"event": "draining"' in (job / "out").read_text() or "restarted" in kinds  # the words may end with srun


@pytest.mark.nightly
@pytest.mark.seconds
def test_the_page_as_a_job_of_its_own(slurm, job):
    """Any number of saves makes one job at a time, which ends when nothing waits; a later save makes another one."""
    script = (job / "eval.sbatch").read_text()
    assert "--stop-idle-seconds 60" in script
    (job / "eval.sbatch").write_text(script.replace("--stop-idle-seconds 60", "--stop-idle-seconds 2"))
    environ = SETTINGS | {"SBATCH_OUTPUT": str(job / "out"), "SBATCH_OPEN_MODE": "append"}
    numpy_trainer = NumpyTrainer()
    for steps in ((1, 2), (3, 4)):
        for step in steps:
            numpy_trainer.save(job / "ckpts", step)
            slurm.run("sh", "submit.sh", cwd=job, **environ)
        until(lambda: not slurm.run("squeue", "--noheader").strip(), "the end of all jobs")
    assert evaluated(job) == ALL
    assert {role for _, role in starts(job)} == {"worker"}
    assert 2 <= len(starts(job)) <= 4
