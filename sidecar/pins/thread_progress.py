"""Say whether a thread makes progress, as the kernel counts it: one that waits for storage makes none.

A thread that waits for one read, copies, or compares checksums is put to sleep and woken, or interrupted, again and
again; one that hangs in a single request is not. Linux only: elsewhere every thread seems to stand still.
"""

import threading
from pathlib import Path


def turns_of(thread: threading.Thread) -> int | None:
    """Return how often the thread was given up the processor; None if nobody knows. It grows as long as it gets on."""
    try:
        status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    except OSError:
        return None
    return sum(int(line.split()[1]) for line in status.splitlines() if "ctxt_switches" in line)
