"""Carry out `sidecar requeue`: reopen checkpoints by a plan in the journal that settles them as requeued.

Plan N+1 may only follow outcome N, so a requeue waits for the end of an open plan.
"""

import os
import secrets
import shlex
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import typer

from sidecar.checkpoints.catalog import Catalog
from sidecar.checkpoints.scan import ScanResult
from sidecar.checkpoints.subfolder_hint import similar_folder
from sidecar.commands.from_settings import export_rule
from sidecar.commands.hints import evaluates_again
from sidecar.commands.load import configured_directory
from sidecar.commands.status.collect import OBSERVED_BEATS, RunStatus, observe_for
from sidecar.commands.status.observe import observer_of
from sidecar.coordination.journal import Journal
from sidecar.coordination.journal_state import Entry, EntryLog, JournalState, Settled
from sidecar.coordination.run import read_run
from sidecar.coordination.storage import Storage
from sidecar.errors import SettingsError, StorageError, VanishedError
from sidecar.policy.node_identity import node_name
from sidecar.policy.rules import PlanRules
from sidecar.policy.settlements import settled_by_one_plan
from sidecar.protocol.records import Key, Plan, Settlement, folder_name
from sidecar.protocol.states import OutcomeStatus, Verdict
from sidecar.retention.exports.export_folder import opened_exports
from sidecar.settings import Settings
from sidecar.system.bucket_url import is_url
from sidecar.system.clock import Clock, timestamp
from sidecar.system.plain_text import listed, printable

# A daemon with a queue proposes a few milliseconds after an outcome. A slower requeue waits for one more plan.
_SHORTEST_PAUSE_SECONDS: Final = 0.005
_DIGEST_CHARACTERS: Final = 12
_NAMES_SHOWN: Final = 3
_GIVEN_UP_SHOWN: Final = 20

Report = Callable[[str], None]
"""Receive a sentence for the person at the terminal."""


@dataclass(frozen=True, slots=True)
class Request:
    """Name the checkpoints to reopen."""

    # Their names; on the command line also their paths, with the directory first or in each of them
    names: Sequence[str]
    all_failed: bool = False  # whether to reopen all checkpoints that failed for good, too
    # Whether evaluated checkpoints may be reopened. Without it, the name of one is an error.
    again: bool = False
    all_evaluated: bool = False  # whether to reopen all evaluated checkpoints, too


@dataclass(frozen=True, slots=True)
class _Ended:
    """Describe a checkpoint that has ended. `how` is its verdict, or `evaluated`."""

    key: Key
    step: int | None
    how: str

    @property
    def digest(self) -> str:
        """Return the beginning of its digest, as people see it."""
        return self.key[1][:_DIGEST_CHARACTERS]

    def requeued(self, by: str) -> Settlement:
        """Return the settlement that reopens the checkpoint."""
        name, digest = self.key
        reason = f"by {by}; it was {self.how}"
        return Settlement(name=name, digest=digest, step=self.step, verdict=Verdict.REQUEUED, reason=reason)


