"""Checkpoints that real writers wrote, kept in recorded/, so that tests of files start no framework.

`python tests/checkpoints/recorded.py` writes the folder anew (40 seconds).
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

from checkpoints.kinds import KINDS, LIGHTNING_FOLDERS, NO_CHECKPOINTS, TORCH_KINDS
from checkpoints.writer_process import OBJECTS, OPTIMIZERS, TORCH_WRITER, WriterProcess, writer_process

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
        """One folder for each of KINDS and TORCH_KINDS, with one checkpoint named `m-5` in it."""
        return self.root / "kinds"

    @property
    def torch(self) -> Path:
        """One folder for each of LIGHTNING_FOLDERS and NO_CHECKPOINTS."""
        return self.root / "torch"

    @property
    def optimizers(self) -> Path:
        """All files of optimizer_writers.py."""
        return self.root / "optimizers"


def record(root: Path, writer: WriterProcess, torch_writer: WriterProcess) -> Recorded:
    """Let two processes write all of it into a folder."""
    wrote = writer.write(OBJECTS, root / "objects")
    for kind in KINDS:
        writer.write(kind, root / "kinds" / kind)
    writer.write(OPTIMIZERS, root / "optimizers")
    record_torch(root, torch_writer)
    for temporary in (root / "kinds").glob("tmp*"):  # what assets were made of
        shutil.rmtree(temporary)
    files = sorted((path for path in root.rglob("*") if path.is_file()), key=lambda path: path.stat().st_mtime_ns)
    (root / WROTE).write_text(
        json.dumps({"wrote": wrote, "order": [path.relative_to(root).as_posix() for path in files]}, indent=1) + "\n"
    )
    return Recorded(root, wrote)


def record_torch(root: Path, torch_writer: WriterProcess) -> None:
    """Let a process of PyTorch write its part."""
    for kind in TORCH_KINDS:
        torch_writer.write(kind, root / "kinds" / kind)
    for kind in LIGHTNING_FOLDERS + NO_CHECKPOINTS:
        torch_writer.write(kind, root / "torch" / kind)


def copy_recorded(folder: Path) -> Recorded:
    """Copy the recorded checkpoints, each file a second younger than the one that was written before it."""
    told = json.loads((RECORDED / WROTE).read_text())
    for second, name in enumerate(told["order"]):
        to = folder / name
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(RECORDED / name, to, follow_symlinks=False)
        os.utime(to, (FIRST_WRITTEN_AT + second, FIRST_WRITTEN_AT + second), follow_symlinks=False)
    return Recorded(folder, told["wrote"])


def main() -> None:
    """Write the checkpoints in recorded/ anew."""
    with (
        tempfile.TemporaryDirectory() as temporary,
        writer_process() as writer,
        writer_process(TORCH_WRITER) as torch_writer,
    ):
        record(Path(temporary) / "recorded", writer, torch_writer)
        shutil.rmtree(RECORDED, ignore_errors=True)
        shutil.copytree(Path(temporary) / "recorded", RECORDED, symlinks=True)


if __name__ == "__main__":
    main()
