"""Decide from the journal which checkpoints are settled, which succeeded, and which failed how often. Pure.

`JournalState` calls it for each settlement and each end of an attempt, in the order of the journal.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import chain, filterfalse
from typing import Final

from sidecar.coordination.key_set import KeySet
from sidecar.protocol.records import Key, Outcome, Settlement, folder_name
from sidecar.protocol.states import Verdict

BEFORE_START: Final = "it was there before the start (start=new)"
"""The reason of settlements that skip the checkpoints from before the run."""

Failures = dict[str | None, list[Outcome]]
"""Failed attempts at one checkpoint, by the digest of the task that tried it."""


@dataclass(slots=True, kw_only=True)
class CheckpointVerdicts:
    """Hold the verdict on each checkpoint, and the attempts at those that may be tried again."""

    succeeded: KeySet = field(default_factory=KeySet)  # evaluated, and not requeued since; `Totals` has all
    settled: dict[Key, Verdict] = field(default_factory=dict)  # the newest verdict
    before_start: set[Key] = field(default_factory=set)  # skipped, because saved before the start, with start=new
    failed_tasks: dict[Key, set[str | None]] = field(default_factory=dict)  # tasks with a final failure; None: all
    failures: dict[Key, Failures] = field(default_factory=dict)  # of checkpoints that may be tried again
    requeued: set[Key] = field(default_factory=set)  # requested again by a person, and not settled since

    @property
    def without_result(self) -> set[Key]:
        """Return the checkpoints that were settled and have not succeeded since, for example under a corrected task."""
        return {key for key in self.settled if key not in self.succeeded}

    def settle(self, settlement: Settlement) -> None:
        """Note that a checkpoint was settled without an evaluation."""
        key, verdict = settlement.key, settlement.verdict
        self.requeued.discard(key)
        self.settled[key] = verdict
        if settlement.reason == BEFORE_START:
            self.before_start.add(key)
        if verdict == Verdict.FAILED:
            self.failed_tasks.setdefault(key, set()).add(settlement.task)
            self.failures.get(key, {}).pop(settlement.task, None)
        if verdict != Verdict.FAILED or not self.failures.get(key):
            self.failures.pop(key, None)

    def requeue(self, key: Key) -> bool:
        """Note that a person requested a checkpoint again; return whether it had succeeded."""
        for verdicts in (self.settled, self.failed_tasks, self.failures):
            verdicts.pop(key, None)
        self.requeued.add(key)
        had_succeeded = key in self.succeeded
        self.succeeded.discard(key)
        return had_succeeded

    def succeed(self, key: Key) -> None:
        """Note that a checkpoint was evaluated."""
        self.failures.pop(key, None)
        self.requeued.discard(key)
        self.succeeded.add(key)

    def fail(self, key: Key, task: str | None, outcome: Outcome) -> None:
        """Note that an attempt at a checkpoint failed."""
        self.failures.setdefault(key, {}).setdefault(task, []).append(outcome)

    def is_known(self, key: Key) -> bool:
        """Return whether the journal said anything about a checkpoint before."""
        return any(key in past for past in (self.failures, self.settled, self.requeued, self.succeeded))

    def failed_under(self, key: Key, task: str | None) -> list[Outcome]:
        """Return the failed attempts at a checkpoint with a task."""
        return self.failures.get(key, {}).get(task, [])

    def is_settled(self, key: Key, task: str | None) -> bool:
        """Return whether a checkpoint needs no further plan; a failure counts only for the task that failed."""
        if key in self.succeeded:
            return True
        if key in self.settled and self.settled[key] != Verdict.FAILED:
            return True
        failed = self.failed_tasks.get(key, set())
        return None in failed or task in failed

    def never_settled(self, folders: Collection[str]) -> set[str]:
        """Return those folder names (`folder_name`) whose checkpoints were neither evaluated nor settled otherwise."""
        ended = chain(self.settled, self.succeeded.in_folders(folders)) if folders else ()
        return set(folders).difference(map(folder_name, ended))

    def unsettled(self, keys: Iterable[Key], task: str | None) -> list[Key]:
        """Return the keys that need a further plan, in their order; tens of thousands take some milliseconds."""
        left = filterfalse(self.succeeded.__contains__, keys) if self.succeeded else keys
        if self.failed_tasks:
            return [key for key in left if not self.is_settled(key, task)]
        return list(filterfalse(self.settled.__contains__, left))
