"""Import metrics for tasks."""

import subprocess
import sys

BLOCKED = "import sys; sys.modules['numpy'] = None; from sidecar.metrics import Accuracy"


def test_the_environment_of_the_daemon_may_lack_numpy():
    """A task is imported there by mistake: one sentence says what the environment lacks, and which one it is."""
    done = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True, timeout=240)
    *above, last = done.stderr.splitlines()
    assert last.startswith(f"ImportError: sidecar.metrics needs numpy, which {sys.executable} lacks")
    assert "sidecar/evaluation" not in "".join(above)
