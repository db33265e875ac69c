"""The linear journal: plan N and outcome N are files that exist once, read one by one in the order of their numbers.

Creating `plans/N` is the decision, creating `outcomes/N` is the result. Both are create-if-absent, and who created a
name is learned only by reading it back and comparing the nonce. Listings are never used: the first number that is not
there is the end. Called from the daemon's I/O thread; what it delivers is folded by `sidecar.history`.
"""

import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from sidecar.agreement.storage import Storage
from sidecar.clock import timestamp
from sidecar.errors import RecordError, SidecarError, StorageError, StorageLostError
from sidecar.history import Closed, History
from sidecar.records import SCHEMA, Outcome, Plan, dumps, loads

RUN_PATH: Final = "run.json"
FOLDERS: Final = ("plans", "outcomes")

_TRIES: Final = 3
"""How often a name whose fate is unknown is created again; without a pause, since the daemon asks again later."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Run:
    """The identity of a state directory, carried by every record in it."""

    run: str
    nonce: str
    created_at: str | None = None
    schema: int = SCHEMA


def open_run(storage: Storage, wall: float, *, new_id: Callable[[], str] = lambda: secrets.token_hex(16)) -> str:
    """Return the id of the run whose state directory this is; the first daemon to ask creates it.

    `wall` is the time of creation, in seconds since 1970-01-01 UTC, for people to read. Raises `StorageError` if
    storage does not answer, `RecordError` if what stands there is no run.
    """
    found = storage.read(RUN_PATH)
    if found is None:
        found = _settle(storage, RUN_PATH, dumps(Run(new_id(), new_id(), timestamp(wall))))
    storage.sync("")  # its creator may not have come to that
    if storage.read(RUN_PATH) != found:
        raise StorageError(f"{RUN_PATH} is gone again, as if storage had crashed: start this daemon once more")
    return _parse(Run, RUN_PATH, found).run


def check_run(storage: Storage, run: str) -> None:
    """Raise `StorageLostError` if the state directory is no longer that of `run`."""
    found = storage.read(RUN_PATH)
    if found is None:
        raise StorageLostError(
            f"{RUN_PATH} is gone from the state directory: it was deleted or unmounted under run {run}; "
            "mount it again, or restart this daemon to begin a new run"
        )
    _reject_foreign(RUN_PATH, _parse(Run, RUN_PATH, found).run, run)


class Journal:
    """One reader's place in the journal of a run, and its right to write the next record.

    `through` is the newest plan read; every outcome up to it has been read too, except that of `open`, the plan that is
    still going on. Since N+1 may be created only by a daemon that has read every outcome to N, nobody can propose while
    a plan is open, and nobody can propose again what a plan that they have not seen has settled.
    """

    def __init__(self, storage: Storage, run: str) -> None:
        self.storage = storage
        self.run = run
        self.through = 0
        self.open: Plan | None = None

    def resume(self, plan: int, plan_nonce: str, outcome_nonce: str | None) -> bool:
        """Begin behind a plan that is closed, if what stands there is what the caller knows: these nonces.

        Raises as `read_new`. Without an outcome the plan must be one that only settled.
        """
        self._begin_after(plan - 1)
        known = False
        try:
            found = self._read_plan(plan)
            outcome = None if self.open is None else self._read_outcome(self.open)
            read = found and found.nonce, outcome and outcome.nonce
            known = self.open is None and read == (plan_nonce, outcome_nonce)
        finally:
            if not known:
                self._begin_after(0)
        return known

    def read_new(self, limit: int = sys.maxsize) -> list[Plan | Outcome]:
        """Read on, and return at most `limit` records that were not yet returned, in journal order.

        Raises `RecordError` naming the file that cannot be understood, `StorageLostError` for a record of another run,
        `StorageError` if storage does not answer. What was read before the error is returned first; the error is raised
        by the next call.
        """
        found: list[Plan | Outcome] = []
        place = before_newest = self.through, self.open
        while len(found) < limit:
            place = self.through, self.open
            try:
                entry = self._read_next()
            except SidecarError:
                if found:
                    break
                raise
            if entry is None:
                break
            found.append(entry)
            before_newest = place
        if not found:
            return found
        place, (self.through, self.open) = (self.through, self.open), before_newest
        newest = found.pop()  # unless all goes well it is read again next time
        try:
            if self._stays(newest):
                self.through, self.open = place
                found.append(newest)
        except SidecarError:
            if not found:
                raise
        return found

    def propose(self, plan: Plan) -> bool:
        """Create the next plan. True: it is this one; False: another daemon was first. `read_new` then delivers it.

        Raises `ValueError` if this reader may not create that number, `StorageLostError` if the state directory belongs
        to another run by now, and `StorageError` if storage gave no answer: the plan may then exist or not, and
        `read_new` will tell.
        """
        if plan.run != self.run or plan.plan != self.through + 1 or self.open is not None:
            raise ValueError(f"plan {plan.plan} of run {plan.run} may not follow {self._place()}")
        return self._create(plan, plan_path(plan.plan))

    def close(self, outcome: Outcome) -> bool:
        """Create the outcome of the open plan. Returns and raises as `propose` does."""
        if outcome.run != self.run or self.open is None or outcome.plan != self.open.plan:
            raise ValueError(f"outcome {outcome.plan} of run {outcome.run} may not follow {self._place()}")
        return self._create(outcome, outcome_path(outcome.plan))

    def write_result(self, closed: Closed) -> None:
        """Put a success where people look for it, unless it is there: a view of the journal, rebuilt when lost.

        The file is `evaluations/<checkpoint>/result.json`: `{"plan": …, "outcome": …}`, both as the journal has them.
        """
        if closed.outcome.status != "succeeded" or closed.plan.checkpoint is None:
            raise ValueError(f"plan {closed.plan.plan} has no result: it {closed.outcome.status}")
        path = f"evaluations/{closed.plan.checkpoint.folder}/result.json"
        found = self.storage.read(path)
        if found is None or not _is_result_of(closed, found):
            self.storage.replace(path, dumps(closed))

    def _begin_after(self, plan: int) -> None:
        self.through, self.open = plan, None

    def _stays(self, record: Plan | Outcome) -> bool:
        """Make the newest record that was read durable, and look whether it still stands there.

        Its creator may not yet have: were the storage to crash then, others would have acted on what never was. Those
        before it are durable, since whoever created the next one has read them so.
        """
        folder, path = ("plans", plan_path) if isinstance(record, Plan) else ("outcomes", outcome_path)
        self.storage.sync(folder)
        standing = self.storage.read(path(record.plan))
        return standing is not None and _parse(type(record), path(record.plan), standing).nonce == record.nonce

    def _read_next(self) -> Plan | Outcome | None:
        if self.open is not None:
            return self._read_outcome(self.open)
        return self._read_plan(self.through + 1)

    def _read_plan(self, number: int) -> Plan | None:
        path = plan_path(number)
        if (found := self.storage.read(path)) is None:
            return None
        plan = _parse(Plan, path, found)
        self._check(path, plan, number)
        self.through = number
        if plan.checkpoint is not None and plan.members is not None:  # as History sees it: others only settle
            self.open = plan
        return plan

    def _read_outcome(self, plan: Plan) -> Outcome | None:
        path = outcome_path(plan.plan)
        if (found := self.storage.read(path)) is None:
            return None
        outcome = _parse(Outcome, path, found)
        self._check(path, outcome, plan.plan)
        self.open = None
        return outcome

    def _check(self, path: str, record: Plan | Outcome, number: int) -> None:
        _reject_foreign(path, record.run, self.run)
        if record.plan != number:
            raise RecordError(f"{path} holds the record of plan {record.plan}: no file of the journal may be renamed")

    def _create(self, record: Plan | Outcome, path: str) -> bool:
        check_run(self.storage, self.run)  # in a directory that was wiped and begun anew our number would be a trap
        standing = _parse(type(record), path, _settle(self.storage, path, dumps(record)))
        return standing.nonce == record.nonce

    def _place(self) -> str:
        return (
            f"plan {self.through} of run {self.run}, {'still open' if self.open else 'closed'}: read the journal first"
        )


def read_run(storage: Storage) -> str | None:
    """The id of the run whose state directory this is; None if no daemon was there yet. For those who only look."""
    found = storage.read(RUN_PATH)
    return None if found is None else _parse(Run, RUN_PATH, found).run


def read_history(storage: Storage) -> History:
    """Everything that the journal of a run says; an empty history if there is none."""
    history = History()
    if (run := read_run(storage)) is not None:
        for record in Journal(storage, run).read_new():
            history.apply(record)
    return history


def plan_path(number: int) -> str:
    """Where plan `number` stands."""
    return f"plans/{number:012d}.json"


def outcome_path(number: int) -> str:
    """Where the outcome of plan `number` stands."""
    return f"outcomes/{number:012d}.json"


def _settle(storage: Storage, path: str, data: bytes) -> bytes:
    """Create a name and return what stands under it then: these bytes or another's.

    Nothing is concluded from how the creation ended, since replies get lost; only a name that is still absent is
    created again. Raises `StorageError` if its fate stays unknown.
    """
    unknown: StorageError | None = None
    for _ in range(_TRIES):
        try:
            storage.create(path, data)
        except StorageError as error:
            unknown = error
        try:
            found = storage.read(path)
        except StorageError as error:
            unknown = error
        else:
            if found is not None:
                return found
    raise unknown or StorageError(
        f"{path} was created {_TRIES} times and is still absent: `sidecar check` tests storage"
    )


def _parse(cls: type[T], path: str, data: bytes) -> T:
    try:
        return loads(cls, data)
    except RecordError as error:
        raise RecordError(f"{path}: {error}") from error


def _reject_foreign(path: str, found: str, run: str) -> None:
    if found != run:
        raise StorageLostError(
            f"{path} belongs to run {found}, this daemon to run {run}: the state directory was replaced under it; "
            "restart the daemon to join the run that is there now"
        )


def _is_result_of(closed: Closed, data: bytes) -> bool:
    """Whether the view is whole: it is written without fsync, so a crash of the machine may have torn it."""
    try:
        found = loads(Closed, data)
    except RecordError:
        return False
    return found.outcome.nonce == closed.outcome.nonce
