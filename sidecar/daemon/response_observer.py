"""Apply the responses of storage to the daemon's state: records, heartbeats, checkpoints and errors.

No I/O. This changes the state and warns people. The loop acts on the state afterwards.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from sidecar.coordination.journal_state import Closed, Entry
from sidecar.coordination.totals import Best
from sidecar.daemon.operator_warnings import OperatorWarnings
from sidecar.daemon.plan_runner import PlanRunner
from sidecar.daemon.shutdown import Shutdown
from sidecar.daemon.state import DaemonState
from sidecar.daemon.storage_health import StorageHealth
from sidecar.daemon.storage_schedule import StorageSchedule
from sidecar.daemon.storage_thread import (
    DirectoryMissing,
    Joined,
    JoinRun,
    RecordsRead,
    RequestFailed,
    Response,
    ScanRunning,
    Sync,
    Synced,
    Upkeep,
)
from sidecar.daemon.timing import Timing
from sidecar.daemon.worker_supervisor import WorkerSupervisor
from sidecar.errors import NewerSchemaError, RunReplacedError, SidecarError, StateUnavailableError
from sidecar.policy.rules import Rules
from sidecar.protocol.records import Outcome, Plan
from sidecar.protocol.states import NodeState, OutcomeStatus
from sidecar.retention.pins.reconciler import Reconciliation
from sidecar.retention.saves.retention import Retention
from sidecar.system.clock import Clock
from sidecar.system.event_log import EventLog


class JournalLog(EventLog, Protocol):
    """Log events, and the records of the journal."""

    def entry(self, entry: Entry | Plan, best: Mapping[tuple[str, str], Best]) -> None:
        """Log a record of the journal. `best`: the best evaluation so far, by eval set and metric."""


@dataclass(slots=True, kw_only=True)
class ResponseObserver:
    """Change the parts of a daemon that depend on storage's responses."""

    rules: Rules
    timing: Timing
    state: DaemonState
    retention: Retention
    supervisor: WorkerSupervisor | None
    schedule: StorageSchedule
    runner: PlanRunner
    storage_health: StorageHealth
    shutdown: Shutdown
    clock: Clock
    log: JournalLog
    warnings: OperatorWarnings

    def observe(self, response: Response, now: float) -> None:
        """Apply the response to the open request, and the records of the journal in it."""
        asked_at = self.storage_health.answer(now)
        scanned = False
        if isinstance(response, Joined):
            self._observe_run(response)
        elif isinstance(response, DirectoryMissing):
            self._observe_missing_directory(response, now)
        else:
            for record in response.records:
                self._observe_record(record, now)
            if isinstance(response, RecordsRead) and response.stored is not None:
                self.runner.note_stored(response.stored)
        if isinstance(response, Synced):
            # The response may be as old as the request, so with slow storage it says nothing about the present.
            self.state.record_heartbeats(response.request.heartbeat, response.reading, asked_at)
            self._note_journal(asked_at, readable=response.unread is None)
            self._observe_sync(response, now)
            scanned = isinstance(response.reconciliation, Reconciliation)
        if self.state.caught_up:  # a daemon that starts names the newest only
            self.warnings.set_aside(self.state.history.totals.set_aside)
        if isinstance(response, Synced | RequestFailed) and response.error is not None:
            self._observe_error(response, response.error, now)
        elif self.storage_health.succeed(scanned=scanned):
            self.log.info("storage_recovered")

    def _observe_run(self, joined: Joined) -> None:
        """Continue in the run that was joined."""
        self.state.join(joined.run)
        self._note_missing(missing=False)
        if joined.history is not None:
            self.state.resume(joined.history)
            self.retention.resume(joined.history)
            self.schedule.note_snapshot(joined.history.through)

    def _observe_missing_directory(self, response: DirectoryMissing, now: float) -> None:
        """Try again later to join a run. Training has not saved yet, so no checkpoint is from before this daemon."""
        self._note_missing(missing=True, similar=response.similar)
        self.schedule.sync_at(now + self.timing.sweep_seconds)
        self.state.tracker.note_beginning()

    def _observe_sync(self, synced: Synced, now: float) -> None:
        """Apply the results of a sync: removed saves, the end of the journal, and the scan if there was one."""
        state, sync = self.state, synced.request
        if synced.upkeep is not None:
            self._observe_upkeep(synced.upkeep, sync, now)
        if synced.more:
            self.schedule.sync_at(now)
        elif not state.caught_up and synced.unread is None:
            state.note_caught_up(now)
            self.log.info("journal_read", plans=state.history.through, evaluated=len(state.history.verdicts.succeeded))
        if self.supervisor is None:
            state.tracker.note_done(done=synced.done)
        self.schedule.note_scan(now, asked=sync.scan, unfinished=isinstance(synced.reconciliation, ScanRunning))
        if isinstance(synced.reconciliation, Reconciliation):
            self._note_missing(missing=synced.reconciliation.scan.missing, similar=synced.similar)
            self._observe_scan(synced.reconciliation, now)
        if sync.heartbeat.state == NodeState.LEFT and self.shutdown.code is not None:
            self.shutdown.end(self.shutdown.code)

    def _observe_upkeep(self, upkeep: Upkeep, sync: Sync, now: float) -> None:
        """Note which saves were removed, and warn about failures with views and saves."""
        for folder in self.retention.done(sync.tidying, upkeep.tidied, now):
            self.warnings.left(folder, upkeep.tidied.failed[folder])
        self.state.statistics.note_saves(self.retention.bytes, upkeep.journal_problems)
        if upkeep.tidied.old:
            self.log.info("old_evaluations_removed", count=upkeep.tidied.old)
        self.warnings.trouble(upkeep.trouble)

    def _observe_scan(self, reconciliation: Reconciliation, now: float) -> None:
        """Apply the checkpoints that a scan found, and the pins and exports that it made."""
        state, scan = self.state, reconciliation.scan
        state.statistics.note_scan(reconciliation.pins_bytes, reconciliation.exports)
        if reconciliation.exports.linked:
            self.retention.link(reconciliation.exports.best)
        self.warnings.exports(reconciliation.exports, state.export_rules())
        new = state.record_scan(scan, reconciliation.given_up, now, self.clock.wall())
        no_room = state.tracker.note(reconciliation.no_room, done=reconciliation.done)
        self.warnings.scan(
            scan,
            [discovered.checkpoint for discovered in new],
            no_room=no_room,
            watch_problem=reconciliation.watch_problem,
            needs_steps=self.rules.selection.every_steps is not None,
        )
        self._warn_if_empty(now)

    def _observe_record(self, record: Plan | Outcome, now: float) -> None:
        """Apply a new record of the journal, report it, and do this node's part."""
        self.schedule.stop_polling()
        entries = self.state.apply(record, now)
        for entry in entries:
            self._log(entry)
        for gap in self.state.statistics.gaps.take():
            self.warnings.unseen(gap)
        if isinstance(record, Plan) and self.state.history.open is not None:
            self._log(record)
            self.runner.begin(record, now)
        for entry in entries:
            if isinstance(entry, Closed):
                self._observe_end(entry, now)

    def _log(self, entry: Entry | Plan) -> None:
        """Log a record of the journal, unless it was there before this daemon."""
        if self.state.caught_up:
            self.log.entry(entry, self.state.history.totals.best)

    def _observe_end(self, closed: Closed, now: float) -> None:
        """Note the end of a plan, and which saves are retained from now on."""
        self.runner.end(closed)
        if closed.outcome.status != OutcomeStatus.SUCCEEDED:
            self.retention.failed(closed.plan, now)
            return
        self.retention.succeeded(self.state.history)
        if self.state.caught_up:
            self.warnings.best(self.retention.best.complaint(self.state.history))

    def _observe_error(self, response: Synced | RequestFailed, error: SidecarError, now: float) -> None:
        """Try again a beat later if the error is retryable. Other errors, and all at the start, end the daemon."""
        is_start = isinstance(response.request, JoinRun) and not isinstance(error, StateUnavailableError)
        if isinstance(error, NewerSchemaError):
            self._stand_by()
        elif isinstance(error, RunReplacedError) and self.shutdown.begun:
            self.shutdown.end(self.shutdown.code or 0)  # no run is left that would read a last heartbeat
            return
        elif is_start or not error.retryable:
            self.shutdown.end(error)
            return
        at_checkpoints = isinstance(response, Synced) and response.unread is None
        if self.storage_health.fail(str(error), now, at_checkpoints=at_checkpoints):
            self.log.warning("storage_failed", message=self.storage_health.problem)
        if not at_checkpoints:
            self.schedule.sync_at(self.storage_health.blocked_until)

    def _stand_by(self) -> None:
        """Take no part any more, because a newer release may have opened a plan that this one cannot read."""
        self.storage_health.stand_by()
        self.state.withdraw(withdrawn=True)
        self.runner.abandon()
        if self.supervisor is not None:
            self.supervisor.workers.kill_all()

    def _note_journal(self, asked_at: float, *, readable: bool) -> None:
        """Note whether the journal could be read. After a lease without it, other nodes must not count on this one."""
        self.schedule.note_journal(asked_at, readable=readable)
        if readable:
            self.storage_health.note_readable()
        withdrawn = self.storage_health.needs_newer_release or self.schedule.is_unreadable(asked_at)
        self.state.withdraw(withdrawn=withdrawn)

    def _note_missing(self, *, missing: bool, similar: str = "") -> None:
        """Note whether the checkpoint directory is missing, and warn if that is new. `similar`: of `similar_folder`."""
        if self.state.tracker.note_missing(missing=missing):
            self.warnings.missing(similar)

    def _warn_if_empty(self, now: float) -> None:
        """Warn once if the checkpoint directory has been empty for long."""
        empty, seconds = self.state.tracker.empty, self.timing.nothing_seen_seconds
        if empty.needs_hint(now, seconds):
            empty.note_hint(self.warnings.empty(seconds))
