"""Save a worker's part in a folder of its own: restored weights, predictions if wanted, states before the reduce.

Framework-free. The folder is filled next to its final name, hidden: it has that name once everything in it is on disk,
and `states.json` lists what there is. Weights do not change while they are evaluated, so they are written meanwhile.

Other users may write to the folders above. So each is opened by its name in the one above it, and no link is followed;
until it has its name the folder is this user's alone; and who writes by path gets one that begins with the descriptor
of the open folder, so that it leads there whatever is renamed above.
"""

import errno
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

from sidecar.confined import Folder, open_folder
from sidecar.durable import sync_below, write_new
from sidecar.evaluation.backend import Rows, States
from sidecar.evaluation.failures import EvaluationError
from sidecar.evaluation.npy_table import NpyTable, file_name

SCHEMA: Final = 1
STATES: Final = "states.json"
PREDICTIONS: Final = "predictions"

_IN_PARALLEL: Final = ThreadPoolExecutor(1, thread_name_prefix="weights")
"""One thread for all evaluations: a new one for each would leave its buffers in yet another arena of the C library."""

_REMEDIES: Final = {
    errno.ENOSPC: "make room there, or keep less: keep_saves, saves_max_bytes, save_weights",
    errno.EDQUOT: "raise this user's quota there, or keep less: keep_saves, saves_max_bytes, save_weights",
    errno.EACCES: "let the user of this daemon write there",
    errno.EROFS: "mount it so that it can be written",
    errno.ELOOP: "links in the state directory are not followed: move it away",
}


class ArtifactWriter:
    """A worker's folder while it is filled; entered for one evaluation, and gone if that does not end well.

    Whatever storage refuses is an `EvaluationError` of kind `storage`.

    Args:
        folder: Its path; what is missing of it is made.
        root: The part of the path that is trusted: links in it are followed, and none below. None: all above `folder`.
    """

    def __init__(self, folder: Path, root: Path | None = None) -> None:
        self.folder = folder
        self._root = folder.parent if root is None else root
        self._name = f".{folder.name}.part"
        self._open = ExitStack()
        self._above: list[Folder] = []  # from the root to the folder in which this one is
        self._part: Folder | None = None
        self._mode = 0o755
        self._tables: dict[str, NpyTable] = {}
        self._weights: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._weights is not None:
            wait([self._weights])  # whatever it writes to is about to go
        for table in self._tables.values():
            table.close()
        if self._above:
            with suppress(OSError):
                self._above[-1].remove(self._name)  # it is not there any more, if all went well
        self._open.close()

    def begin(self, save_weights: Callable[[Path], None] | None) -> None:
        """Make the folder, anew if one is left of an interrupted attempt, and begin to write weights into it."""
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
            self._weights = _IN_PARALLEL.submit(_write, save_weights, self._path)

    @property
    def _path(self) -> Path:
        """The folder while it is filled, by its descriptor."""
        assert self._part is not None
        return Path(f"/proc/self/fd/{self._part.descriptor}")

    def _make_private(self, part: Folder) -> None:
        """Let nobody else put a link under a name that is going to be written."""
        found = os.fstat(part.descriptor)
        self._mode = stat.S_IMODE(found.st_mode)
        os.fchmod(part.descriptor, self._mode & ~0o077)
        if found.st_uid != os.geteuid() or part.names():
            raise OSError(errno.EEXIST, "another user put something there at the same moment", str(part.path))

    def keep(self, eval_set: str, rows: Rows) -> None:
        """Append what the task keeps of one batch; nothing stays in memory."""
        with self._storage():
            if eval_set not in self._tables:
                self._tables[eval_set] = NpyTable(self._path / PREDICTIONS / file_name(eval_set))
            self._tables[eval_set].add(rows)

    def finish(self, states: States, variables: str, origin: Mapping[str, Any] | None = None) -> None:
        """Make everything durable, and give the folder its name.

        `origin` says which evaluation it is of: other ranks that read the states must not take an older one for it.
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
                    eval_set: {"rows": table.rows, "columns": table.columns} for eval_set, table in self._tables.items()
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
            for parent in self._above[:-4:-1]:  # plan, checkpoint, evaluations: all may be new
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