def requeue_typed(flags: dict[str, Any], typed: Request, *, dry_run: bool, wait_seconds: float) -> None:
    """Reopen the checkpoints that a person typed, and print each one.

    Raises `SettingsError` if no checkpoint is named, or the switches contradict each other.
    """
    if typed.all_evaluated and not typed.again:
        raise SettingsError("--all means all that were evaluated: add --again, or give --all-failed for what failed")
    place, names = folder_and_names(typed.names, flags["checkpoint_dir"], configured_directory(flags))
    if not names and not typed.all_failed and not typed.all_evaluated:
        more = " or --all" if typed.again else ""
        raise SettingsError(f"nothing is named: give names of checkpoints, such as ckpt-5, or --all-failed{more}")
    settings, storage_timeout, observer = observer_of(
        flags | {"checkpoint_dir": flags["checkpoint_dir"] or place}, asks_bucket=True, reads_only=False
    )
    waits = flags["wait"] is not False
    reopened = storage_timeout.call(
        lambda: requeue(
            observer.storage,
            observer.catalog,
            replace(typed, names=names),
            by=node_name(settings, os.environ),
            clock=observer.clock,
            wait_seconds=wait_seconds if waits else 0.0,
            pause=time.sleep,
            report=lambda sentence: typer.echo(printable(sentence), err=True),
            dry_run=dry_run,
            command=lambda name: evaluates_again(settings, name),
            exported=_exported(settings),
        )
    )
    one, several = ("would be", "would be") if dry_run else ("is", "are")
    for settlement in reopened:
        typer.echo(printable(f"{settlement.name} {one} requeued ({settlement.reason})"))
    if typed.all_evaluated and reopened:
        typer.echo(f"{len(reopened)} {one if len(reopened) == 1 else several} requeued")
    if reopened and waits and not dry_run:
        storage_timeout.call(lambda: observe_for(observer, OBSERVED_BEATS * settings.beat_seconds, time.sleep))
        typer.echo(printable(outlook(storage_timeout.call(observer.collect))))


def _exported(settings: Settings) -> list[str]:
    """Return the names of the exports, if the settings here export any: only then daemons turn them into pins again."""
    if export_rule(settings) is None:
        return []
    try:
        with opened_exports(settings.run_dir) as exports:
            return exports.names()
    except OSError:
        return []


def folder_and_names(
    typed: Sequence[str], directory: str | None = None, configured: Path | None = None
) -> tuple[Path | None, list[str]]:
    """Split what was typed into the directory of the checkpoints, if it names one, and their names in it.

    The directory may come first, as in all commands, or be a part of the checkpoints' paths.

    With a separate `directory`, names may be paths of sub-folders. The same holds for the `configured` directory,
    unless a path leads to another folder that exists. Raises `SettingsError` if the checkpoints lie in
    several directories.
    """
    if directory is None and typed and _is_checkpoint_dir(typed):
        place, typed = Path(typed[0]), typed[1:]
        return place, folder_and_names(typed, str(place))[1]
    if directory is None and configured is not None and not any(_lies_outside(path, configured) for path in typed):
        directory = str(configured)
    if directory is not None:
        parent = f"{os.path.abspath(directory).rstrip('/')}/"  # noqa: PTH100 - as typed: no link is followed
        paths = [(os.path.abspath(path), path.rstrip("/")) for path in typed]  # noqa: PTH100 - as above
        names = [path.removeprefix(parent) if path.startswith(parent) else name for path, name in paths]
        return None, [name.removesuffix(".index") for name in names]
    folders = {os.path.dirname(path.rstrip("/")) for path in typed} - {""}  # noqa: PTH120 - as typed: `.` and none differ
    if len(folders) > 1:
        raise SettingsError(f"one run at a time: {', '.join(sorted(folders))} are several directories")
    names = [os.path.basename(path.rstrip("/")) for path in typed]  # noqa: PTH119 - as above
    return (Path(folders.pop()) if folders else None), [name.removesuffix(".index") for name in names]


def _is_checkpoint_dir(typed: Sequence[str]) -> bool:
    """Return whether the first word is a checkpoint directory, or a typo of one before names of checkpoints.

    A checkpoint that is a folder holds no run's state.
    """
    place = Path(typed[0])
    if is_url(typed[0]):
        return True
    before_names = len(typed) > 1 and not any(map(os.path.dirname, typed[1:]))
    if not place.is_dir():
        return before_names and bool(similar_folder(place.absolute()))
    return before_names or any(place.glob(".sidecar*"))


def _lies_outside(typed: str, directory: Path) -> bool:
    """Return whether a checkpoint was typed as a path in an existing folder outside of that directory."""
    folder = os.path.dirname(typed.rstrip("/"))  # noqa: PTH120 - as typed
    inside = f"{os.path.abspath(folder)}/".startswith(f"{os.path.abspath(directory)}/")  # noqa: PTH100 - no link is followed
    return bool(folder) and not inside and Path(folder).is_dir()


