"""Find out whether a thread makes progress, by the context switches that the kernel counts.

A thread that copies or compares checksums sleeps and wakes, or is interrupted, again and again. A thread that hangs in
a single request to storage is not. Linux only: on other systems every thread seems to hang.
"""

import threading
from pathlib import Path


def turns_of(thread: threading.Thread) -> int | None:
    """Return the context switches of a thread, which grow as long as it makes progress; None if they are unknown."""
    try:
        status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    except OSError:
        return None
    return sum(int(line.split()[1]) for line in status.splitlines() if "ctxt_switches" in line)
