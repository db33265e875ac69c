"""Check the health of the training job: exit with 1 unless it saved a checkpoint lately.

python saving.py DIRECTORY SAVE_SECONDS
"""  # noqa: INP001 - a script next to others, not a package

import sys
import time
from pathlib import Path
from typing import Final

import run_files

_MISSED: Final = 5  # a job whose cluster forms again after a restart misses two or three

if __name__ == "__main__":
    directory, seconds = Path(sys.argv[1]), float(sys.argv[2])
    names = run_files.checkpoints(directory)
    if not names:
        sys.exit(f"there is no checkpoint in {directory}")
    age = time.time() - run_files.saved_at(names[-1], directory)
    if age > _MISSED * seconds:
        sys.exit(f"the newest checkpoint is {age:.0f} s old")
