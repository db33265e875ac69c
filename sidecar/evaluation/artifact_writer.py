"""Save the part of one worker in its own folder: restored weights, predictions if wanted, states before the reduce.

Imports no framework. The folder has a hidden temporary name while it is filled, and gets its final name once everything
in it is on disk; `states.json` lists the content. Weights do not change during the evaluation, so they are written in
parallel.

Other users may be able to write to the folders above. So every folder is opened by its name in the folder above it, and
links are not followed. Until the folder has its final name, only this user has access to it. Code that writes by path
gets a path that begins with the descriptor of the open folder, so the path stays valid if folders above are renamed.
"""

import errno
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future, wait
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

from sidecar.evaluation.backend import Rows, States
from sidecar.evaluation.failures import EvaluationError
from sidecar.evaluation.npy_table import NpyTable
from sidecar.protocol.column_names import PREDICTIONS, file_name
from sidecar.system.confined import Folder, open_folder
from sidecar.system.durable import sync_below, write_new

SCHEMA: Final = 1
STATES: Final = "states.json"

_REMEDIES: Final = {
    errno.ENOSPC: "free some space there, or keep less: keep_saves, saves_max_bytes, save_weights",
    errno.EDQUOT: "raise this user's quota there, or keep less: keep_saves, saves_max_bytes, save_weights",
    errno.EACCES: "give the user of this daemon the permission to write there",
    errno.EROFS: "mount it with write access",
    errno.ELOOP: "links in the state directory are not followed: remove the link",
}


