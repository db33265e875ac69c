"""Keep what workers save in the bucket that holds the state of a run: upload and fetch it, and delete old saves.

Workers save to a local disk. The daemon of each node uploads the folders of its own workers, and no outcome says that a
plan has succeeded before the folders of all workers are there: `states.json` comes last, so it shows that a folder is
whole. The daemon's storage thread calls this module; uploads take long, so they run in a thread of their own.
Comparisons of examples, in daemons and commands, fetch columns.
"""

import contextlib
import errno
import stat
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from sidecar.coordination.journal_state import Closed
from sidecar.errors import StorageError
from sidecar.protocol.column_names import GROUP, PLACE, PREDICTIONS, file_name
from sidecar.protocol.example_inputs import INPUTS
from sidecar.protocol.records import Plan
from sidecar.retention.saves.cleanup import ArtifactCleanup
from sidecar.retention.saves.example_values import MOST_BYTES, UnusableError, is_paired_by
from sidecar.retention.saves.retention import CleanupRequest, CleanupResult, RetainedStates
from sidecar.system.bounded_calls import Calls, HangingError, call_directly
from sidecar.system.bucket_folder import BucketState
from sidecar.system.confined import Folder, open_folder
from sidecar.system.object_store import BucketError, StoredObject

_STATES: Final = "states.json"
_EVALUATIONS: Final = "evaluations"
_DEEPEST: Final = 16  # folders in each other: what workers save has three
_AGAIN_SECONDS: Final = 3600.0  # between two listings of all evaluations


class Objects(Protocol):
    """Define the requests to an object store, as `system.object_store.ObjectStore` makes them."""

    def put(self, key: str, data: Path, /) -> object:
        """Write an object with the content of a file."""

    def delete(self, key: str, /) -> None:
        """Delete an object, if it exists."""

    def listing(self, folder: str = "", /) -> list[StoredObject]:
        """Return the objects below a folder."""


@dataclass(slots=True, kw_only=True)
class BucketSaves:
    """Upload and delete the saves of one run. Methods raise `StorageError` unless they say something else.

    `local`: cleans up the folder of this node. `calls`: makes calls that take long.
    """

    objects: Objects
    root: Path  # the local folder of the run
    node: str
    local: ArtifactCleanup
    now: Callable[[], float]
    calls: Calls = call_directly
    deletions: Calls = call_directly
    _uploaded: str = ""  # the newest plan's folder of which this node has uploaded its part
    _next: float = field(default=float("-inf"))

    def store(self, plan: Plan) -> bool:
        """Upload this node's part of a plan, and return whether the parts of all nodes are there.

        It returns False, too, as long as the upload goes on.
        """
        try:
            return self.calls(f"saves of plan {plan.plan}", partial(self._store, plan))
        except HangingError:
            return False
        except OSError as error:
            raise StorageError(f"cannot upload the saves of plan {plan.plan}: {error.strerror or error}") from error

    def tidy(self, tidying: CleanupRequest) -> CleanupResult:
        """Clean up the local folder, and delete the same objects. Never raises."""
        result = self.local.tidy(tidying)
        failed = dict(result.failed)
        for path in (*tidying.drop, *tidying.thin):
            try:
                self.deletions(f"delete {path}", partial(self._delete, path, thin=path in tidying.thin))
            except OSError as error:
                failed[path] = f"cannot delete the objects of {path}: {error.strerror}"
        old, why = result.old, result.old_failed
        if tidying.retained is not None and self.now() >= self._next:
            retained = tidying.retained
            try:
                old = max(old, self.deletions("delete old", partial(self._delete_old, retained)))
                self._next = self.now() + _AGAIN_SECONDS
            except HangingError:
                pass
            except OSError as error:
                self._next = self.now() + _AGAIN_SECONDS
                why = f"cannot delete the objects of old evaluations: {error.strerror}"
        return replace(result, failed=failed, old=old, old_failed=why)

    def _store(self, plan: Plan) -> bool:
        """Upload, and compare the names that are there with those of a whole plan. Raises `OSError`."""
        if self._uploaded != plan.folder:
            for member, folder in zip(plan.members or (), plan.saves, strict=True):
                if member.node == self.node:
                    upload(self.objects, self.root, folder, folder, (), _STATES)
            self._uploaded = plan.folder
        found = {listed.key for listed in self.objects.listing(plan.folder)}
        return found.issuperset(f"{folder}/{_STATES}" for folder in plan.saves)

    def _delete(self, path: str, *, thin: bool) -> None:
        """Delete the objects of a plan, or all but the metric states. Raises `OSError`."""
        for listed in self.objects.listing(path):
            if not (thin and listed.key.endswith(f"/{_STATES}")):
                self.objects.delete(listed.key)

    def _delete_old(self, retained: RetainedStates) -> int:
        """Delete the objects of old evaluations, and return their number. Raises `OSError`."""
        old = set()
        for listed in self.objects.listing(_EVALUATIONS):
            _, checkpoint, plan, *_ = (*listed.key.split("/"), "", "")
            number = plan.removeprefix("plan-")
            if number.isascii() and number.isdecimal() and retained.is_old(checkpoint, int(number[:18])):
                with contextlib.suppress(FileNotFoundError):
                    self.objects.delete(listed.key)
                old.add(f"{checkpoint}/{plan}")
        return len(old)


