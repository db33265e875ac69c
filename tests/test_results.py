"""Read the results of a run from Python."""

import subprocess
import sys

BLOCKED = "import sys; sys.modules['numpy'] = None; import sidecar.results"


def test_the_environment_of_the_daemon_may_lack_numpy():
    """One sentence with the remedy, and no traceback through modules of ours."""
    done = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True, timeout=240)
    *above, last = done.stderr.splitlines()
    assert last.startswith("ImportError: sidecar.results needs numpy")
    assert sys.executable in last
    assert "artifact_reader" not in "".join(above)