@dataclass(slots=True)
class _Reader:
    """Read new records of the journal, and keep what a request needs of all of them.

    `exists`: whether a checkpoint exists. `ends`: the newest end of each checkpoint that the request may mean, and its
    newest evaluation, in the order of the journal.
    """

    journal: Journal
    request: Request
    exists: Callable[[Key], bool]
    history: JournalState = field(default_factory=lambda: JournalState(log=EntryLog(keep=1)))
    ends: dict[tuple[Key, bool], _Ended] = field(default_factory=dict)

    def read_on(self) -> Plan | None:
        """Read to the end, and return the open plan. Raises `StorageLostError` if an earlier record is missing."""
        for record in self.journal.read_to_end():
            for entry in self.history.apply(record):
                if (ended := _end(entry)) is not None:
                    which = ended.key, ended.how == "evaluated"
                    self.ends.pop(which, None)
                    if self._may_mean(ended):
                        self.ends[which] = ended
        return self.history.open

    def _may_mean(self, ended: _Ended) -> bool:
        """Return whether the request may mean a checkpoint that ended so."""
        if ended.key[0] in self.request.names:
            return True
        if ended.how == "evaluated":
            return self.request.all_evaluated and self.exists(ended.key)
        return self.request.all_failed and ended.how == Verdict.FAILED


def requeue(
    storage: Storage,
    catalog: Catalog,
    request: Request,
    *,
    by: str,
    clock: Clock,
    wait_seconds: float,
    pause: Callable[[float], None],
    report: Report,
    dry_run: bool = False,
    command: Callable[[str], str] = lambda name: f"sidecar requeue --again {shlex.quote(name)}",
    exported: Collection[str] = (),
) -> tuple[Settlement, ...]:
    """Reopen checkpoints by a record of the journal, or by several if one cannot hold all, and return the settlements.

    `report` is called with sentences for the person who waits. `command` returns the command line that evaluates a
    checkpoint again. A dry run waits for nothing and writes nothing. `exported`: exports, which become pins again.

    Nothing is written if a name belongs to no checkpoint that can be reopened (`SettingsError`), or if the files of one
    are gone (`VanishedError`). Raises `StorageError` if the storage does not answer, or the open plan did not end in
    `wait_seconds`.
    """
    run = read_run(storage)
    if run is None:
        raise SettingsError("there is no run here yet, so there is nothing to requeue: name another --checkpoint-dir")
    scan, until = catalog.scan(), clock.now() + wait_seconds

    def exists(key: Key) -> bool:
        return key in scan.by_key or folder_name(key) in exported

    reader = _Reader(Journal(storage, run), request, exists)
    reported = set[str]()

    def report_once(sentence: str) -> None:
        if sentence not in reported:
            reported.add(sentence)
            report(sentence)

    reader.read_on()
    keys = {*scan.by_key, *reader.history.verdicts.succeeded.in_folders(exported)}
    choice = _Choice(
        history=reader.history, ends=reader.ends, scan=scan, keys=keys, report=report_once, command=command
    )
    chosen = choice.of(request)  # raises before the wait if a name is wrong
    if dry_run:
        return tuple(ended.requeued(by) for ended in chosen)
    most, written = PlanRules().most_settled, tuple[Settlement, ...]()
    while True:
        _wait_for_end(reader, clock, until, pause, report_once)
        done = {settlement.key for settlement in written}  # some of these may have been evaluated again by now
        chosen = [ended for ended in choice.of(request) if ended.key not in done]
        settles = settled_by_one_plan([ended.requeued(by) for ended in chosen[:most]], most)
        if not settles or reader.journal.propose(_plan(reader.history, run, settles, by, clock)):
            written += settles
            if len(chosen) == len(settles):
                return written
            names = {settlement.name for settlement in settles}
            request = replace(request, names=[name for name in request.names if name not in names])
        elif clock.now() >= until:
            raise StorageError("another daemon wrote the journal at this very moment: try again")


