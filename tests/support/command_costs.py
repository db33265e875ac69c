"""Measure the cost of a command: processor seconds, and the most memory that was resident."""

import json
import subprocess
import sys

# A process inherits the most memory of the one that starts it. So a small one is between the tests and the command.
_START = """
import json, os, sys
pid = os.posix_spawn(sys.executable, [sys.executable, *sys.argv[1:]], os.environ)
_, status, usage = os.wait4(pid, 0)
used = os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024
print(json.dumps(used), file=sys.stderr)
"""


def costs(*arguments, env=None):
    """Run `python -m sidecar`; return its processor seconds, the most MiB that were resident, and its lines."""
    command = [sys.executable, "-S", "-c", _START, "-m", "sidecar", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env) as process:
        lines = sum(1 for _ in process.stdout)
        told = process.stderr.read()
    code, seconds, resident = json.loads(told.splitlines()[-1])
    if code != 0:
        raise subprocess.CalledProcessError(code, command, stderr=told)
    return seconds, resident, lines
