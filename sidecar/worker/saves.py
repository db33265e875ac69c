"""What each worker saves, in a folder of its own: restored weights, predictions if wanted, states before the reduce.

Framework-free. The folder is filled beside its final name, hidden: it has that name once everything in it is on disk,
and `states.json` lists what there is. Weights do not change while they are evaluated, so they are written meanwhile.
"""

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

from sidecar.worker.backend import Rows, States
from sidecar.worker.failures import EvaluationError
from sidecar.worker.table import Table, file_name

SCHEMA: Final = 1
STATES: Final = "states.json"
PREDICTIONS: Final = "predictions"

_BESIDE: Final = ThreadPoolExecutor(1, thread_name_prefix="weights")
"""One thread for all evaluations: a new one for each would leave its buffers in yet another arena of the C library."""

_REMEDIES: Final = {
    errno.ENOSPC: "make room there, or keep less: keep_saves, saves_max_bytes, save_weights",
    errno.EDQUOT: "raise this user's quota there, or keep less: keep_saves, saves_max_bytes, save_weights",
    errno.EACCES: "let the user of this daemon write there",
    errno.EROFS: "mount it so that it can be written",
}


class Saves:
    """A worker's folder while it is filled; entered for one evaluation, and gone if that does not end well.

    Whatever storage refuses is an `EvaluationError` of kind `storage`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._part = folder.with_name(f".{folder.name}.part")
        self._tables: dict[str, Table] = {}
        self._weights: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._weights is not None:
            wait([self._weights])  # whatever it writes to is about to go
        for table in self._tables.values():
            table.close()
        shutil.rmtree(self._part, ignore_errors=True)  # it is not there any more, if all went well

    def begin(self, save_weights: Callable[[Path], None] | None) -> None:
        """Make the folder, anew if one is left of an interrupted attempt, and begin to write weights into it."""
        with self._storage():
            if self._part.exists():
                shutil.rmtree(self._part)
            self._part.mkdir(parents=True)
        if save_weights is not None:
            self._weights = _BESIDE.submit(_write, save_weights, self._part)

    def keep(self, eval_set: str, rows: Rows) -> None:
        """Append what the task keeps of one batch; nothing stays in memory."""
        with self._storage():
            if eval_set not in self._tables:
                self._tables[eval_set] = Table(self._part / PREDICTIONS / file_name(eval_set))
            self._tables[eval_set].add(rows)

    def finish(self, states: States, variables: str) -> None:
        """Make everything durable, and give the folder its name."""
        with self._storage():
            for table in self._tables.values():
                table.finish()
            if self._weights is not None:
                self._weights.result()
            content = {
                "schema": SCHEMA,
                "variables": variables,
                "predictions": {
                    eval_set: {"rows": table.rows, "columns": table.columns} for eval_set, table in self._tables.items()
                },
                "states": {
                    eval_set: {name: state.to_json() for name, state in by_name.items()}
                    for eval_set, by_name in states.items()
                },
            }
            with (self._part / STATES).open("xb") as file:
                file.write(json.dumps(content, allow_nan=False).encode())
                file.flush()
                os.fsync(file.fileno())
            for path in (*self._part.glob(f"{PREDICTIONS}/*"), *self._part.glob(PREDICTIONS), self._part):
                _sync(path)
            if self.folder.exists():
                shutil.rmtree(self.folder)
            self._part.rename(self.folder)
            for path in list(self.folder.parents)[:3]:  # plan, checkpoint, evaluations: all may be new
                _sync(path)

    @contextmanager
    def _storage(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            remedy = f"; {_REMEDIES[error.errno]}" if error.errno in _REMEDIES else ""
            raise EvaluationError(
                "storage", f"cannot save to {self.folder}: {type(error).__name__}: {error}{remedy}"
            ) from error


def _write(save_weights: Callable[[Path], None], folder: Path) -> None:
    save_weights(folder)
    for path in folder.iterdir():
        if path.is_file():  # folders are synced at the end, when nothing is added to them any more
            _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
