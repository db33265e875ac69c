"""Warn people once of each problem that needs a person, such as an empty checkpoint directory. This decides nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sidecar.checkpoints.scan import SUPPORTED_CHECKPOINTS, ScanResult
from sidecar.checkpoints.step_sources import REMEDY, StepSources
from sidecar.checkpoints.unseen_steps import Gap
from sidecar.coordination.totals import SetAside
from sidecar.protocol.export_rule import ExportRule
from sidecar.protocol.records import Checkpoint, Key
from sidecar.retention.exports.export_report import Change, ExportsReport
from sidecar.retention.saves.retention import TRIES
from sidecar.system.event_log import EventLog

_TROUBLE_REMEMBERED: Final = 200
_NUMBERS_SHOWN: Final = 20


@dataclass(slots=True, kw_only=True)
class OperatorWarnings:
    """Log the warnings of one daemon. Each is repeated only after the situation has changed."""

    log: EventLog
    _unmeasured: str | None = None
    _watch_problem: str | None = None
    _below: str | None = None
    _is_crowded: bool = False  # more checkpoints than are supported
    _steps: StepSources = field(default_factory=StepSources)
    _step_missed: bool = False
    _entries: frozenset[str] = frozenset()  # that failed in the newest scan
    _trouble: tuple[str, ...] = ()  # the newest last
    _exports: Mapping[str, str] = field(default_factory=dict)  # problems of the newest scan
    _rules: Sequence[ExportRule] = ()
    _set_aside: int = 0  # records of the journal that were named

    def missing(self, similar: str) -> None:
        """Warn that the checkpoint directory does not exist, or not any more. `similar`: of `similar_folder`."""
        remedy = f"waiting until training creates it; {similar or 'is this path shared with the chief?'}"
        self.log.warning("checkpoint_dir_missing", remedy=remedy)

    def scan(
        self,
        scan: ScanResult,
        new: Sequence[Checkpoint],
        *,
        no_room: Mapping[Key, str],
        watch_problem: str | None,
        needs_steps: bool,
    ) -> None:
        """Report what a scan found and could not do.

        `new`: checkpoints that need an evaluation. `no_room`: why checkpoints cannot be pinned from now on.
        `needs_steps`: a setting selects checkpoints by their steps.
        """
        self._warn_of_subfolders(scan.below)
        self._warn_of_many(len(scan.by_key))
        for checkpoint in new:
            self.log.info("checkpoint_found", checkpoint=checkpoint.name, step=checkpoint.step)
            if needs_steps and checkpoint.step is None:
                self._warn_of_unknown_step(checkpoint)
        self._report_steps(new)
        self._warn_of_no_room(no_room)
        self._report_events(None if scan.missing else watch_problem)
        self._warn_of_entries({**scan.failed, **scan.unknown})

    def empty(self, seconds: float) -> str:
        """Warn that no checkpoint was ever seen, and return that for the status page: training may save elsewhere."""
        remedy = self._below or "is this path shared with the chief?"
        self.log.warning("nothing_seen", seconds=seconds, remedy=remedy)
        return f"no checkpoint was seen in {seconds:g} s: {remedy}"

    def unseen(self, gap: Gap) -> None:
        """Warn that training deleted checkpoints before any node saw them."""
        remedy = "let training keep more checkpoints (max_to_keep), or add nodes; these cannot be evaluated any more"
        numbers = list(gap.missing[:_NUMBERS_SHOWN])
        about = {"series": gap.series, "count": len(gap.missing), "numbers": numbers, "last": gap.missing[-1]}
        self.log.warning("checkpoints_deleted_unseen", **about, remedy=remedy)

    def set_aside(self, records: SetAside) -> None:
        """Warn of records of the journal that were set aside, and again when there are more."""
        if records.newest is not None and records.count > self._set_aside:
            remedy = "another program wrote it: look who may write to the state directory; nothing else is affected"
            newest = records.newest
            self.log.warning(
                "record_set_aside", plan=newest.plan, reason=newest.reason, count=records.count, remedy=remedy
            )
        self._set_aside = records.count

    def trouble(self, sentences: Sequence[str]) -> None:
        """Warn that views or saves could not be read, written or removed. No decision depends on them."""
        for sentence in sentences:
            if sentence not in self._trouble:
                self.log.warning("entry_failed", message=sentence)
                self._trouble = (*self._trouble, sentence)[-_TROUBLE_REMEMBERED:]

    def left(self, folder: str, why: str) -> None:
        """Warn that saves which are not retained could not be removed, after several attempts."""
        remedy = "nobody tries again before a daemon starts; remove it by hand"
        self.log.warning("saves_left", folder=folder, tries=TRIES, reason=why, remedy=remedy)

    def best(self, complaint: str | None) -> None:
        """Warn that `best_metric` names a metric that is not measured, so nothing would be retained as the best."""
        if complaint not in (None, self._unmeasured):
            self.log.warning("best_metric_unknown", message=complaint)
        self._unmeasured = complaint

    def exports(self, report: ExportsReport, rules: Sequence[ExportRule]) -> None:
        """Report what happened to the exports of the best checkpoints, and warn if nodes have different settings."""
        for change, checkpoint, better in report.changes:
            if change is Change.MADE:
                self.log.info("checkpoint_exported", checkpoint=checkpoint)
            elif change is Change.REMOVED:
                self.log.info("export_removed", checkpoint=checkpoint)
            elif change is Change.RETURNED:
                self.log.info("export_returned", checkpoint=checkpoint)
            else:
                self.log.info("best_changed", checkpoint=checkpoint, better=better)
        for name, why in report.problems.items():
            if name not in self._exports:
                remedy = "each scan tries it again; a checkpoint that is not exported yet stays pinned"
                self.log.warning("export_failed", entry=name, reason=why, remedy=remedy)
        self._exports = report.problems
        if len(rules) > 1 and rules != self._rules:
            found = "; ".join(f"{rule.count} by {rule.metric} ({rule.by})" for rule in rules)
            remedy = "give all nodes the same export_best, best_metric and best_by; until then all of them are retained"
            self.log.warning("export_settings_differ", found=found, remedy=remedy)
        self._rules = rules

    def _warn_of_subfolders(self, remedy: str | None) -> None:
        """Warn of checkpoints in subfolders that no setting includes."""
        if remedy is not None and self._below is None:
            self.log.warning("checkpoints_in_subfolders", remedy=remedy)
        self._below = self._below or remedy

    def _warn_of_many(self, count: int) -> None:
        """Warn once that there are more checkpoints than are supported: each scan takes longer, and more memory."""
        if count > SUPPORTED_CHECKPOINTS and not self._is_crowded:
            remedy = "scans are slower and need more memory; keep fewer checkpoints in the directory"
            self.log.warning("many_checkpoints", count=count, supported=SUPPORTED_CHECKPOINTS, remedy=remedy)
        self._is_crowded = self._is_crowded or count > SUPPORTED_CHECKPOINTS

    def _warn_of_unknown_step(self, checkpoint: Checkpoint) -> None:
        """Warn that `every_steps` cannot select a checkpoint without a step."""
        if not self._step_missed:
            self._step_missed = True
            remedy = "it is evaluated; set step_key or step_pattern so that its step is found"
            self.log.warning("step_unknown", checkpoint=checkpoint.name, remedy=remedy)

    def _report_steps(self, new: Sequence[Checkpoint]) -> None:
        """Report how steps were found, and report it again when another source occurs."""
        if self._steps.add(new):
            say = self.log.warning if self._steps.are_doubtful else self.log.info
            say("steps_found", how=self._steps.summary(), **({"remedy": REMEDY} if self._steps.are_doubtful else {}))

    def _warn_of_no_room(self, no_room: Mapping[Key, str]) -> None:
        """Warn that waiting checkpoints cannot be pinned from now on. Each scan tries again."""
        if no_room:
            (name, _), reason = next(iter(no_room.items()))
            remedy = "it may vanish before it is evaluated; free space, or change pin_max_bytes or keep_free_bytes"
            self.log.warning("checkpoint_not_held", checkpoint=name, reason=reason, remedy=remedy)

    def _report_events(self, problem: str | None) -> None:
        """Report why there are no file events, if that is so."""
        if problem not in (None, self._watch_problem):
            self.log.info("file_events_unavailable", reason=problem, remedy="sweeps find everything")
        self._watch_problem = problem

    def _warn_of_entries(self, reasons: Mapping[str, str]) -> None:
        """Warn of each checkpoint or pin that cannot be read, pinned or unpinned, and again if it fails anew."""
        for name, why in reasons.items():
            if name not in self._entries:
                remedy = "each scan tries it again; other checkpoints are not affected"
                self.log.warning("checkpoint_entry_failed", entry=name, reason=why, remedy=remedy)
        self._entries = frozenset(reasons)