def upload(objects: Objects, root: Path, path: str, to: str, first: Collection[str], last: str) -> None:
    """Upload the files in a folder, those that `first` names before all, and `last` at the end. Raises `OSError`.

    `path`: the folder below `root`; `to`: the one in the bucket. Links are not followed.
    """

    def order(file: tuple[str, str]) -> tuple[bool, bool]:
        return file == ("", last), bool(file[0]) or file[1] not in first

    with open_folder(root) as opened, opened.folder(path) as folder:
        for parent, name in sorted(_files(folder, "", _DEEPEST), key=order):
            with (
                folder.folder(parent) if parent else contextlib.nullcontext(folder) as above,
                above.open_file(name) as file,
            ):
                key = "/".join(part for part in (to, parent, name) if part)
                objects.put(key, Path(f"/proc/self/fd/{file.fileno()}"))


@contextlib.contextmanager
def fetched_columns(root: BucketState, evaluations: Iterable[Closed], eval_set: str, metric: str) -> Iterator[Folder]:
    """Open a temporary folder that holds what gives a metric's value for each example, below the paths of the saves.

    All other columns of the eval set are empty files. `metric` may be `INPUTS`, for the inputs that the task shows.
    Raises `UnusableError` if there is too much, and `StorageError` if the bucket does not answer, because a comparison
    without the examples would then hold for ever.
    """
    with (
        tempfile.TemporaryDirectory(prefix="sidecar-columns-") as place,
        open_folder(Path(place)) as folder,
    ):
        try:
            for closed in evaluations:
                _fetch_columns(root, closed, folder, eval_set, metric)
        except BucketError as error:
            if error.errno in (errno.ENOENT, errno.ESTALE):
                raise UnusableError(f"the saved values of plan {closed.plan.plan} were removed meanwhile") from error
            raise StorageError(f"cannot read the saved values of plan {closed.plan.plan}: {error.strerror}") from error
        yield folder


def _fetch_columns(root: BucketState, closed: Closed, into: Folder, eval_set: str, metric: str) -> None:
    """Fetch the columns of one evaluation. Raises `UnusableError`, `BucketError`."""
    assert root.objects is not None, "`state_storage` sets it"
    saves = [f"{path}/{PREDICTIONS}/{file_name(eval_set)}" for path in closed.result.saves]
    for path, found in root.objects.together({}, saves)[1].items():
        listed = {each.key.removeprefix(f"{path}/"): each for each in found}
        names = {name for name in (PLACE, GROUP, metric, "y", "predictions") if f"{file_name(name)}.npy" in listed}
        wanted = names - ({"y", "predictions"} if metric in names else set()) if is_paired_by(metric, names) else set()
        files = {f"{file_name(name)}.npy" for name in wanted} | (
            {INPUTS} & listed.keys() if metric == INPUTS else set()
        )
        if sum(listed[name].size for name in files) > MOST_BYTES:
            raise UnusableError("the columns are too large")
        for name, each in listed.items():
            if "/" not in name:
                with into.folder(path, make=True) as folder, folder.create_file(name) as file:
                    if name in files:
                        root.objects.fetch(each.key, each.etag, each.size, file)


def _files(folder: Folder, above: str, deepest: int) -> Iterator[tuple[str, str]]:
    """Yield (folder, name) of the regular files below a folder, which is `above`."""
    for name in folder.names():
        mode = folder.stat(name).st_mode
        if stat.S_ISREG(mode):
            yield above, name
        elif stat.S_ISDIR(mode) and deepest > 0:
            with folder.folder(name) as below:
                yield from _files(below, f"{above}/{name}".strip("/"), deepest - 1)
