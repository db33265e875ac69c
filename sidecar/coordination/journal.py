"""Read and write the linear journal. Plan N and outcome N are files that exist once, in the order of their numbers.

Creating `plans/N` is the decision, and creating `outcomes/N` is the result. Both are created only if absent. A daemon
learns who created a name only by reading it back and comparing the nonce. The journal ends at the first number that is
absent. One listing of the folders proves that this is the end and not a hole. A number that was used is never used
again, so a missing record is reported and never created anew. Closed plans move into `segments` later, and are read
from there. The daemon's storage thread calls this module, and `journal_state` folds the records.
"""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sidecar.coordination.journal_records import (
    OUTCOME_BYTES,
    PLAN_BYTES,
    REMEDY,
    decode_outcome,
    decode_plan,
    encode,
    needs_outcome,
    nonce_of,
    outcome_path,
    plan_path,
    unreadable,
    why_of_another,
)
from sidecar.coordination.journal_state import Closed, JournalState
from sidecar.coordination.run import JOURNAL_FOLDERS, check_run, read_run
from sidecar.coordination.segments import Segments, is_marker, segment_path
from sidecar.coordination.storage import Storage
from sidecar.coordination.unique_names import GracePeriod, create_and_read
from sidecar.errors import RecordError, SidecarError, StorageLostError
from sidecar.protocol.codec import dumps, limits_of, loads
from sidecar.protocol.records import Outcome, Plan
from sidecar.protocol.states import OutcomeStatus

_NAME: Final = re.compile(r"([0-9]{12,18})\.json")

_STEP: Final = 100
"""Records that a command reads before it folds them."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Hold the position of a reader in a journal."""

    through: int = 0
    open: Plan | None = None
    newest: tuple[str, str] | None = None  # path and nonce of the record that was read last


