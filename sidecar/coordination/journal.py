"""The linear journal: plan N and outcome N are files that exist once, read one by one in the order of their numbers.

Creating `plans/N` is the decision, creating `outcomes/N` is the result. Both are create-if-absent, and who created a
name is learned only by reading it back and comparing the nonce. The first number that is not there is the end. That it
is not a hole is made sure once, by a listing: a number that was used is never used again, so a record that is missing
is reported and never filled. Called from the daemon's storage thread; `journal_state` folds what it delivers.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sidecar.codec import dumps, loads
from sidecar.coordination.journal_state import Closed, JournalState
from sidecar.coordination.run import JOURNAL_FOLDERS, check_run, read_run
from sidecar.coordination.storage import Storage
from sidecar.coordination.unique_names import GracePeriod, parse, settle
from sidecar.errors import RecordError, SidecarError, StorageLostError
from sidecar.records import Outcome, Plan, group_id
from sidecar.states import OutcomeStatus

_NAME: Final = re.compile(r"([0-9]{12,18})\.json")

_REMEDY: Final = (
    "files of the journal were deleted, or not all of them were restored. Put back what is missing; or stop all "
    "daemons and move the state directory away, to begin a new run that evaluates everything again"
)


@dataclass(frozen=True, slots=True)
class _Place:
    """How far a journal was read."""

    through: int = 0
    open: Plan | None = None
    newest: tuple[str, str] | None = None  # path and nonce of the record that was read last


class Journal:
    """One reader's place in the journal of a run, and its right to write the next record.

    `through` is the newest plan read; every outcome up to it has been read too, except that of `open`, the plan that is
    still going on. Since N+1 may be created only by a daemon that has read every outcome to N, nobody can propose while
    a plan is open, and nobody can propose again what a plan that they have not seen has settled.

    What cannot be true (a torn record, one of another plan, a hole) raises `StateUnavailableError` during `grace`, and
    afterwards `RecordError` or `StorageLostError`, which are final.
    """

    def __init__(self, storage: Storage, run: str, grace: GracePeriod | None = None) -> None:
        self.storage = storage
        self.run = run
        self._grace = grace or GracePeriod()
        self._at = _Place()
        self._expected = 0  # a plan of which somebody else knows that it was there
        self._expected_by = ""
        self._ends = False  # nothing stood behind the end when that was looked at

    @property
    def through(self) -> int:
        """The newest plan that was read."""
        return self._at.through

    @property
    def open(self) -> Plan | None:
        """That plan, if it has no outcome yet."""
        return self._at.open

    def expect(self, plan: int, by: str) -> None:
        """Note that a plan of this run was there, and who says so: a journal that ends before it has lost records."""
        if plan > self._expected:
            self._expected, self._expected_by = plan, by

    def resume(self, plan: int, plan_nonce: str, outcome_nonce: str | None) -> bool:
        """Begin behind a plan that is closed, if what stands there is what the caller knows: these nonces.

        Without an outcome the plan must be one that only settled. A record that cannot be true is not what the caller
        knows, and is reported by `read_new`; raises `StorageError` if storage does not answer.
        """
        self._at = _Place(plan - 1)
        known = False
        try:
            found = self._read_plan(plan)
            outcome = None if self.open is None else self._read_outcome(self.open)
            read = found and found.nonce, outcome and outcome.nonce
            known = self.open is None and read == (plan_nonce, outcome_nonce)
        except (RecordError, StorageLostError):
            known = False
        finally:
            if not known:
                self._at = _Place()
        return known

    def read_new(self, limit: int = sys.maxsize) -> list[Plan | Outcome]:
        """Read on, and return at most `limit` records that were not yet returned, in journal order.

        Raises `RecordError` naming the file that cannot be understood, `StorageLostError` for a record of another run,
        `StorageError` if storage does not answer. What was read before the error is returned first; the error is raised
        by the next call.
        """
        found: list[Plan | Outcome] = []
        place = before_newest = self._at
        while len(found) < limit:
            place = self._at
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
        place, self._at = self._at, before_newest
        newest = found.pop()  # unless all goes well it is read again next time
        try:
            if self._stays(newest):
                self._at = place
                found.append(newest)
        except SidecarError:
            if not found:
                raise
        return found

    def read_to_end(self) -> Iterator[Plan | Outcome]:
        """Read on until nothing is left, for those who look once. Raises as `read_new` and `reaches_end`."""
        yield from self.read_new()
        while not self.reaches_end():
            yield from self.read_new()

    def reaches_end(self) -> bool:
        """Whether what was read is all that there is. False: others wrote meanwhile, read on.

        Once true it stays true, since numbers follow each other from then on. Raises `StorageLostError` for a hole: a
        name stands behind the end, or somebody knows a plan that is not there.
        """
        if self._ends:
            return True
        with self._grace.on("end"):
            if (behind := self._behind_end()) is not None:
                self._sync()
                if self.storage.read(self._next_path()) is not None:
                    return False
                raise StorageLostError(f"the journal has a hole: {self._next_path()} is missing, {behind}: {_REMEDY}")
        self._ends = True
        return True

    def propose(self, plan: Plan) -> bool:
        """Create the next plan. True: it is this one; False: another daemon was first. `read_new` then delivers it.

        Raises `ValueError` if this reader may not create that number, `StorageLostError` if records of the journal are
        missing, and `StorageError` if the state directory is away or storage gave no answer: the plan may then exist or
        not, and `read_new` will tell.
        """
        if plan.run != self.run or plan.plan != self.through + 1 or self.open is not None:
            raise ValueError(f"plan {plan.plan} of run {plan.run} may not follow {self._described()}")
        return self.reaches_end() and self._create(plan, plan_path(plan.plan))

    def close(self, outcome: Outcome) -> bool:
        """Create the outcome of the open plan. Returns and raises as `propose` does."""
        if outcome.run != self.run or self.open is None or outcome.plan != self.open.plan:
            raise ValueError(f"outcome {outcome.plan} of run {outcome.run} may not follow {self._described()}")
        if why := _of_another(outcome, self.open):
            raise ValueError(f"the outcome {why}")
        return self._create(outcome, outcome_path(outcome.plan))

    def write_result(self, closed: Closed) -> None:
        """Put a success where people look for it, unless it is there: a view of the journal, rebuilt when lost.

        The file is `evaluations/<checkpoint>/result.json`: `{"plan": …, "outcome": …}`, both as the journal has them.
        """
        if closed.outcome.status != OutcomeStatus.SUCCEEDED or closed.plan.checkpoint is None:
            raise ValueError(f"plan {closed.plan.plan} has no result: it {closed.outcome.status}")
        path = f"evaluations/{closed.plan.checkpoint.folder}/result.json"
        found = self.storage.read(path)
        if found is None or not _is_result_of(closed, found):
            self.storage.replace(path, dumps(closed))

    # -- reading -----------------------------------------------------------------------------------------------------

    def _stays(self, record: Plan | Outcome) -> bool:
        """Make the newest record that was read durable, and look whether it still stands there.

        Its creator may not yet have: were the storage to crash then, others would have acted on what never was. Those
        before it are durable, since whoever created the next one has read them so.
        """
        folder, path = ("plans", plan_path) if isinstance(record, Plan) else ("outcomes", outcome_path)
        self.storage.sync(folder)
        return self._nonce_at(path(record.plan)) == record.nonce

    def _nonce_at(self, path: str) -> str | None:
        """Return the nonce of the record that stands there now; None if none does."""
        if (data := self.storage.read(path)) is None:
            return None
        with self._grace.on(path):
            return parse(Plan, path, data).nonce if path.startswith("plans/") else parse(Outcome, path, data).nonce

    def _read_next(self) -> Plan | Outcome | None:
        with self._grace.on(self._next_path()):
            if self.open is not None:
                return self._read_outcome(self.open)
            return self._read_plan(self.through + 1)

    def _read_plan(self, number: int) -> Plan | None:
        path = plan_path(number)
        if (data := self.storage.read(path)) is None:
            return None
        plan = parse(Plan, path, data)
        self._check(path, plan, number)
        is_open = plan.checkpoint is not None and plan.members is not None  # as History sees it: others only settle
        self._at = _Place(number, plan if is_open else None, (path, plan.nonce))
        return plan

    def _read_outcome(self, plan: Plan) -> Outcome | None:
        path = outcome_path(plan.plan)
        if (data := self.storage.read(path)) is None:
            return None
        outcome = parse(Outcome, path, data)
        self._check(path, outcome, plan.plan)
        if why := _of_another(outcome, plan):
            raise StorageLostError(f"{path} does not belong to {plan_path(plan.plan)}: it {why}: {_REMEDY}")
        self._at = _Place(plan.plan, None, (path, outcome.nonce))
        return outcome

    def _check(self, path: str, record: Plan | Outcome, number: int) -> None:
        if record.run != self.run:
            raise StorageLostError(f"{path} belongs to run {record.run}, this journal to run {self.run}: {_REMEDY}")
        if record.plan != number:
            raise RecordError(f"{path} holds the record of plan {record.plan}: no file of the journal may be renamed")

    # -- the end -----------------------------------------------------------------------------------------------------

    def _behind_end(self) -> str | None:
        """Return what shows that records behind the end were there, as words; None if nothing does."""
        for folder in JOURNAL_FOLDERS:
            numbers = [int(match[1]) for name in self.storage.names(folder) if (match := _NAME.fullmatch(name))]
            if numbers and max(numbers) > self.through - (folder == "outcomes" and self.open is not None):
                return f"but {folder}/{max(numbers):012d}.json is there"
        if self._expected > self.through:
            return f"and {self._expected_by} knows plan {self._expected}, while the journal ends at {self.through}"
        return None

    def _create(self, record: Plan | Outcome, path: str) -> bool:
        """Create a record behind the newest one; what that one, or an older run, left there must not be in its way."""
        check_run(self.storage, self.run, self._grace)  # in a directory that was begun anew our number would be a trap
        if self._at.newest is not None:
            newest, nonce = self._at.newest
            with self._grace.on(f"{newest} stands"):
                if self._nonce_at(newest) != nonce:
                    raise StorageLostError(f"{newest}, which this program has read, is not there any more: {_REMEDY}")
        with self._grace.on("neighbour"):
            if isinstance(record, Plan):
                self._reject_orphan(record.plan)
            else:
                self._reject_gap(record.plan)
        data = settle(self.storage, path, dumps(record))
        with self._grace.on(path):
            return parse(type(record), path, data).nonce == record.nonce

    def _reject_orphan(self, number: int) -> None:
        """Refuse to create a plan whose outcome is there: it would become the outcome of another evaluation."""
        orphan, plan = outcome_path(number), plan_path(number)
        if self.storage.read(orphan) is not None and self.storage.read(plan) is None:
            raise StorageLostError(f"the journal has a hole: {plan} is missing, but {orphan} is there: {_REMEDY}")

    def _reject_gap(self, number: int) -> None:
        """Refuse to create an outcome that was there, as the plan behind it is: it may have had another end."""
        outcome, later = outcome_path(number), plan_path(number + 1)
        if self.storage.read(later) is None:
            return
        self._sync()
        if self.storage.read(outcome) is None:
            raise StorageLostError(f"the journal has a hole: {outcome} is missing, but {later} is there: {_REMEDY}")

    def _sync(self) -> None:
        for folder in JOURNAL_FOLDERS:
            self.storage.sync(folder)  # a client of NFS that opens a folder asks its server anew

    def _next_path(self) -> str:
        return plan_path(self.through + 1) if self.open is None else outcome_path(self.through)

    def _described(self) -> str:
        return (
            f"plan {self.through} of run {self.run}, {'still open' if self.open else 'closed'}: read the journal first"
        )


def read_history(storage: Storage) -> JournalState:
    """Return everything that the journal of a run says; an empty history if there is none. Raises as `Journal`."""
    history = JournalState()
    if (run := read_run(storage)) is not None:
        for record in Journal(storage, run).read_to_end():
            history.apply(record)
    return history


def plan_path(number: int) -> str:
    """Return where plan `number` stands."""
    return f"plans/{number:012d}.json"


def outcome_path(number: int) -> str:
    """Return where the outcome of plan `number` stands."""
    return f"outcomes/{number:012d}.json"


def _of_another(outcome: Outcome, plan: Plan) -> str | None:
    """Return why an outcome is not that of a plan of its number; None if it is, as far as its release tells."""
    if outcome.plan_nonce not in (None, plan.nonce):
        return f"names plan nonce {outcome.plan_nonce}, not {plan.nonce}"
    if outcome.result is not None and outcome.result.group != group_id(plan.members or ()):
        return f"has the result of group {outcome.result.group}, not of the plan's {group_id(plan.members or ())}"
    return None


def _is_result_of(closed: Closed, data: bytes) -> bool:
    """Whether the view is whole: it is written without fsync, so a crash of the machine may have torn it."""
    try:
        found = loads(Closed, data)
    except RecordError:
        return False
    return found.outcome.nonce == closed.outcome.nonce
