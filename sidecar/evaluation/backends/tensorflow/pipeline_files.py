"""Give each worker process its own files for `tf.data` pipelines that write while they are read.

`cache(filename)` and `save(path)` are written by the process that reads the data. Two processes that write the same
files abort each other. Worse, a set that divides itself would read the part of another rank from them. So the files of
a worker lie in a folder next to those that the task names, which no other process uses and which begins empty. Only
worker processes of groups with several call this, before they import the task.
"""

import atexit
import fcntl
import functools
import itertools
import os
import shutil
import socket
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import tensorflow as tf

_FOLDER: Final = ".sidecar-cache-"
_LOCK: Final = "lock"


def separate_files() -> ExitStack:
    """Replace `cache`, `save` and `load` of `tf.data.Dataset`. Closing the result undoes that and removes the files."""
    undo = ExitStack()
    folders: dict[Path, Path] = {}
    saved: dict[str, str] = {}

    def own(path: Any) -> str:
        text = os.fspath(path)
        if "://" in text:
            return f"{text}.sidecar-{socket.gethostname()}-{os.getpid()}"
        parent = Path(text).expanduser().absolute().parent
        if parent not in folders:
            folders[parent] = _folder_in(parent, undo)
        return str(folders[parent] / Path(text).name)

    cache, save, load = tf.data.Dataset.cache, tf.data.Dataset.save, tf.data.Dataset.load

    @functools.wraps(cache)
    def cache_own(self: Any, filename: Any = "", *others: Any, **named: Any) -> Any:
        is_file = isinstance(filename, str | os.PathLike) and os.fspath(filename)
        return cache(self, own(filename) if is_file else filename, *others, **named)

    @functools.wraps(save)
    def save_own(self: Any, path: Any, *others: Any, **named: Any) -> Any:
        saved[os.fspath(path)] = own(path)
        return save(self, saved[os.fspath(path)], *others, **named)

    @functools.wraps(load)
    def load_own(path: Any, *others: Any, **named: Any) -> Any:
        return load(saved.get(os.fspath(path), path), *others, **named)

    for name, original, replacement in (
        ("cache", cache, cache_own),
        ("save", save, save_own),
        ("load", staticmethod(load), staticmethod(load_own)),
    ):
        undo.callback(setattr, tf.data.Dataset, name, original)
        setattr(tf.data.Dataset, name, replacement)
    atexit.register(undo.close)
    return undo


def _folder_in(parent: Path, undo: ExitStack) -> Path:
    """Return an empty folder in this one that belongs to this process until it ends; in the temporary one if needed.

    The folder's lock goes with the process, however it ends, so another process then empties and uses the folder.
    """
    with suppress(OSError):
        parent.mkdir(parents=True, exist_ok=True)
        return _locked(parent, undo)
    return _locked(Path(tempfile.mkdtemp(prefix="sidecar-")), undo)


def _locked(parent: Path, undo: ExitStack) -> Path:
    for number in itertools.count():
        folder = parent / f"{_FOLDER}{number}"
        folder.mkdir(exist_ok=True)
        lock = (folder / _LOCK).open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            continue
        undo.callback(lock.close)
        undo.callback(shutil.rmtree, folder, ignore_errors=True)  # first, while no other process can use it
        for item in folder.iterdir():
            if item.is_dir():
                shutil.rmtree(item)
            elif item.name != _LOCK:
                item.unlink()
        return folder
    raise AssertionError("an endless count has no end")