class Journal:
    """Read the journal of a run, and write the record after those that were read.

    `through` is the newest plan that was read. Every outcome up to it was read as well, except that of `open`, the plan
    that has no outcome yet. Plan N+1 may be created only by a daemon that has read every outcome up to N. So no daemon
    proposes while a plan is open, and none proposes a checkpoint that an unread plan has settled.

    An impossible record or a hole raises `StateUnavailableError` during `grace`, and afterwards `RecordError` or
    `StorageLostError`, which are final. Impossible are a torn record and the record of another plan. A record that is
    whole, but that no daemon writes, is set aside: see `journal_records`.
    """

    def __init__(self, storage: Storage, run: str, grace: GracePeriod | None = None) -> None:
        self.storage = storage
        self.run = run
        self._grace = grace or GracePeriod()
        self._at = _Place()
        self._expected = 0  # the newest plan that is known from elsewhere
        self._expected_by = ""  # which file or node knows it
        self._ends = False  # a listing has proved that no record follows the end
        self._segments = Segments(storage, run)
        self._confirmed: str | None = None  # nonce of a single file that no segment held after it was read

    @property
    def through(self) -> int:
        """Return the number of the newest plan that was read."""
        return self._at.through

    @property
    def open(self) -> Plan | None:
        """Return the newest plan if it has no outcome yet."""
        return self._at.open

    def expect(self, plan: int, by: str) -> None:
        """Note that a plan of this run existed, as `by` says: a journal that ends before it has lost records."""
        if plan > self._expected:
            self._expected, self._expected_by = plan, by

    def resume(self, plan: int, plan_nonce: str, outcome_nonce: str | None) -> bool:
        """Continue after a closed plan if its record and its outcome have these nonces; return whether they have.

        `outcome_nonce` is `None` for a plan that only settled, which has no outcome. An impossible record gives False
        here, and `read_new` reports it. Raises `StorageError` if storage does not answer.
        """
        self._at = _Place(plan - 1)
        known = False
        try:
            self._segments.begin()
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

    def skip_to(self, plan: int) -> None:
        """Continue at a plan, for a reader that has read later ones: so the plan before it is closed."""
        self._at = _Place(plan - 1)

    def read_new(self, limit: int = sys.maxsize) -> list[Plan | Outcome]:
        """Read further records, and return at most `limit` that were not returned yet, in the order of the journal.

        Raises `RecordError` with the name of a file that cannot be decoded, `StorageLostError` for a record of another
        run, and `StorageError` if storage does not answer. Records that were read before the error are returned first,
        and the next call raises the error.
        """
        start = self._at
        try:
            found = self._read_on(limit)
        except SidecarError:
            if not self._was_moved(start):
                raise
            return self.read_new(limit)
        try:
            moved = bool(found) and self._was_moved(start, found)
        except SidecarError:
            self._at = start  # they are read again once storage answers
            raise
        return self.read_new(limit) if moved else found

    def read_to_end(self) -> Iterator[Plan | Outcome]:
        """Yield all records up to the end of the journal, for a command. Raises as `read_new` and `reaches_end`.

        Records come in short steps, so that the caller folds them between two answers of storage. After a long step,
        a timeout would take the time of the fold for a storage that is silent.
        """
        while True:
            found = self.read_new(_STEP)
            yield from found
            if len(found) < _STEP and self.reaches_end():
                return

    def reaches_end(self) -> bool:
        """Return whether the whole journal was read; if not, others wrote records meanwhile.

        Once true, the answer stays true, since numbers follow each other from then on; but a program that was suspended
        may find later that what follows is in a segment. Raises `StorageLostError` for a hole: a record exists after
        the end, or a plan that is known from elsewhere is absent.
        """
        if self._ends:
            return not (self._advance() and self._segments.covers(_next_number(self._at)))
        with self._grace.on("end"):
            if (evidence := self._after_end()) is not None:
                self._sync()
                if self._is_in_segment(_next_number(self._at)) or self._is_there(self._next_path()):
                    return False
                raise StorageLostError(f"the journal has a hole: {self._next_path()} is missing, {evidence}: {REMEDY}")
        self._ends = True
        return True

    def propose(self, plan: Plan) -> bool:
        """Create the next plan, and return whether it is this one; if not, another daemon created it first.

        In both cases `read_new` returns the plan that exists. Raises `ValueError` if this reader may not create that
        number, `StorageLostError` if records of the journal are missing, and `StorageError` if the state directory is
        not available or storage did not answer. After an error the plan may exist or not; `read_new` finds out.
        """
        if plan.run != self.run or plan.plan != self.through + 1 or self.open is not None:
            raise ValueError(f"plan {plan.plan} of run {plan.run} may not follow {self._described()}")
        return self.reaches_end() and self._create(plan, plan_path(plan.plan))

    def close(self, outcome: Outcome) -> bool:
        """Create the outcome of the open plan. The return value and the errors are those of `propose`."""
        if outcome.run != self.run or self.open is None or outcome.plan != self.open.plan:
            raise ValueError(f"outcome {outcome.plan} of run {outcome.run} may not follow {self._described()}")
        if why := why_of_another(outcome, self.open):
            raise ValueError(f"the outcome {why}")
        return self._create(outcome, outcome_path(outcome.plan))

    def write_result(self, closed: Closed) -> None:
        """Write the result of a checkpoint for people, if it is not there yet.

        The file `evaluations/<checkpoint>/result.json` is a view of the journal, and is written again when it is lost.
        It holds `{"plan": …, "outcome": …}`, both as in the journal.
        """
        if closed.outcome.status != OutcomeStatus.SUCCEEDED or closed.plan.checkpoint is None:
            raise ValueError(f"plan {closed.plan.plan} has no result: it {closed.outcome.status}")
        path = f"evaluations/{closed.plan.checkpoint.folder}/result.json"
        found = self.storage.read(path, limits_of(Closed).size)
        if found is None or not _is_result_of(closed, found):
            self.storage.replace(path, dumps(closed))

    # -- reading -----------------------------------------------------------------------------------------------------

    def _read_on(self, limit: int) -> list[Plan | Outcome]:
        """Read further records, as `read_new`."""
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
        newest = found.pop()  # it is read again by the next call if it does not turn out to be durable
        try:
            if self._stays(newest):
                self._at = place
                found.append(newest)
        except SidecarError:
            if not found:
                raise
        return found

    def _was_moved(self, start: _Place, found: Sequence[Plan | Outcome] = ()) -> bool:
        """Return whether single files that were read since `start` may not count, and go back there if so.

        A number that is in a segment by now is read from there. Its single file may be missing, or be the late creation
        of a suspended daemon. A segment is visible before any of its single files is removed, so looking for it after
        they were read finds it.
        """
        known = self._segments.end
        if len(found) == 1 and found[0].nonce == self._confirmed:
            return False
        if not self._advance(sync=True):
            return False
        if max(known + 1, _next_number(start)) > self._segments.end:
            return False
        self._at = start
        return True

    def _stays(self, record: Plan | Outcome) -> bool:
        """Make the newest record that was read durable, and return whether it is still there.

        Its creator may not have made it durable yet. If storage crashed then, this daemon would have acted on a record
        that no longer exists. Earlier records are durable: the creator of the next record did this before it went on.
        """
        if self._segments.covers(record.plan):
            return True  # if its name is lost in a crash, no single file was removed yet
        folder, path = ("plans", plan_path) if isinstance(record, Plan) else ("outcomes", outcome_path)
        self.storage.sync(folder)
        return self._nonce_at(path(record.plan)) == record.nonce

    def _nonce_at(self, path: str) -> str | None:
        """Return the nonce of the record that is there now; `None` if there is none."""
        if (data := self.storage.read(path, _bytes_of(path))) is None:
            return None
        with self._grace.on(path):
            return nonce_of(path, data)

    def _read_next(self) -> Plan | Outcome | None:
        """Return the next record, and advance behind it; None if there is none."""
        with self._grace.on(self._next_path()):
            self._segments.begin()
            if self.open is not None:
                return self._read_outcome(self.open)
            return self._read_plan(self.through + 1)

    def _read_plan(self, number: int) -> Plan | None:
        """Return the plan of a number, and advance to it; None if there is none."""
        data = self._data(plan_path, number)
        if data is None:
            return None
        plan = decode_plan(data, number, self.run)
        self._at = _Place(number, plan if needs_outcome(plan) else None, (plan_path(number), plan.nonce))
        return plan

    def _read_outcome(self, plan: Plan) -> Outcome | None:
        """Return the outcome of a plan, and advance behind it; None if there is none."""
        data = self._data(outcome_path, plan.plan)
        if data is None:
            return None
        outcome = decode_outcome(data, plan)
        self._at = _Place(plan.plan, None, (outcome_path(plan.plan), outcome.nonce))
        return outcome

    def _data(self, path_of: Callable[[int], str], number: int) -> bytes | None:
        """Return the bytes of a record: from a segment if one holds the number, else from the single file."""
        if self._segments.covers(number):
            plan, outcome = self._segments.read(number)
            return plan if path_of is plan_path else outcome
        self._segments.forget()
        path = path_of(number)
        data = self.storage.read(path, _bytes_of(path))
        if data is None or path != plan_path(1) or not is_marker(data):
            return data
        if not self._advance(sync=True):
            raise StorageLostError(f"{segment_path(1)} is missing, and {path} says that its plan is there: {REMEDY}")
        return self._data(path_of, number)

    # -- the end -----------------------------------------------------------------------------------------------------

    def _after_end(self) -> str | None:
        """Return the evidence that records existed after the end, as part of a sentence; `None` if there is none."""
        for folder in JOURNAL_FOLDERS:
            numbers = [int(match[1]) for name in self.storage.names(folder) if (match := _NAME.fullmatch(name))]
            if numbers and max(numbers) > self.through - (folder == "outcomes" and self.open is not None):
                return f"but {folder}/{max(numbers):012d}.json is there"
        if self._expected > self.through:
            return f"and {self._expected_by} knows plan {self._expected}, while the journal ends at {self.through}"
        return None

    def _create(self, record: Plan | Outcome, path: str) -> bool:
        """Create a record after the newest one that was read, and return whether this daemon created it.

        The record is refused if an older run, or a journal that lost records, already has a neighbour of it. Raises
        `ValueError` for a record that other daemons would set aside.
        """
        written = encode(record, self.open)
        if why := unreadable(record, written):
            raise ValueError(f"{path} would be set aside: {why}")
        check_run(self.storage, self.run, self._grace)  # the number would be wrong in a run that began meanwhile
        if self._at.newest is not None:
            newest, nonce = self._at.newest
            with self._grace.on(f"{newest} stands"):
                if self._nonce_at(newest) != nonce and not self._is_in_segment(self.through):
                    raise StorageLostError(f"{newest}, which this program has read, is not there any more: {REMEDY}")
        with self._grace.on("neighbour"):
            if isinstance(record, Plan):
                self._reject_orphan(record.plan)
            else:
                self._reject_gap(record.plan)
        data = create_and_read(self.storage, path, written, _bytes_of(path))
        if self._is_in_segment(record.plan):
            return False  # the name was free only because the record that decided is in a segment now
        with self._grace.on(path):
            self._confirmed = nonce_of(path, data)
        return self._confirmed == record.nonce

    def _reject_orphan(self, number: int) -> None:
        """Raise if a plan is to be created whose outcome exists: that belongs to another evaluation."""
        orphan, plan = outcome_path(number), plan_path(number)
        if not self._is_there(orphan) or self._is_there(plan):
            return
        if not self._is_in_segment(number):
            raise StorageLostError(f"the journal has a hole: {plan} is missing, but {orphan} is there: {REMEDY}")

    def _reject_gap(self, number: int) -> None:
        """Raise if an outcome is to be created whose next plan exists: the outcome existed, and may have differed."""
        outcome, later = outcome_path(number), plan_path(number + 1)
        if not self._is_there(later):
            return
        self._sync()
        if not self._is_there(outcome) and not self._is_in_segment(number):
            raise StorageLostError(f"the journal has a hole: {outcome} is missing, but {later} is there: {REMEDY}")

    def _advance(self, *, sync: bool = False) -> bool:
        """Look for new segments, as `Segments.advance`. A damaged one is impossible, like any other record."""
        with self._grace.on("segments"):
            return self._segments.advance(sync=sync)

    def _is_in_segment(self, number: int) -> bool:
        """Return whether a segment holds a number. Every segment that was visible before the call is found."""
        if not self._segments.covers(number):
            self._advance(sync=True)
        return self._segments.covers(number)

    def _is_there(self, path: str) -> bool:
        """Return whether a record exists, as a reader finds it. A file of any content does."""
        return self.storage.read(path, 0) is not None

    def _sync(self) -> None:
        for folder in JOURNAL_FOLDERS:
            self.storage.sync(folder)  # an NFS client that opens a folder asks its server again

    def _next_path(self) -> str:
        return plan_path(self.through + 1) if self.open is None else outcome_path(self.through)

    def _described(self) -> str:
        """Return the reader's position as part of a sentence."""
        return (
            f"plan {self.through} of run {self.run}, {'still open' if self.open else 'closed'}: read the journal first"
        )


def read_history(storage: Storage) -> JournalState:
    """Return the fold of a run's whole journal; an empty one if there is no run. Raises as `Journal`."""
    history = JournalState()
    if (run := read_run(storage)) is not None:
        for record in Journal(storage, run).read_to_end():
            history.apply(record)
    return history


def _bytes_of(path: str) -> int:
    """Return how many bytes of a record are read."""
    return PLAN_BYTES if path.startswith("plans/") else OUTCOME_BYTES


def _next_number(place: _Place) -> int:
    """Return the number of the plan or outcome that follows a place."""
    return place.through + (place.open is None)


def _is_result_of(closed: Closed, data: bytes) -> bool:
    """Return whether the result file is whole. A crash of the machine may tear it, because it is not fsynced."""
    try:
        found = loads(Closed, data)
    except RecordError:
        return False
    return found.outcome.nonce == closed.outcome.nonce
