"""Hold up worker processes at the places that a test names.

A process that comes to a place while the folder GATE holds a file `hold-PLACE`, or `hold-PLACE-PID` of its own, creates
a file `at-PLACE-PID` and waits until both are gone: for ever, if need be.
"""

import os
import time
from pathlib import Path

GATE = Path(os.environ["GATE"])
PAUSE_SECONDS = 0.02


def pass_by(place):
    """Wait here as long as the test wants."""
    bars = [GATE / f"hold-{place}", GATE / f"hold-{place}-{os.getpid()}"]
    if any(bar.exists() for bar in bars):
        (GATE / f"at-{place}-{os.getpid()}").touch()
        while any(bar.exists() for bar in bars):
            time.sleep(PAUSE_SECONDS)
