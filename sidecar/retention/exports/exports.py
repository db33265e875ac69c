"""Retain the best checkpoints below `exports`, in their original format. `PinReconciler` calls this in each scan.

A pin is already the whole checkpoint, protected from training. So the export of a checkpoint is its pin, which is
renamed when nobody needs the pin any more, instead of being removed: that costs neither bytes nor time. Any node may do
it, because the ranking follows from the journal. All other work is level-triggered: each scan compares the folder with
the ranking, sets the link `best`, and removes exports that are not among the best any more. With the state in a bucket
each node has pins of its own; one node uploads its pin, and the others remove theirs once the export is there.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sidecar.coordination.closed_plan import read_success
from sidecar.coordination.comparability import obstacle
from sidecar.coordination.journal_state import Closed
from sidecar.coordination.storage import Storage
from sidecar.coordination.totals import Best, improves, number_of
from sidecar.errors import SidecarError, StorageError
from sidecar.protocol.export_rule import ExportRule
from sidecar.protocol.records import Checkpoint, Value
from sidecar.retention.exports.export_folder import (
    BEST,
    EXPORTS,
    PINS,
    OpenExports,
    opened_exports,
)
from sidecar.retention.exports.export_manifest import Manifest, files_of, manifest_of, write_manifest
from sidecar.retention.exports.export_report import NO_EXPORTS, Change, ExportChange, ExportsReport
from sidecar.retention.pins.disk_budget import DiskBudget
from sidecar.retention.pins.policy import Fate, PinPolicy
from sidecar.retention.pins.usage import pins_bytes, pins_bytes_alone
from sidecar.retention.saves.comparison import Comparison, value_of
from sidecar.system.bounded_calls import Calls, HangingError, call_directly
from sidecar.system.bucket_folder import BucketState
from sidecar.system.confined import open_folder

if TYPE_CHECKING:
    from sidecar.retention.saves.comparison_store import ComparisonStore

_REMEMBERED: Final = 64
_MOST_OTHERS: Final = 16  # entries that are not wanted, or not this program's, that one pass looks at
_TURN: Final = 6  # scans for which a node waits for each one before it, of those that could upload a pin
_PATIENCE: Final = 15  # passes that may wait for a comparison of many examples before that is reported


@dataclass(slots=True)
class Exports:
    """Make and remove the exports of one run."""

    root: Path  # the state directory of the run
    storage: Storage  # the same, for records
    # The exports that this node's settings ask for; None: this node only makes exports for other nodes.
    rule: ExportRule | None = None
    calls: Calls = call_directly  # makes calls that may hang
    room: DiskBudget = field(default_factory=DiskBudget)  # for pins
    _comparisons: "ComparisonStore | None" = None
    _successes: dict[int, Closed] = field(default_factory=dict)
    _written: dict[str, tuple[object, ...]] = field(default_factory=dict)  # what the manifests say, by export
    _unneeded: set[str] = field(default_factory=set)  # exports that the last pass found unneeded
    _leftovers: set[str] = field(default_factory=set)
    _waited: dict[str, int] = field(default_factory=dict)  # scans for which an export was to be uploaded, by its name
    _hanging: int = 0  # passes in a row that did not end in time
    _problems: Mapping[str, str] = field(default_factory=dict)  # of the last pass that ended
    _measured: tuple[list[str], int] = field(default_factory=lambda: ([], 0))
    _changes: list[ExportChange] = field(default_factory=list)

    # -- make --------------------------------------------------------------------------------------------------------

    def export(self, checkpoint: Checkpoint, policy: PinPolicy) -> bool:
        """Make an export of the pin of one of the best checkpoints, and return whether the pin is gone.

        It is not while a node uploads it. Raises `StorageError`; then it is still pinned.
        """
        try:
            return self.calls(f"/export {checkpoint.folder}", partial(self._export, checkpoint, policy))
        except OSError as error:
            if isinstance(error, HangingError) and self._is_in_a_bucket:
                return False
            raise StorageError(f"cannot export {checkpoint.name}: {_reason(error)}") from error

    @property
    def _is_in_a_bucket(self) -> bool:
        return isinstance(self.root, BucketState)

    def _export(self, checkpoint: Checkpoint, policy: PinPolicy) -> bool:
        name, ranks = checkpoint.folder, policy.exported()[checkpoint.folder]
        best = next(iter(ranks.values()))[1]
        closed = self._success(best.plan)
        if closed is None:
            raise StorageError(f"the journal has no evaluation {best.plan} of {checkpoint.name}")
        with opened_exports(self.root, make=True) as exports:
            if self._is_in_a_bucket and name not in exports.names():
                self._waited[name] = self._waited.get(name, -1) + 1
                if self._waited[name] < policy.before * _TURN:
                    return False
            with contextlib.suppress(FileNotFoundError):  # another node has exported it
                with open_folder(self.root) as state, state.folder(f"{PINS}/{name}") as pin:
                    write_manifest(pin, manifest_of(closed, best, _places(ranks), files_of(pin, checkpoint)))
                if exports.take_pin(checkpoint):
                    self._changes.append(ExportChange(Change.MADE, checkpoint.name))
        self._waited.pop(name, None)
        return True

    # -- reconcile ---------------------------------------------------------------------------------------------------

    def reconcile(self, policy: PinPolicy, *, leaving: bool = False) -> ExportsReport:
        """Compare the folder with the ranking, and change it. Never raises; a node without a rule changes nothing.

        `leaving`: there is no later pass, so exports that nobody wants are removed at once.
        """
        report = ExportsReport(bytes=self._measured[1])
        if policy.exports:
            try:
                report = self.calls("/exports", partial(self._reconcile, policy, leaving=leaving))
                self._hanging, self._problems = 0, report.problems
            except HangingError as error:
                self._hanging += 1  # a comparison of many examples takes some seconds
                is_late = self._hanging > _PATIENCE and not self._is_in_a_bucket  # requests to one end in time
                hangs = {EXPORTS: _reason(error)} if is_late else {}
                report = replace(report, problems={**self._problems, **hangs})
            except (OSError, SidecarError) as error:
                self._problems = {EXPORTS: _reason(error)}
                report = replace(report, problems=self._problems)
        changes, self._changes = tuple(self._changes), []
        return replace(report, changes=changes)

    def _reconcile(self, policy: PinPolicy, *, leaving: bool) -> ExportsReport:
        """Change the exports, and return the report without the changes: a late one is that of an earlier pass."""
        problems: dict[str, str] = {}
        linked, holder = False, None
        try:
            with opened_exports(self.root) as exports:
                names = exports.names()
                if self.rule is not None:
                    problems |= dict.fromkeys(exports.others()[:_MOST_OTHERS], "it is not a folder: move it away")
                    with _noted(problems, BEST):
                        holder = self._link(exports, policy, set(names))
                        linked = True
                    self._describe(exports, names, holder, policy, problems)
                    retained = {*policy.exported(), *([] if holder is None else [holder.checkpoint.folder])}
                    if linked:  # else the best one may be among the others
                        others = sorted(
                            {*names, *exports.unfinished()} - retained,
                            key=lambda name: (name not in self._written, name),
                        )
                        self._unneeded |= set(others) if leaving else set()
                        self._remove(exports, others[:_MOST_OTHERS], policy, problems)
                    self._leftovers = exports.remove_leftovers(self._leftovers)
                if self._measured[0] != names:
                    self._measured = names, exports.bytes()
        except FileNotFoundError:
            return NO_EXPORTS
        return ExportsReport(
            bytes=self._measured[1],
            problems=problems,
            linked=linked,
            best=None if holder is None else holder.plan.folder,
        )

    # -- the link ----------------------------------------------------------------------------------------------------

    def _link(self, exports: OpenExports, policy: PinPolicy, names: set[str]) -> Closed | None:
        """Let the link lead to the best export, and return the evaluation of that."""
        rule, name, old = policy.exports[0][0], exports.best(), None
        if name is not None and name in names:
            old = self._origin(exports, name, policy)
            if old is not None and old.plan.plan > policy.history.through:
                return old  # a node that has read more of the journal set the link
            old = old if old is not None and old.checkpoint.key in policy.history.verdicts.succeeded else None
        new, compared = self._best(rule, policy, names, old)
        if new is None:
            exports.name_none()
        elif new.checkpoint.folder != name:
            # What it says of itself is true before the link shows it.
            ranks, files = policy.exported().get(new.checkpoint.folder, {}), exports.files(new.checkpoint)
            best = next((best for _, best in ranks.values()), None)
            exports.describe(new.checkpoint.folder, manifest_of(new, best, _places(ranks), files, compared))
            exports.name_best(new.checkpoint.folder)
            how = () if compared is None else (compared.describe(),)
            self._changes.append(ExportChange(Change.BEST, new.checkpoint.name, *how))
        return new

    def _best(
        self, rule: ExportRule, policy: PinPolicy, names: set[str], old: Closed | None
    ) -> tuple[Closed | None, Comparison | None]:
        """Return the evaluation to which the link leads, and how much better it is than the one before."""
        ranked = [best for best in policy.exports[0][1] if best.pin in names and not best.outdated]
        if not ranked:
            return old, None  # the new best one is not exported yet
        value = None if old is None else value_of(old.outcome.result, rule.metric)
        first = self._success(ranked[0].plan)
        if old is None or value is None or first is None or not _are_comparable(first, old, rule.metric):
            return first or old, None
        if rule.by != "significant":
            if first.checkpoint.folder == old.checkpoint.folder:
                return first, None
            with contextlib.suppress(SidecarError, OSError):  # it decides nothing here
                return first, self._compared(rule, first, old)
            return first, None
        holder, compared = old, None
        for best in sorted((best for best in ranked if _exceeds(best, value)), key=lambda best: best.plan):
            new = self._success(best.plan)
            if new is not None and new.checkpoint.folder != holder.checkpoint.folder:
                found = self._compared(rule, new, holder)
                holder, compared = (new, found) if found.better else (holder, compared)
        return holder, compared

    def _compared(self, rule: ExportRule, new: Closed, old: Closed) -> Comparison:
        """Return the comparison of two evaluations that holds for all nodes."""
        from sidecar.retention.saves.comparison_store import ComparisonStore  # noqa: PLC0415 - most daemons compare nothing

        if self._comparisons is None or self._comparisons.metric != rule.metric:
            self._comparisons = ComparisonStore(self.storage, self.root, rule.metric)
        return self._comparisons.compare(new, old)

    # -- what is there -----------------------------------------------------------------------------------------------

    def _describe(
        self, exports: OpenExports, names: list[str], holder: Closed | None, policy: PinPolicy, problems: dict[str, str]
    ) -> None:
        """Write the manifests again that do not say the present places."""
        exported = policy.exported()
        self._written = {name: said for name, said in self._written.items() if name in names}
        for name in names:
            ranks = exported.get(name, {})
            best = next((best for _, best in ranks.values()), None)
            closed = self._success(best.plan) if best is not None else holder
            says = (best, *_places(ranks).items())
            if closed is None or closed.checkpoint.folder != name or self._written.get(name) == says:
                continue
            if closed.plan.plan > policy.history.through:
                continue  # its place is not known yet
            with _noted(problems, name):
                try:
                    found = exports.manifest(name)
                except PermissionError:
                    found = None  # another user made it for himself: it is replaced
                better = None if found is None or found.plan != closed.plan.plan else found.better_than
                manifest = manifest_of(closed, best, _places(ranks), exports.files(closed.checkpoint), better)
                if manifest != found:
                    exports.describe(name, manifest)
                self._written[name] = says

    def _remove(self, exports: OpenExports, names: list[str], policy: PinPolicy, problems: dict[str, str]) -> None:
        """Remove the exports that nobody wants in this pass or wanted in the last one."""
        unneeded, self._unneeded = self._unneeded, set()
        for name in names:
            with _noted(problems, name):
                closed = self._origin(exports, name, policy)
                if closed is None:
                    problems[name] = "it is not an export of this run: it is left alone; move it away"
                    continue
                checkpoint = closed.checkpoint
                match policy.fate_of_export(checkpoint, closed.plan.plan):
                    case Fate.RETURNS:
                        if exports.give_back(name, self._require_room):
                            self._changes.append(ExportChange(Change.RETURNED, checkpoint.name))
                    case Fate.GOES if name in unneeded:
                        exports.remove(name)
                        self._changes.append(ExportChange(Change.REMOVED, checkpoint.name))
                    case Fate.GOES:
                        self._unneeded.add(name)

    def _require_room(self, size: int) -> None:
        """Raise `NoRoomError` unless a pin of that size may be fetched, as for any other pin."""
        pins = self.root / PINS
        self.room.require(size, partial(pins_bytes, pins), partial(pins_bytes_alone, pins))
        self.room.require_copy(size)

    def _origin(self, exports: OpenExports, name: str, policy: PinPolicy) -> Closed | None:
        """Return the evaluation of an export, if the journal confirms its manifest or ranks it."""
        ranks = policy.exported().get(name)
        if ranks:
            return self._success(next(best.plan for _, best in ranks.values()))
        manifest: Manifest | None = exports.manifest(name)
        closed = None if manifest is None else self._success(manifest.plan)
        if manifest is None or closed is None or (manifest.run, name) != (closed.plan.run, closed.checkpoint.folder):
            return None
        return closed

    def _success(self, plan: int) -> Closed | None:
        """Return an evaluation by its number, which is read once."""
        if plan not in self._successes and plan > 0:
            found = read_success(self.storage, plan)
            if found is None:
                return None
            for oldest in list(self._successes)[: 1 - _REMEMBERED]:
                del self._successes[oldest]
            self._successes[plan] = found
        return self._successes.get(plan)


@contextlib.contextmanager
def _noted(problems: dict[str, str], name: str) -> Iterator[None]:
    """Go on with the other exports after an error about one of them."""
    try:
        yield
    except FileNotFoundError:
        pass  # another node changed it at the same moment
    except (OSError, SidecarError) as error:
        problems[name] = _reason(error)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.strerror}" if isinstance(error, HangingError) else f"{error.filename}: {error.strerror}"
    return str(error)


def _places(ranks: Mapping[str, tuple[int, Best]]) -> dict[str, int]:
    """Return the places among the best ones by metric. One from before a change of the data or the task has none."""
    return {metric: place for metric, (place, best) in ranks.items() if not best.outdated}


def _are_comparable(new: Closed, old: Closed, metric: str) -> bool:
    """Return whether the numbers of two evaluations by EVAL_SET/METRIC can be compared."""
    after, before = new.outcome.result, old.outcome.result
    if after is None or before is None:
        return False
    eval_sets = (name for name in after.examples if metric.startswith(f"{name}/"))
    return all(obstacle(after, before, eval_set) is None for eval_set in eval_sets)


def _exceeds(best: Best, value: Value) -> bool:
    """Return whether a ranked number is better than a value."""
    return improves(replace(value, value=None, hex=best.hex), (best.goal, number_of(value)))
