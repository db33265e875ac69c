"""Make the events of sinks from the entries of the journal, and find those that a sink does not have yet.

The place of an entry is its plan and a number: 1, 2, … for the settlements in the plan, and `END` for its end. Places
are ordered as the entries are. `stored_entries` reads the journal; everything else is pure.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from sidecar.coordination.journal import Journal
from sidecar.coordination.journal_state import Closed, Entry, EntryLog, JournalState, Settled
from sidecar.coordination.run import read_run
from sidecar.coordination.storage import Storage
from sidecar.protocol.states import OutcomeStatus, Verdict
from sidecar.publishing.sinks.sink import Evaluation, Event, Failure, RunEnd
from sidecar.system.clock import seconds_of

Place = tuple[int, int]

END: Final = sys.maxsize
"""The number of a plan's end: it comes after all of the plan's settlements."""

_GIVEN_UP: Final = frozenset({Verdict.FAILED, Verdict.CORRUPT, Verdict.VANISHED})
_RECORDS_AT_ONCE: Final = 256


def placed(entries: Iterable[Entry]) -> Iterator[tuple[Place, Entry]]:
    """Yield each entry with its place. The entries must begin with the first one of a plan."""
    plan, settled = 0, 0
    for entry in entries:
        if entry.plan.plan != plan:
            plan, settled = entry.plan.plan, 0
        settled += isinstance(entry, Settled)
        yield (plan, settled if isinstance(entry, Settled) else END), entry


def newest_place(history: JournalState) -> Place:
    """Return the place of the newest entry. A plan that was only begun counts as handled up to its last settlement."""
    return history.through, END if history.open is None else END - 1


def reaches_back(entries: Sequence[Entry], place: Place) -> bool:
    """Return whether the newest entries of a journal hold all of those after a place, and all of the place's plan."""
    first_needed = place[0] + (place[1] == END)
    return bool(entries) and entries[0].plan.plan < first_needed


def is_taken(entry: Entry, takes: frozenset[type]) -> bool:
    """Return whether an entry is an event of one of these classes."""
    return _class_of(entry) in takes


def event_of(entry: Entry, place: Place, run: str, after: int) -> Event | None:
    """Return an entry as an event; None if it is none. Its time is later than `after`, a Unix time in milliseconds."""
    kind = _class_of(entry)
    if kind is None:
        return None
    identity = f"{entry.plan.run}-{place[0]}" + ("" if place[1] == END else f"-{place[1]}")
    seconds = happened_at(entry)
    milliseconds = max(after if seconds is None else round(1000 * seconds), after + 1)
    if isinstance(entry, Settled):
        settlement = entry.settlement
        return Failure(
            run=run,
            plan=entry.plan.plan,
            checkpoint=settlement.name,
            digest=settlement.digest,
            step=settlement.step,
            final=True,
            kind=settlement.verdict,
            message=settlement.reason,
            milliseconds=milliseconds,
            id=identity,
        )
    plan, outcome, checkpoint = entry.plan, entry.outcome, entry.plan.checkpoint
    assert checkpoint is not None  # `_class_of` looked
    if outcome.result is not None:
        return Evaluation(
            run=run,
            plan=plan.plan,
            checkpoint=checkpoint,
            result=outcome.result,
            milliseconds=milliseconds,
            id=identity,
        )
    return Failure(
        run=run,
        plan=plan.plan,
        checkpoint=checkpoint.name,
        digest=checkpoint.digest,
        step=checkpoint.step,
        final=False,
        kind=outcome.kind or "unknown",
        message=outcome.message or "",
        milliseconds=milliseconds,
        id=identity,
        attempt=plan.attempt,
        node=outcome.node,
    )


def evaluations(entries: Iterable[tuple[Place, Entry]], run: str, through: Place) -> Iterator[Evaluation]:
    """Yield the evaluations up to a place, that one included. Their times increase."""
    milliseconds = 0
    for place, entry in entries:
        if place > through:
            return
        event = event_of(entry, place, run, milliseconds)
        if isinstance(event, Evaluation):
            milliseconds = event.milliseconds
            yield event


def happened_at(entry: Entry) -> float | None:
    """Return the Unix time of an entry; None if its record holds none."""
    return seconds_of(entry.outcome.completed_at if isinstance(entry, Closed) else entry.plan.proposed_at)


def run_end(run: str, history: JournalState, reason: str, failed: int) -> RunEnd:
    """Return the end of a run at this state of the journal. Who delivers it adds the time and the id."""
    return RunEnd(
        run=run,
        plan=history.through,
        reason=reason,
        failed=failed,
        checkpoints={status: len(keys) for status, keys in history.totals.checkpoints.items()},
        best={f"{eval_set}/{name}": best for (eval_set, name), best in history.totals.best.items()},
        milliseconds=0,
        id="",
    )


def stored_entries(storage: Storage) -> Iterator[Entry]:
    """Yield all entries of the journal in storage, without holding more than a few. Raises as `Journal`."""
    run = read_run(storage)
    if run is None:
        return
    journal, state = Journal(storage, run), JournalState(log=EntryLog(keep=1))
    while True:
        records = journal.read_new(_RECORDS_AT_ONCE)
        if not records and journal.reaches_end():
            return
        for record in records:
            yield from state.apply(record)


def _class_of(entry: Entry) -> type[Event] | None:
    if isinstance(entry, Settled):
        return Failure if entry.settlement.verdict in _GIVEN_UP else None
    if entry.plan.checkpoint is None:
        return None
    if entry.outcome.result is not None:
        return Evaluation
    return Failure if entry.outcome.status == OutcomeStatus.FAILED else None
