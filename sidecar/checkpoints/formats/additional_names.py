"""Find checkpoints of `torch.save` that are additional names of a training state that was saved under its own name.

Lightning's `ModelCheckpoint(save_last=True)` saves each state a second time, as `last.ckpt`. The bytes of both files
may differ, because the pickle holds the paths of the callback. All tensors are equal, and so is the step.
`save_last="link"` makes a symbolic link instead.
"""

import os
import re
from pathlib import Path
from typing import Final

LAST: Final = re.compile(r"last(?:-v\d+)?\.ckpt")
"""Names that Lightning gives to the additional copy, with a number if there is one of an earlier training."""

_SIMILAR_BYTES: Final = 256 * 1024  # paths in the pickle differ, and the padding of each member
_MOST_COMPARED: Final = 4


def target_of_link(folder: Path, name: str) -> str | None:
    """Return the name of another file in the folder that a symbolic link leads to; None if it is no such link."""
    if not (folder / name).is_symlink():
        return None
    target = (folder / name).resolve()
    return target.name if target.parent == folder.resolve() else None


def saved_before(folder: Path, name: str) -> list[str]:
    """Return the files of Lightning that may hold the training state of `name`, which is a `last.ckpt`.

    These are the few files of about the same size that were written at about the same time, the nearest first.
    Raises OSError.
    """
    last = (folder / name).stat()
    others = []
    with os.scandir(folder) as entries:
        for entry in entries:
            is_other = entry.name.endswith(".ckpt") and LAST.fullmatch(entry.name) is None
            if is_other and entry.is_file(follow_symlinks=False):
                status = entry.stat(follow_symlinks=False)
                if abs(status.st_size - last.st_size) <= _SIMILAR_BYTES:
                    others.append((abs(status.st_mtime_ns - last.st_mtime_ns), entry.name))
    return [other for _, other in sorted(others)[:_MOST_COMPARED]]