class ArtifactWriter:
    """Fill the folder of a worker. Use it as a context manager for one evaluation; it removes an unfinished folder.

    Every error of the storage becomes an `EvaluationError` of kind `storage`. `root`: the trusted part of the path:
    links in it are followed, links below it are not; None: all above `folder`. `in_parallel` writes weights while
    batches are evaluated.
    """

    def __init__(self, folder: Path, root: Path | None = None, *, in_parallel: Executor) -> None:
        self.folder = folder
        self._root = folder.parent if root is None else root
        self._in_parallel = in_parallel
        self._name = f".{folder.name}.part"
        self._open = ExitStack()
        self._above: list[Folder] = []  # from the root to the parent of this folder
        self._part: Folder | None = None
        self._mode = 0o755
        self._tables: dict[str, NpyTable] = {}
        self._shared: dict[str, NpyTable] = {}  # which another writer has, too, and closes
        self._weights: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._weights is not None:
            wait([self._weights])  # its files are removed below
        for table in self._tables.values():
            table.close()
        if self._above:
            with suppress(OSError):
                self._above[-1].remove(self._name)  # does not exist any more after `finish`
        self._open.close()

    def begin(self, save_weights: Callable[[Path], None] | None) -> None:
        """Create the folder, replace the rest of an interrupted attempt, and begin to write weights into it."""
        with self._storage():
            self._root.mkdir(parents=True, exist_ok=True)
            above = self._open.enter_context(open_folder(self._root))
            self._above.append(above)
            for name in self.folder.parent.relative_to(self._root).parts:
                above = self._open.enter_context(above.folder(name, make=True))
                self._above.append(above)
            above.remove(self._name)
            above.make_folder(self._name)
            self._part = self._open.enter_context(above.folder(self._name))
            self._make_private(self._part)
        if save_weights is not None:
            self._weights = self._in_parallel.submit(_write, save_weights, self._path)

    @property
    def _path(self) -> Path:
        """Path of the folder while it is filled, by its descriptor."""
        assert self._part is not None
        return Path(f"/proc/self/fd/{self._part.descriptor}")

    def _make_private(self, part: Folder) -> None:
        """Close the folder to other users, so that nobody can put a link where this process will write."""
        status = os.fstat(part.descriptor)
        self._mode = stat.S_IMODE(status.st_mode)
        os.fchmod(part.descriptor, self._mode & ~0o077)
        if status.st_uid != os.geteuid() or part.names():
            raise OSError(errno.EEXIST, "another user put something there at the same moment", str(part.path))

    def keep(self, eval_set: str, rows: Rows) -> None:
        """Append the rows of one batch to the files of their eval set; nothing stays in memory."""
        with self._storage():
            if eval_set not in self._tables:
                self._tables[eval_set] = NpyTable(self._path / PREDICTIONS / file_name(eval_set))
            self._tables[eval_set].add(rows)

    def share(self, eval_set: str, other: Self) -> None:
        """Let the files of the rows of a set so far, which another writer has, be in this folder, too."""
        if (table := other._tables.get(eval_set)) is None:
            return
        name = f"{PREDICTIONS}/{file_name(eval_set)}"
        assert self._part is not None
        assert other._part is not None
        with self._storage():
            table.sync()
            with other._part.folder(name) as theirs, self._part.folder(name, make=True) as own:
                for each in theirs.names():
                    theirs.link(each, each, into=own)
        self._shared[eval_set] = table

    def take(self, eval_set: str, worker: Folder, table: Mapping[str, Any]) -> None:
        """Append the rows of a set that are in a folder of a worker of an attempt before.

        `table`: what its `states.json` says about them. Raises as `NpyTable.take`.
        """
        name = f"{PREDICTIONS}/{file_name(eval_set)}"
        own = self._tables.setdefault(eval_set, NpyTable(self._path / name))
        with worker.folder(name) as folder:
            own.take(folder, table["columns"], table["rows"], table["inputs_bytes"])

    def drop(self, eval_set: str) -> None:
        """Remove the rows of a set that were taken, as it is evaluated again."""
        if (table := self._tables.pop(eval_set, None)) is not None:
            table.close()
            assert self._part is not None
            with suppress(FileNotFoundError), self._part.folder(PREDICTIONS) as folder:
                folder.remove(file_name(eval_set))

    def finish(self, states: States, variables: str, origin: Mapping[str, Any] | None = None) -> None:
        """Make everything durable, and give the folder its final name.

        `origin` identifies the evaluation, so that other ranks do not read the states of an older one.
        """
        with self._storage():
            for table in self._tables.values():
                table.finish()
            if self._weights is not None:
                self._weights.result()
            content = {
                "schema": SCHEMA,
                "variables": variables,
                **(origin or {}),
                "predictions": {
                    eval_set: {"rows": table.rows, "columns": table.columns, "inputs_bytes": table.inputs_bytes}
                    for eval_set, table in (self._tables | self._shared).items()
                },
                "states": {
                    eval_set: {name: state.to_json() for name, state in by_name.items()}
                    for eval_set, by_name in states.items()
                },
            }
            part, above = self._part, self._above[-1]
            assert part is not None
            write_new(part, STATES, json.dumps(content, allow_nan=False).encode())
            for path in (*self._path.glob(f"{PREDICTIONS}/*"), *self._path.glob(PREDICTIONS)):
                with open_folder(path) as folder:
                    folder.sync()
            part.sync()
            os.fchmod(part.descriptor, self._mode)
            above.remove(self.folder.name)
            above.rename(self._name, self.folder.name)
            if not os.path.samestat(os.fstat(part.descriptor), above.stat(self.folder.name)):
                raise OSError(errno.EEXIST, "another user put something there at the same moment", str(self.folder))
            for parent in self._above[:-4:-1]:  # of the plan, the checkpoint and all evaluations: may be new
                parent.sync()

    @contextmanager
    def _storage(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            remedy = f"; {_REMEDIES[error.errno]}" if error.errno in _REMEDIES else ""
            reason = f"{type(error).__name__}: {error}"
            if self._part is not None:
                reason = reason.replace(str(self._path), str(self._part.path))
            raise EvaluationError("storage", f"cannot save to {self.folder}: {reason}{remedy}") from error


def _write(save_weights: Callable[[Path], None], folder: Path) -> None:
    save_weights(folder)
    with open_folder(folder) as opened:
        sync_below(opened)
