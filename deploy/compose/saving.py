"""Check the health of the training job: exit with 1 unless it saved a checkpoint lately.

python saving.py DIRECTORY SAVE_SECONDS
"""  # noqa: INP001 - a script next to others, not a package

import sys
import time
from pathlib import Path
from typing import Final

_MISSED: Final = 5  # a job whose cluster forms again after a restart misses two or three

if __name__ == "__main__":
    state, seconds = Path(sys.argv[1], "checkpoint"), float(sys.argv[2])
    age = time.time() - state.stat().st_mtime
    if age > _MISSED * seconds:
        sys.exit(f"the newest checkpoint is {age:.0f} s old")
