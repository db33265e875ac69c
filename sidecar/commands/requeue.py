"""Reopen checkpoints for evaluation by a record in the journal, like any plan.

Plan N+1 may only follow outcome N, so a requeue waits for the end of an open plan.
"""

import os
import secrets
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from sidecar.checkpoints.catalog import Catalog
from sidecar.checkpoints.scan import ScanResult
from sidecar.clock import Clock, timestamp
from sidecar.commands.status.collect import RunStatus
from sidecar.coordination.journal import Journal
from sidecar.coordination.journal_state import Entry, JournalState, Settled
from sidecar.coordination.run import read_run
from sidecar.coordination.storage import Storage
from sidecar.errors import SettingsError, StorageError, VanishedError
from sidecar.policy.rules import Rules
from sidecar.records import Key, Plan, Settlement
from sidecar.states import OutcomeStatus, Verdict

# A daemon with a queue proposes a few milliseconds after an outcome. A requeue that is later waits for the next one.
_SHORTEST_PAUSE_SECONDS: Final = 0.005
_DIGEST_CHARACTERS: Final = 12
_NAMED: Final = 3

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Name the checkpoints to reopen: some names, and on request all that failed for good, or all evaluated ones.

    A name of an evaluated checkpoint is refused without `again`.
    """

    names: Sequence[str]
    all_failed: bool = False
    again: bool = False
    all_evaluated: bool = False


@dataclass(frozen=True, slots=True)
class _Ended:
    """Hold a checkpoint that has ended, and its end."""

    key: Key
    step: int | None
    how: str

    def requeued(self, by: str) -> Settlement:
        """Return the settlement that reopens it."""
        name, digest = self.key
        reason = f"by {by}; it was {self.how}"
        return Settlement(name=name, digest=digest, step=self.step, verdict=Verdict.REQUEUED, reason=reason)


def folder_and_names(
    given: Sequence[str], directory: str | None = None, configured: Path | None = None
) -> tuple[Path | None, list[str]]:
    """Split checkpoints, as typed, into their directory, if they name one, and their names in it.

    With a separate `directory`, names may be paths of sub-folders. The same holds for the `configured` directory,
    unless a path leads to another folder that exists. Raises `SettingsError` if the checkpoints lie in
    several directories.
    """
    if directory is None and configured is not None and not any(_lies_beside(each, configured) for each in given):
        directory = str(configured)
    if directory is not None:
        above = f"{os.path.abspath(directory).rstrip('/')}/"  # noqa: PTH100 - as typed: no link is followed
        places = [(os.path.abspath(each), each.rstrip("/")) for each in given]  # noqa: PTH100 - as above
        names = [place.removeprefix(above) if place.startswith(above) else name for place, name in places]
        return None, [each.removesuffix(".index") for each in names]
    folders = {os.path.dirname(each.rstrip("/")) for each in given} - {""}  # noqa: PTH120 - as typed: `.` and none differ
    if len(folders) > 1:
        raise SettingsError(f"one run at a time: {', '.join(sorted(folders))} are several directories")
    names = [os.path.basename(each.rstrip("/")) for each in given]  # noqa: PTH119 - as above
    return (Path(folders.pop()) if folders else None), [each.removesuffix(".index") for each in names]


def _lies_beside(typed: str, directory: Path) -> bool:
    """Return whether a checkpoint was typed as a path in an existing folder outside of that directory."""
    folder = os.path.dirname(typed.rstrip("/"))  # noqa: PTH120 - as typed
    inside = f"{os.path.abspath(folder)}/".startswith(f"{os.path.abspath(directory)}/")  # noqa: PTH100 - no link is followed
    return bool(folder) and not inside and Path(folder).is_dir()


@dataclass(slots=True)
class _Reader:
    """Read on in the journal, and keep the records."""

    journal: Journal
    history: JournalState = field(default_factory=JournalState)

    def read_on(self) -> Plan | None:
        """Read to the end, and return the open plan. Raises `StorageLostError` if an earlier record is missing."""
        for record in self.journal.read_to_end():
            self.history.apply(record)
        return self.history.open


def requeue(
    storage: Storage,
    catalog: Catalog,
    wanted: Wanted,
    *,
    by: str,
    clock: Clock,
    wait_seconds: float,
    pause: Callable[[float], None],
    tell: Tell,
    dry_run: bool = False,
    command: Callable[[str], str] = lambda name: f"sidecar requeue --again {shlex.quote(name)}",
) -> tuple[Settlement, ...]:
    """Reopen checkpoints by a record of the journal, or by several if one cannot hold all, and return the settlements.

    `tell` gets sentences for the person who waits. `command` returns the command line that
    evaluates an evaluated checkpoint again. A dry run waits for nothing and writes nothing.

    Raises:
        SettingsError: one of the names has nothing to reopen. Nothing is written then.
        VanishedError: the files of one are gone. Nothing is written then.
        StorageError: the storage does not answer, or the open plan did not end in `wait_seconds`.
    """
    run = read_run(storage)
    if run is None:
        raise SettingsError("there is no run here yet, so there is nothing to requeue: name another --checkpoint-dir")
    reader, look, until = _Reader(Journal(storage, run)), catalog.scan(), clock.now() + wait_seconds
    told = set[str]()

    def tell_once(sentence: str) -> None:
        if sentence not in told:
            told.add(sentence)
            tell(sentence)

    reader.read_on()
    chosen = _choose(reader.history, wanted, look, tell_once, command)  # report a mistake now, not after the wait
    if dry_run:
        return tuple(each.requeued(by) for each in chosen)
    most, written = Rules().most_settled, tuple[Settlement, ...]()
    while True:
        _wait_for_end(reader, clock, until, pause, tell_once)
        done = {each.key for each in written}  # some of these may have been evaluated again by now
        chosen = [each for each in _choose(reader.history, wanted, look, tell_once, command) if each.key not in done]
        settles = tuple(each.requeued(by) for each in chosen[:most])
        if not settles or reader.journal.propose(_plan(reader.history, run, settles, by, clock)):
            written += settles
            if len(chosen) <= most:
                return written
            names = {each.name for each in settles}
            wanted = replace(wanted, names=[name for name in wanted.names if name not in names])
        elif clock.now() >= until:
            raise StorageError("another daemon wrote the journal at this very moment: try again")


def _wait_for_end(reader: _Reader, clock: Clock, until: float, pause: Callable[[float], None], tell: Tell) -> None:
    """Read on until no plan is open. Raises `StorageError` if one still is when the time is over."""
    asked_at = clock.now()
    while (plan := reader.read_on()) is not None:
        now = clock.now()
        is_open = f"plan {plan.plan} ({plan.checkpoint.name if plan.checkpoint else 'no checkpoint'}) is open"
        if now >= until:
            raise StorageError(f"{is_open}, and a requeue can only follow its end: try again then")
        tell(f"{is_open}: waiting for its end (at most --wait-seconds)")
        pause(max(_SHORTEST_PAUSE_SECONDS, now - asked_at))  # slow storage is left alone half of the time
        asked_at = clock.now()


def what_next(status: RunStatus) -> str:
    """Return what will happen to a requeued checkpoint, as a sentence."""
    plan = status.history.open
    if status.proposer is not None:
        when = f" after plan {plan.plan}" if plan is not None and plan.checkpoint is not None else ""
        return f"{status.proposer} will take it up{when}"
    there = [observed.heartbeat for observed in status.members if observed.fresh(status.lease_seconds)]
    workers = [f"{each.node} ({each.state})" for each in there if each.role == "worker"]
    if workers:
        return f"it will be evaluated once a worker is ready: {', '.join(workers)}"
    if there:
        return "only the chief's daemon beats: it will be evaluated when a worker's runs"
    return "no daemon beats: it will be evaluated when one runs"


def _choose(
    history: JournalState, wanted: Wanted, look: ScanResult, tell: Tell, command: Callable[[str], str]
) -> list[_Ended]:
    """Return the checkpoints to reopen, each once."""
    chosen = {}
    if wanted.all_failed:
        failed = [each for each in _ended(history) if each.how == Verdict.FAILED]
        for each in failed:
            if gone := _gone(each, look):
                tell(f"{gone}, so it stays given up")
            else:
                chosen[each.key] = each
        if not failed:
            tell("no checkpoint failed for good: nothing to requeue")
    if wanted.all_evaluated:
        chosen |= {each.key: each for each in _evaluated(history, look, tell)}
    for name in wanted.names:
        each = _newest(name, history, wanted, look, tell, command)
        chosen[each.key] = each
    return list(chosen.values())


def _evaluated(history: JournalState, look: ScanResult, tell: Tell) -> list[_Ended]:
    """Return all evaluated checkpoints whose files are there, the oldest first, and report those that are gone."""
    evaluated = [each for each in reversed(list(_ended(history, again=True))) if each.key in history.succeeded]
    gone = [each.key[0] for each in evaluated if each.key not in look.by_key]
    if gone:
        more = f" and {len(gone) - _NAMED} more" if len(gone) > _NAMED else ""
        tell(f"not requeued, as their files are gone: {', '.join(gone[:_NAMED])}{more}{_below(gone)}")
    if not evaluated:
        tell("no checkpoint was evaluated that is not waiting already: nothing to requeue")
    return [each for each in evaluated if each.key in look.by_key]


def _newest(
    name: str, history: JournalState, wanted: Wanted, look: ScanResult, tell: Tell, command: Callable[[str], str]
) -> _Ended:
    """Return the newest content of this name whose files are there."""
    known = [each for each in _ended(history, again=wanted.again) if each.key[0] == name]
    if not known:
        raise SettingsError(_nothing_to_requeue(name, history, look, command))
    there = [each for each in known if not _gone(each, look)]
    if not there:
        raise VanishedError(f"{_gone(known[0], look)}, so it cannot be evaluated again; save it again instead")
    if len(known) > 1:
        others = ", ".join(_digits(each) for each in known if each is not there[0])
        ended = "evaluated or given up" if wanted.again else "given up"
        tell(
            f"{name} was {ended} with {len(known)} contents: {_digits(there[0])} is taken, the newest that is there, "
            f"not {others}"
        )
    return there[0]


def _ended(history: JournalState, *, again: bool = False) -> Iterator[_Ended]:
    """Yield what could be reopened, the newest first, each once: what was given up, with `again` what was evaluated."""
    told = set[Key]()
    for entry in reversed(history.entries):
        if (each := _end(entry)) is None or each.key in told:
            continue
        succeeded = each.key in history.succeeded
        if (again and succeeded and each.how == "evaluated") or (not succeeded and each.key in history.settled):
            told.add(each.key)
            yield each


def _end(entry: Entry) -> _Ended | None:
    """Return the end of a checkpoint that an entry records, if it does."""
    if isinstance(entry, Settled):
        settlement = entry.settlement
        return _Ended(settlement.key, settlement.step, settlement.verdict)
    checkpoint = entry.plan.checkpoint
    if checkpoint is None or entry.outcome.status != OutcomeStatus.SUCCEEDED:
        return None
    # A number in the order of the journal is not a step: the next reader numbers it anew.
    return _Ended(checkpoint.key, None if checkpoint.step_source == "order" else checkpoint.step, "evaluated")


def _nothing_to_requeue(name: str, history: JournalState, look: ScanResult, command: Callable[[str], str]) -> str:
    given_up = ", ".join(sorted({each.key[0] for each in _ended(history)})) or "none"
    there = [each.checkpoint.key for each in look.found if each.checkpoint.name == name]
    if history.succeeded.intersection(there):
        return f"{name!r} was evaluated: to evaluate it again, type `{command(name)}`; given up: {given_up}"
    if any(key[0] == name for key in history.succeeded) and not there:
        why = f"was evaluated, and its files are gone{_below([name])}"
    else:
        why = "is waiting already" if there else "was not given up"
    return f"{name!r} {why}, so there is nothing to requeue; given up: {given_up}"


def _digits(ended: _Ended) -> str:
    return ended.key[1][:_DIGEST_CHARACTERS]


def _gone(ended: _Ended, look: ScanResult) -> str | None:
    """Return why a checkpoint cannot be evaluated again; None if its files are in the directory or pinned."""
    alike = [each.checkpoint for each in look.found if each.checkpoint.name == ended.key[0]]
    if ended.key in {each.key for each in alike}:
        return None
    broken = {name for name, _ in look.waiting} | {each.name for each in look.corrupt}
    if ended.how != "evaluated" and ended.key[0] in broken:
        return None  # a broken checkpoint has no digest to compare
    if ended.how == Verdict.CORRUPT and alike:
        return None  # as above
    name = f"{ended.key[0]} (digest {_digits(ended)})"
    if alike:
        return f"{name} is gone: what has its name now is another checkpoint, which is evaluated without a requeue"
    if look.missing:
        return f"{name} is gone with the checkpoint directory, and it is not pinned"
    return f"{name} is gone: its files are neither in the checkpoint directory nor pinned{_below([ended.key[0]])}"


def _below(names: Iterable[str]) -> str:
    """Return another possible reason that the files were not found."""
    if not any("/" in name for name in names):
        return ""
    return " (sub-folders are looked into where checkpoint_glob names them, here as for the daemons)"


def _plan(history: JournalState, run: str, settles: tuple[Settlement, ...], by: str, clock: Clock) -> Plan:
    return Plan(
        plan=history.through + 1,
        run=run,
        nonce=secrets.token_hex(16),
        checkpoint=None,
        attempt=0,
        members=None,
        settles=settles,
        task=None,
        proposer=by,
        proposed_at=timestamp(clock.wall()),
        line_open=history.backlog_cutoff_pending,
    )
