"""Real processes whose run is deleted, unmounted, torn or has lost records."""

import json
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from numpy_trainer import NUMPY

from sidecar.coordination import snapshot_store
from sidecar.coordination.journal import outcome_path, plan_path


def run_id(daemon):
    path = daemon.run_dir / "run.json"
    return json.loads(path.read_text())["run"] if path.exists() else None


@pytest.mark.nightly
def test_a_daemon_begins_a_new_run_where_its_directory_was_made_anew(sidecar, place):
    """The process, its port and its signals stay; the run, its id and this daemon's incarnation are new."""
    daemon = sidecar.run(place, "--role", "chief", "--node", "a")
    daemon.until(lambda: daemon.get("/readyz")[0] == 200, "readiness")
    before, incarnation = run_id(daemon), daemon.status()["incarnation"]
    shutil.rmtree(place)
    place.mkdir()
    daemon.until(lambda: "a new run begins" in daemon.get("/readyz")[1], "the reason on /readyz")
    (line,) = daemon.logged("run_begun_anew")
    assert "run.json was deleted" in line["reason"]
    daemon.until(lambda: daemon.get("/readyz")[0] == 200, "readiness in the new run")
    assert run_id(daemon) not in (None, before)
    assert daemon.status()["incarnation"] != incarnation
    assert daemon.get("/healthz") == (200, "ok\n")
    assert len(daemon.log("daemon_started")) == 1
    assert daemon.end(signal.SIGTERM).code == 0


@pytest.mark.nightly
def test_a_training_that_begins_anew_is_evaluated_by_the_same_process(sidecar, numpy_trainer, tmp_path):
    """`shutil.rmtree(ckpts); os.makedirs(ckpts)` at the start of a training script: no worker of before is left."""
    folder = tmp_path / "ckpts"
    saved = numpy_trainer.save(folder, 100, 200)
    daemon = sidecar.run(folder, task="numpy_plain.py", SIDECAR_RUN_LOST_SECONDS="2", **NUMPY)
    daemon.evaluated(*saved)
    before, workers = run_id(daemon), daemon.children()
    shutil.rmtree(folder)
    folder.mkdir()
    again = numpy_trainer.save(folder, 10)
    daemon.evaluated(*again)
    assert run_id(daemon) != before
    assert not set(workers) & set(daemon.children())
    assert [row["step"] for row in daemon.successes()] == [10]
    assert daemon.end(signal.SIGTERM).code == 0


def test_a_state_directory_that_is_unmounted_is_waited_for(sidecar, tmp_path):
    """A file system of its own: under the daemon, and at a start; it goes on with the same run."""
    place, state, disk = tmp_path / "ckpts", tmp_path / "state", tmp_path / "disk"
    for folder in (place, state, disk):
        folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "none", disk], capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount")
    try:
        subprocess.run(["mount", "--bind", disk, state], check=True)
        options = ("--role", "chief", "--state-dir", state)
        daemon = sidecar.run(place, *options, "--node", "a")
        daemon.run_dir = state / place.name
        daemon.until(lambda: daemon.get("/readyz")[0] == 200, "readiness")
        before = run_id(daemon)
        subprocess.run(["umount", "--lazy", state], check=True)
        other = sidecar.run(place, *options, "--node", "b")
        for each in (daemon, other):
            each.until(lambda each=each: "mount it again" in each.get("/readyz")[1].lower(), "the reason on /readyz")
        looked = sidecar.command("history", "--checkpoint-dir", place, "--state-dir", state)
        assert (looked.code, "its state is missing" in looked.sentence) == (4, True)
        checked = sidecar.command("check", "--checkpoint-dir", place, *options, "--node", "c")
        assert "its state is missing" in checked.out
        assert list(state.iterdir()) == []
        subprocess.run(["mount", "--bind", disk, state], check=True)
        for each in (daemon, other):
            each.until(lambda each=each: each.get("/readyz")[0] == 200, "readiness again")
        assert run_id(daemon) == before
        assert [each.end(signal.SIGTERM).code for each in (daemon, other)] == [0, 0]
    finally:
        for point in (state, disk):
            subprocess.run(["umount", "--lazy", point], capture_output=True)


@pytest.fixture
def recorded(place):
    """A journal of three plans, as an older release left it."""
    state = place / ".sidecar" / place.name
    shutil.copytree(Path(__file__).parents[1] / "coordination" / "recorded", state)
    return state


COMMANDS = {
    "history": (),
    "status": ("--no-wait",),
    "check": ("--role", "chief", "--node", "a"),
    "requeue": ("--all-failed",),
}


def each_once(*tried):
    """Return all commands. Those that are not `tried` here are tried with the other fault, and here nightly."""
    return [pytest.param(each, marks=() if each in tried else pytest.mark.nightly) for each in COMMANDS]


@pytest.mark.parametrize("command", each_once("status", "requeue"))
def test_a_hole_in_the_journal_is_told_by_every_command(sidecar, place, recorded, command):
    """With the files and the remedy; and nothing is written behind it."""
    (recorded / plan_path(3)).unlink()
    (recorded / snapshot_store.PLAIN_PATH).unlink()
    done = sidecar.command(command, "--checkpoint-dir", place, *COMMANDS[command])
    said = done.out if command == "check" else done.sentence
    assert done.code == (1 if command == "check" else 5)
    assert f"{plan_path(3)} is missing, but {outcome_path(3)} is there" in said
    assert "Put the missing files back" in said
    assert not (recorded / plan_path(3)).exists()


@pytest.mark.parametrize("command", each_once("history", "check"))
def test_a_journal_of_a_newer_release_is_told_by_every_command(sidecar, place, recorded, command):
    """In one sentence with the file and the remedy."""
    (recorded / plan_path(4)).write_text('{"schema":3}')
    done = sidecar.command(command, "--checkpoint-dir", place, *COMMANDS[command])
    said = done.out if command == "check" else done.sentence
    assert f"{plan_path(4)}: Plan has schema 3" in said
    assert "update this daemon" in said


def test_a_daemon_stands_by_under_a_newer_release(sidecar, place, recorded):
    """It is healthy, not ready, has no worker, and ends with 0 when it is told to."""
    (recorded / plan_path(4)).write_text('{"schema":3}')
    daemon = sidecar.run(place, "--role", "chief", "--node", "a")
    daemon.until(lambda: "needs a newer release" in daemon.get("/readyz")[1], "the reason on /readyz")
    assert daemon.get("/healthz") == (200, "ok\n")
    assert daemon.samples("sidecar_ready") == {(("node", "a"),): 0}
    assert daemon.children() == []
    assert daemon.end(signal.SIGTERM).code == 0
