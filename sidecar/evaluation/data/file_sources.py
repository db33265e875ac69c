"""Make sources of eval sets from files: numpy's `.npz`, and TFRecord files, which the framework opens.

Imports no framework, and numpy only when a source is called. The worker process opens the paths; relative paths start
in the folder in which the daemon was started.
"""

import os
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from sidecar.errors import TaskError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Name = str | os.PathLike[str]

_COMPRESSIONS: Final = (None, "GZIP", "ZLIB")
_DIVISIONS: Final = ("batch", "file")


@dataclass(frozen=True, slots=True)
class RecordFiles:
    """The description of TFRecord files that a source of `tfrecords` returns. The files are not opened yet."""

    patterns: tuple[str, ...]
    compression: Literal["GZIP", "ZLIB"] | None
    by: Literal["batch", "file"]


def npz(path: Name, *names: str) -> "Callable[[], tuple[NDArray[Any], ...]]":
    """Return a source that reads arrays from a file of `numpy.savez` or `savez_compressed`.

    Every worker process reads the complete arrays. Pickled objects are refused.

        Task(eval_sets={"test": npz("test.npz", "x", "y")}, ...)

    Args:
        path: Path of the file.
        names: Names of the arrays (n, …) for x, y and, optionally, sample_weight.

    Raises:
        TaskError: When the source is called, if the file or an array is missing or unreadable, or if the arrays have
            different lengths.
    """
    if not names:
        raise TaskError(f"npz({os.fspath(path)!r}): name the arrays of the file for x and y")
    return lambda: _arrays(Path(path).expanduser().absolute(), names)


def tfrecords(
    files: Name | Sequence[Name],
    *,
    compression: Literal["GZIP", "ZLIB"] | None = None,
    by: Literal["batch", "file"] = "batch",
) -> Callable[[], RecordFiles]:
    """Return a source of the serialized records of TFRecord files, in the order of the names of the files.

        EvalSet(tfrecords("data/test-*.tfrecord"), prepare=parse)

    By batch, every worker reads all files and evaluates its own batches, and all ranks prove that they read the same
    data. By file, a worker reads only its own files: file i (from 0) belongs to rank i mod n. The ranks then compare
    the list of files with their sizes, not the contents. If there are fewer files than workers, the data are divided by
    batch, and the result says so. In both cases a batch never spans two files if `by` is "file", so the numbers are
    equal to the bit for any number of workers.

    Args:
        files: A path, a pattern such as `data/test-*.tfrecord`, or a list of these. TensorFlow opens the files when the
            source is called, so any filesystem of TensorFlow can be used.
        compression: Compression of every file: None, "GZIP" or "ZLIB".
        by: Division among the workers: "batch" or "file".
    """
    patterns = (files,) if isinstance(files, str | os.PathLike) else tuple(files)
    if not patterns:
        raise TaskError("tfrecords([]): name at least one file, or a pattern such as data/test-*.tfrecord")
    for name, value, allowed in (("compression", compression, _COMPRESSIONS), ("by", by, _DIVISIONS)):
        if value not in allowed:
            raise TaskError(f"tfrecords({name}={value!r}) must be one of {', '.join(map(repr, allowed))}")
    records = RecordFiles(tuple(os.fspath(pattern) for pattern in patterns), compression, by)
    return lambda: records


def _arrays(path: Path, names: Sequence[str]) -> "tuple[NDArray[Any], ...]":
    import numpy as np

    if not path.is_file():
        raise TaskError(f"npz: there is no file {path}")
    if not zipfile.is_zipfile(path):
        raise TaskError(f"npz: {path} is not a complete .npz file: write one with numpy.savez")
    with np.load(path, allow_pickle=False) as archive:
        if missing := [name for name in names if name not in archive.files]:
            present = ", ".join(archive.files) or "none"
            raise TaskError(f"npz: {path} has no array {', '.join(map(repr, missing))}; there are {present}")
        arrays = tuple(_array(path, archive, name) for name in names)
    lengths = {name: len(array) if array.ndim else "no" for name, array in zip(names, arrays, strict=True)}
    if len(set(lengths.values())) > 1 or "no" in lengths.values():
        counts = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise TaskError(f"npz: arrays of {path} need equally many examples, found {counts}")
    return arrays


def _array(path: Path, archive: Any, name: str) -> "NDArray[Any]":
    try:
        array: NDArray[Any] = archive[name]
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise TaskError(f"npz: array {name!r} of {path} cannot be read: {error}") from None
    return array