def _wait_for_end(reader: _Reader, clock: Clock, until: float, pause: Callable[[float], None], report: Report) -> None:
    """Read the journal until no plan is open. Raises `StorageError` if a plan is still open at the time `until`."""
    asked_at = clock.now()
    while (plan := reader.read_on()) is not None:
        now = clock.now()
        is_open = f"plan {plan.plan} ({plan.checkpoint.name if plan.checkpoint else 'no checkpoint'}) is open"
        if now >= until:
            raise StorageError(f"{is_open}, and a requeue can only follow its end: try again then")
        report(f"{is_open}: waiting for its end (at most --wait-seconds)")
        pause(max(_SHORTEST_PAUSE_SECONDS, now - asked_at))  # slow storage is idle half of the time
        asked_at = clock.now()


def outlook(status: RunStatus) -> str:
    """Return a sentence about when a requeued checkpoint will be evaluated."""
    plan = status.history.open
    if status.proposer is not None:
        when = f" after plan {plan.plan}" if plan is not None and plan.checkpoint is not None else ""
        return f"{status.proposer} will plan its evaluation{when}"
    alive = [observed.heartbeat for observed in status.members if observed.fresh(status.lease_seconds)]
    workers = [f"{heartbeat.node} ({heartbeat.state})" for heartbeat in alive if heartbeat.role == "worker"]
    if workers:
        return f"it will be evaluated once a worker node is ready: {', '.join(workers)}"
    if alive:
        return "only the chief's daemon is alive: it will be evaluated once a daemon on a worker node runs"
    return "no daemon is alive: the evaluation begins once one runs"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """Choose the checkpoints to reopen, by the journal and by a scan.

    `keys`: the checkpoints that exist. `ends`: as in `_Reader`. `command` returns the command line that evaluates a
    checkpoint again.
    """

    history: JournalState
    ends: dict[tuple[Key, bool], _Ended]
    scan: ScanResult
    keys: AbstractSet[Key]
    report: Report
    command: Callable[[str], str]

    def of(self, request: Request) -> list[_Ended]:
        """Return the checkpoints that a request names, without duplicates."""
        chosen: dict[Key, _Ended] = {}
        if request.all_failed:
            chosen |= self._failed()
        if request.all_evaluated:
            chosen |= self._evaluated()
        for name in request.names:
            newest = self._newest(name, again=request.again)
            chosen[newest.key] = newest
        return list(chosen.values())

    def _failed(self) -> dict[Key, _Ended]:
        """Return all checkpoints that failed for good and whose files exist, and report the others."""
        failed = [ended for ended in self._ended() if ended.how == Verdict.FAILED]
        if not failed:
            self.report("no checkpoint failed for good: nothing to requeue")
        gone = {ended.key: why for ended in failed if (why := self._why_gone(ended))}
        for why in gone.values():
            self.report(f"{why}, so it stays given up")
        return {ended.key: ended for ended in failed if ended.key not in gone}

    def _evaluated(self) -> dict[Key, _Ended]:
        """Return all evaluated checkpoints whose files exist, the oldest first, and report the others."""
        succeeded = self.history.verdicts.succeeded
        evaluated = [ended for ended in reversed([*self._ended(again=True)]) if ended.key in succeeded]
        gone = sorted(key[0] for key in succeeded if key not in self.keys)
        if gone:
            names = listed(gone, _NAMES_SHOWN)
            self.report(f"not requeued, as their files are gone: {names}{_subfolder_hint(gone)}")
        if not succeeded:
            self.report("no checkpoint was evaluated that is not waiting already: nothing to requeue")
        return {ended.key: ended for ended in evaluated if ended.key in self.keys}

    def _newest(self, name: str, *, again: bool) -> _Ended:
        """Return the newest content of this name whose files exist."""
        contents = [ended for ended in self._ended(again=again) if ended.key[0] == name]
        if not contents:
            raise SettingsError(self._nothing_to_requeue(name))
        newest = next((content for content in contents if not self._why_gone(content)), None)
        if newest is None:
            why = self._why_gone(contents[0])
            raise VanishedError(f"{why}, so it cannot be evaluated again; save it again instead")
        if len(contents) > 1:
            others = ", ".join(content.digest for content in contents if content is not newest)
            end = "evaluated or given up" if again else "given up"
            self.report(
                f"{name} was {end} with {len(contents)} contents: {newest.digest} is requeued, the newest that exists, "
                f"not {others}"
            )
        return newest

    def _ended(self, *, again: bool = False) -> Iterator[_Ended]:
        """Yield the checkpoints that were given up, and with `again` those that were evaluated: the newest first."""
        verdicts, yielded = self.history.verdicts, set[Key]()
        for ended in reversed(self.ends.values()):
            if ended.key in yielded:
                continue
            succeeded, settled = ended.key in verdicts.succeeded, ended.key in verdicts.settled
            if (again and succeeded and ended.how == "evaluated") or (not succeeded and settled):
                yielded.add(ended.key)
                yield ended

    def _nothing_to_requeue(self, name: str) -> str:
        """Return a sentence that explains why a checkpoint of this name cannot be requeued."""
        given_up = listed(sorted({key[0] for key in self.history.verdicts.without_result}), _GIVEN_UP_SHOWN) or "none"
        existing, succeeded = [key for key in self.keys if key[0] == name], self.history.verdicts.succeeded
        if not succeeded.isdisjoint(existing):
            return f"{name!r} was evaluated: to evaluate it again, type `{self.command(name)}`; given up: {given_up}"
        if any(key[0] == name for key in succeeded) and not existing:
            why = f"was evaluated, and its files are gone{_subfolder_hint([name])}"
        else:
            why = "is waiting already" if existing else "was not given up"
        return f"{name!r} {why}, so there is nothing to requeue; given up: {given_up}"

    def _why_gone(self, ended: _Ended) -> str | None:
        """Return why a checkpoint cannot be evaluated again; None if its files are in the directory or pinned."""
        if ended.key in self.keys:
            return None
        has_namesake = any(key[0] == ended.key[0] for key in self.keys)
        broken = {name for name, _ in self.scan.waiting} | {settlement.name for settlement in self.scan.corrupt}
        if ended.how != "evaluated" and ended.key[0] in broken:
            return None  # a broken checkpoint has no digest to compare
        if ended.how == Verdict.CORRUPT and has_namesake:
            return None  # as above
        name = f"{ended.key[0]} (digest {ended.digest})"
        if has_namesake:
            return f"{name} is gone: another checkpoint has its name now, which is evaluated without a requeue"
        if self.scan.missing:
            return f"{name} is gone with the checkpoint directory, and it is not pinned"
        hint = _subfolder_hint([ended.key[0]])
        return f"{name} is gone: its files are neither in the checkpoint directory nor pinned{hint}"


def _end(entry: Entry) -> _Ended | None:
    """Return the checkpoint whose end an entry records, or None."""
    if isinstance(entry, Settled):
        settlement = entry.settlement
        return _Ended(settlement.key, settlement.step, settlement.verdict)
    checkpoint = entry.plan.checkpoint
    if checkpoint is None or entry.outcome.status != OutcomeStatus.SUCCEEDED:
        return None
    # A place in the order of the journal is not a step: each reader numbers such checkpoints itself.
    return _Ended(checkpoint.key, None if checkpoint.step_source == "order" else checkpoint.step, "evaluated")


def _subfolder_hint(names: Iterable[str]) -> str:
    """Return another possible reason why files of these names were not found, or an empty string."""
    if not any("/" in name for name in names):
        return ""
    return " (only sub-folders that checkpoint_glob names are scanned, by this command and by the daemons)"


def _plan(history: JournalState, run: str, settles: tuple[Settlement, ...], by: str, clock: Clock) -> Plan:
    """Return a plan that only settles."""
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
