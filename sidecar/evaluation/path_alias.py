"""Give a checkpoint another path, for libraries that cannot read every path.

TensorFlow's readers treat a path as a pattern (`Env::GetMatchingPaths`), so that `[1]` means `1` and a backslash
is dropped. They also need text, while a file name may be any bytes.
"""

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sidecar.evaluation.failures import EvaluationError

_ODD: Final = re.compile(r"[*?\[\]\\\ud800-\udfff]")  # the last range: bytes that are not UTF-8, after `os.fsdecode`
_NAME: Final = "checkpoint"


@contextlib.contextmanager
def readable(path: str) -> Iterator[str]:
    """Yield the path of a folder or of files with one prefix or, if it has special characters, the path of links.

    The links are removed at the end. An `EvaluationError` of the block names the checkpoint, not the links.
    """
    if not _ODD.search(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="sidecar-") as folder:
        plain = Path(folder, _NAME)
        if Path(path).is_dir():
            plain.symlink_to(path)
        else:
            prefix = f"{Path(path).name}."
            with contextlib.suppress(FileNotFoundError):  # the reader reports missing files
                for file in Path(path).parent.iterdir():
                    if file.name.startswith(prefix):
                        plain.with_name(f"{_NAME}.{file.name.removeprefix(prefix)}").symlink_to(file)
        try:
            yield str(plain)
        except EvaluationError as error:
            raise error.with_path(str(plain), path) from error


def require_present(path: str, error: Exception | None = None) -> None:
    """Raise `EvaluationError` unless files of a checkpoint are there: `vanished`, or `storage` if nobody can tell.

    `path`: a file, a folder, or the prefix of several files. `error`: what was raised when they were read.
    """
    cause = "" if error is None else f": {error}"
    try:
        with os.scandir(Path(path).parent) as entries:
            if any(entry.name.startswith(Path(path).name) for entry in entries):
                return
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as refused:
        raise EvaluationError("storage", f"{path} cannot be reached: {refused.strerror}{cause}") from error
    raise EvaluationError("vanished", f"{path} is gone{cause}") from error
