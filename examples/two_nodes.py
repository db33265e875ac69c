"""Run two nodes on one machine: two daemons that share one checkpoint directory, and each evaluation.

    python custom_loop_train.py
    python two_nodes.py

On real nodes the same command runs once on each of them, without `--node`. Both daemons end when nothing is left to do.
"""

import subprocess
import sys
from pathlib import Path

SIDECAR = str(Path(sys.executable).with_name("sidecar"))  # from the environment that runs this program
COMMAND = [
    *(SIDECAR, "run", "ckpts", "--task", "digits_task.py:task", "--once"),
    *("--min-workers", "2", "--role", "worker", "--host", "127.0.0.1", "--http", "127.0.0.1:0"),
]


def main() -> int:
    """Start both daemons, wait for both, and print their common results."""
    daemons = [subprocess.Popen([*COMMAND, "--node", node]) for node in ("node-a", "node-b")]
    codes = [daemon.wait() for daemon in daemons]
    subprocess.run([SIDECAR, "history", "ckpts"], check=True)
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
