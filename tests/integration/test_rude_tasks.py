"""The user's task does what no task should: it is tried again, and the daemon and its numbers are as before."""

import os

import pytest
from integration.cgroups import limited

pytestmark = pytest.mark.timeout(900)

MOST_PROCESSES = 120  # of the daemon, its threads, and all that the task forks
SOON = {"SIDECAR_FIRST_BATCH_TIMEOUT_SECONDS": "5", "SIDECAR_STALL_SECONDS": "5", "SIDECAR_DRAIN_SECONDS": "2"}


@pytest.fixture
def rude(trial):
    """Make the task of a trial rude, with the variables by which it learns that."""
    path = trial.folder.parent / "rude"
    path.write_text("")
    environ = {"RUDE": str(path), "SAVES": str(trial.run_dir / "evaluations")}

    def be(word=""):
        path.write_text(word)
        return environ

    return be


@pytest.mark.nightly
@pytest.mark.skipif(os.geteuid() != 0, reason="a limit of processes of its own needs root")
def test_a_task_forks_without_end(trial, rude):
    """All of its descendants are ended, whatever sessions they begin, while they take every process there is."""
    with limited(pids=MOST_PROCESSES) as before:
        trial.start(before=before, task="numpy_rude.py", **SOON, **rude())
        trial.save()
        trial.evaluated()
        rude("fork_without_end")
        trial.save()
        trial.evaluated()
        trial.save()
        trial.judge(failures=2)


@pytest.mark.nightly
def test_a_task_ignores_all_signals_and_hangs(trial, rude):
    """Its daemon is told to end meanwhile: it waits as long as it should, and ends the process by SIGKILL."""
    daemon = trial.start(task="numpy_rude.py", **SOON, **rude())
    trial.save()
    trial.evaluated()
    rude("hang")
    trial.save()
    daemon.until(lambda: "HANGING" in daemon.worker_logs(), "the task to hang")
    trial.evaluated()
    rude("hang")
    trial.save()
    daemon.until(lambda: daemon.worker_logs().count("HANGING") == 2, "the task to hang again")
    assert daemon.end(15).code == 0
    trial.start(task="numpy_rude.py", **rude())
    trial.judge(failures=2)


@pytest.mark.nightly
def test_a_task_writes_to_the_saves_of_the_run(trial, rude):
    """Numbers stand in the journal; the page says what it cannot read, and what is saved later is whole."""
    daemon = trial.start(task="numpy_rude.py", **rude())
    trial.save(2)
    trial.evaluated()
    rude("write_to_saves")
    trial.save(2)
    trial.evaluated()
    for path in ("/", "/api/evaluations", "/evaluation?plan=1", "/evaluation?plan=2", "/evaluation?plan=3"):
        assert daemon.get(path)[0] < 500
    trial.judge(failures=1)


@pytest.mark.nightly
def test_a_task_leaks_with_each_batch(trial, rude):
    """The memory of a worker process is not that of its daemon."""
    trial.start(task="numpy_rude.py", **rude("leak"))
    trial.save(4)
    trial.judge()
