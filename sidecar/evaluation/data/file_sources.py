"""Offer files as sources: numpy's `.npz`, and TFRecord files, which the framework opens.

Imports no framework, and numpy only once a source is called. Paths are those of the worker process, relative ones from
the folder in which the daemon was started.
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
    """TFRecord files, not yet looked for: what calling `tfrecords(…)` returns."""

    patterns: tuple[str, ...]
    compression: Literal["GZIP", "ZLIB"] | None
    by: Literal["batch", "file"]


def npz(path: Name, *names: str) -> "Callable[[], tuple[NDArray[Any], ...]]":
    """Return a source: arrays of a file that `numpy.savez` or `savez_compressed` wrote.

    Every worker process reads these arrays whole. Pickled objects are refused.

        Task(eval_sets={"test": npz("test.npz", "x", "y")}, ...)

    Args:
        path: The file.
        names: Its arrays (n, …) that are x, y and, if there is one, sample_weight.

    Raises:
        TaskError: when called, if the file or an array is missing or unreadable, or they are not equally long.
    """
    if not names:
        raise TaskError(f"npz({os.fspath(path)!r}): name the arrays of the file that are x and y")
    return lambda: _arrays(Path(path).expanduser().absolute(), names)


def tfrecords(
    files: Name | Sequence[Name],
    *,
    compression: Literal["GZIP", "ZLIB"] | None = None,
    by: Literal["batch", "file"] = "batch",
) -> Callable[[], RecordFiles]:
    """Return a source: serialized records of TFRecord files in the order of the files' names.

        EvalSet(tfrecords("data/test-*.tfrecord"), prepare=parse)

    By batch, every worker reads all files and evaluates batches of its own: all ranks prove that they read the same.
    By file, a worker reads nothing but files of its own, number i (from 0) on rank i mod n, as long as there are at
    least as many files as workers; what is compared is the list of files with their sizes, not what they hold. With
    fewer files it is by batch, and the result says so. Batches then never reach over the end of a file, either way,
    so that the numbers are the same to the bit for any number of workers.

    Args:
        files: A path, a pattern such as `data/test-*.tfrecord`, or a list of them. TensorFlow looks for them when the
            source is called, so they may lie wherever it can read.
        compression: None, "GZIP" or "ZLIB": that of every file.
        by: "batch" or "file".
    """
    patterns = (files,) if isinstance(files, str | os.PathLike) else tuple(files)
    if not patterns:
        raise TaskError("tfrecords([]): name at least one file, or a pattern such as data/test-*.tfrecord")
    for name, value, known in (("compression", compression, _COMPRESSIONS), ("by", by, _DIVISIONS)):
        if value not in known:
            raise TaskError(f"tfrecords({name}={value!r}) must be one of {', '.join(map(repr, known))}")
    found = RecordFiles(tuple(os.fspath(pattern) for pattern in patterns), compression, by)
    return lambda: found


def _arrays(path: Path, names: Sequence[str]) -> "tuple[NDArray[Any], ...]":
    import numpy as np

    if not path.is_file():
        raise TaskError(f"npz: there is no file {path}")
    if not zipfile.is_zipfile(path):
        raise TaskError(f"npz: {path} is no .npz file, or not all of it: numpy.savez writes one")
    with np.load(path, allow_pickle=False) as archive:
        if missing := [name for name in names if name not in archive.files]:
            there = ", ".join(archive.files) or "none"
            raise TaskError(f"npz: {path} has no array {', '.join(map(repr, missing))}; there are {there}")
        arrays = tuple(_array(path, archive, name) for name in names)
    lengths = {name: len(array) if array.ndim else "no" for name, array in zip(names, arrays, strict=True)}
    if len(set(lengths.values())) > 1 or "no" in lengths.values():
        told = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise TaskError(f"npz: arrays of {path} need equally many examples, found {told}")
    return arrays


def _array(path: Path, archive: Any, name: str) -> "NDArray[Any]":
    try:
        array: NDArray[Any] = archive[name]
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise TaskError(f"npz: array {name!r} of {path} cannot be read: {error}") from None
    return array
