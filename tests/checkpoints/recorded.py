"""Checkpoints that real writers wrote, kept in recorded/, so that tests of files start no framework.

`python tests/checkpoints/recorded.py` writes the folder anew (30 seconds).
"""

import json
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from checkpoints.kinds import KINDS
from checkpoints.writer_process import OBJECTS, OPTIMIZERS, WriterProcess, writer_process

RECORDED = Path(__file__).with_name("recorded")
WROTE = "wrote.json"
FIRST_WRITTEN_AT = 1_795_000_000  # seconds since the epoch; a checkout keeps no times, and all tests see the same ones


@dataclass(frozen=True)
class Recorded:
    """A folder with `objects/`, `kinds/` and `optimizers/`, and what the writer said that it wrote into the first."""

    root: Path
    wrote: dict[str, Any]

    @property
    def objects(self) -> Path:
        """One folder for each function of real_writer.py."""
        return self.root / "objects"

    @property
    def kinds(self) -> Path:
        """One folder for each of KINDS, with one checkpoint named `m-5` in it."""
        return self.root / "kinds"

    @property
    def optimizers(self) -> Path:
        """All files of optimizer_writers.py."""
        return self.root / "optimizers"


def record(root: Path, writer: WriterProcess) -> Recorded:
    """Let a process write all of it into a folder."""
    wrote = writer.write(OBJECTS, root / "objects")
    for kind in KINDS:
        writer.write(kind, root / "kinds" / kind)
    writer.write(OPTIMIZERS, root / "optimizers")
    for temporary in (root / "kinds").glob("tmp*"):  # what assets were made of
        shutil.rmtree(temporary)
    files = sorted((path for path in root.rglob("*") if path.is_file()), key=lambda path: path.stat().st_mtime_ns)
    (root / WROTE).write_text(
        json.dumps({"wrote": wrote, "order": [path.relative_to(root).as_posix() for path in files]}, indent=1) + "\n"
    )
    return Recorded(root, wrote)


def copy_recorded(folder: Path) -> Recorded:
    """Copy the recorded checkpoints, each file a second younger than the one that was written before it."""
    told = json.loads((RECORDED / WROTE).read_text())
    for second, name in enumerate(told["order"]):
        to = folder / name
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(RECORDED / name, to)
        os.utime(to, (FIRST_WRITTEN_AT + second, FIRST_WRITTEN_AT + second))
    return Recorded(folder, told["wrote"])


def main() -> None:
    """Replace recorded/."""
    with tempfile.TemporaryDirectory() as temporary, writer_process() as writer:
        record(Path(temporary) / "recorded", writer)
        shutil.rmtree(RECORDED, ignore_errors=True)
        shutil.copytree(Path(temporary) / "recorded", RECORDED)


if __name__ == "__main__":
    main()
