"""Memory is short: the kernel ends a worker process, not its daemon, and the message says so."""

import os

import pytest
from integration.cgroups import limited

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="a limit of memory of its own needs root"),
]

MEGABYTE = 1 << 20
LIMIT = 300 * MEGABYTE


def test_a_task_takes_all_memory_of_a_small_group(trial):
    """Its attempt fails by name, and the next one, on a new process, succeeds."""
    rude = trial.folder.parent / "rude"
    rude.write_text("")
    with limited(memory=LIMIT) as before:
        daemon = trial.start(before=before, task="numpy_rude.py", RUDE=str(rude))
        trial.save()
        trial.evaluated()
        rude.write_text("grow")
        trial.save()
        trial.evaluated()
        (lost,) = [row for row in trial.rows() if row["status"] == "failed"]
        assert lost["kind"] in ("out_of_memory", "worker_died")
        assert "memory" in lost["message"]
        assert daemon.process.poll() is None
        trial.judge(failures=1)
