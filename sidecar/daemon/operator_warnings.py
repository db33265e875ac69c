"""What people should be told once: a setting that does not fit, a path that shows nothing. It decides nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sidecar.artifacts.retention import TRIES
from sidecar.checkpoints.step_sources import REMEDY, StepSources
from sidecar.checkpoints.unseen_steps import Gap
from sidecar.records import Checkpoint, Key

_TROUBLE_REMEMBERED: Final = 200
_NUMBERS_SHOWN: Final = 20


@dataclass(slots=True)
class OperatorWarnings:
    """One daemon's. Each is told again only after what it tells of has changed."""

    log: Any
    _unmeasured: str | None = None
    _watch_problem: str | None = None
    _below: str | None = None
    _steps: StepSources = field(default_factory=StepSources)
    _step_missed: bool = False
    _entries: frozenset[str] = frozenset()  # that failed in the last look
    _trouble: tuple[str, ...] = ()  # that was told, the newest last

    def missing(self) -> None:
        """The checkpoint directory is not there, or not any more."""
        remedy = "waiting until training creates it; is this path shared with the chief?"
        self.log.warning("checkpoint_dir_missing", remedy=remedy)

    def below(self, remedy: str | None) -> None:
        """Sub-folders hold checkpoints, and nobody said that they count."""
        if remedy is not None and self._below is None:
            self.log.warning("checkpoints_in_subfolders", remedy=remedy)
        self._below = self._below or remedy

    def empty(self, seconds: float) -> str:
        """Nothing was ever seen in it, for so long: training may save elsewhere. Returns it for the status page."""
        remedy = self._below or "is this path shared with the chief?"
        self.log.warning("nothing_seen", seconds=seconds, remedy=remedy)
        return f"no checkpoint was seen in {seconds:g} s: {remedy}"

    def watched(self, problem: str | None) -> None:
        """Why no file events come, if none do."""
        if problem not in (None, self._watch_problem):
            self.log.info("file_events_unavailable", reason=problem, remedy="sweeps find everything")
        self._watch_problem = problem

    def steps(self, new: Sequence[Checkpoint]) -> None:
        """Tell how steps were found, once, and again when another way turns up."""
        if self._steps.add(new):
            say = self.log.warning if self._steps.are_doubtful else self.log.info
            say("steps_found", how=self._steps.told(), **({"remedy": REMEDY} if self._steps.are_doubtful else {}))

    def unknown_step(self, checkpoint: Checkpoint) -> None:
        """`every_steps` has no step to go by."""
        if not self._step_missed:
            self._step_missed = True
            remedy = "it is evaluated; name where the step stands with step_key or step_pattern"
            self.log.warning("step_unknown", checkpoint=checkpoint.name, remedy=remedy)

    def unseen(self, gap: Gap) -> None:
        """Training deleted checkpoints before any node saw them."""
        remedy = "keep more checkpoints (max_to_keep), or let more nodes look: these cannot be evaluated any more"
        numbers = list(gap.missing[:_NUMBERS_SHOWN])
        about = {"series": gap.series, "count": len(gap.missing), "numbers": numbers, "last": gap.missing[-1]}
        self.log.warning("checkpoints_deleted_unseen", **about, remedy=remedy)

    def no_room(self, no_room: Mapping[Key, str]) -> None:
        """There is no room to hold what waits, from now on; it is tried again at each look."""
        if no_room:
            (name, _), reason = next(iter(no_room.items()))
            remedy = "it may vanish before it is evaluated; free space, or change pin_max_bytes or keep_free_bytes"
            self.log.warning("checkpoint_not_held", checkpoint=name, reason=reason, remedy=remedy)

    def trouble(self, sentences: Sequence[str]) -> None:
        """Views or saves could not be read, written or removed: nothing rests on them, so all goes on."""
        for sentence in sentences:
            if sentence not in self._trouble:
                self.log.warning("entry_failed", message=sentence)
                self._trouble = (*self._trouble, sentence)[-_TROUBLE_REMEMBERED:]

    def entries(self, reasons: Mapping[str, str]) -> None:
        """Tell of checkpoints and pins that cannot be read, held or let go; by name, each again after it was well."""
        for name, why in reasons.items():
            if name not in self._entries:
                remedy = "the others go on; it is tried again in each scan"
                self.log.warning("checkpoint_entry_failed", entry=name, reason=why, remedy=remedy)
        self._entries = frozenset(reasons)

    def left(self, folder: str, why: str) -> None:
        """What a plan left, or what is no longer kept, stays in part: tidying it failed again and again."""
        remedy = "nobody tries again before a daemon starts; remove it by hand"
        self.log.warning("saves_left", folder=folder, tries=TRIES, reason=why, remedy=remedy)

    def best(self, complaint: str | None) -> None:
        """`best_metric` names what nobody measures: nothing would be kept as the best, without a word."""
        if complaint not in (None, self._unmeasured):
            self.log.warning("best_metric_unknown", message=complaint)
        self._unmeasured = complaint
