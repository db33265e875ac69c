"""Say what calms a person who waits: how long an evaluation usually takes, and that this machine is busy."""

import os
import statistics
from collections.abc import Collection
from contextlib import suppress
from itertools import islice
from typing import Final

from sidecar.coordination.journal_state import Closed, JournalState
from sidecar.errors import SettingsError
from sidecar.policy.node_identity import node_name
from sidecar.settings import Settings
from sidecar.system.clock import seconds_between

_COUNTED: Final = 9  # of the newest evaluations: the median forgets a slow first one
_BUSY: Final = 1.5  # processes that want to run, for each processor


def usual_seconds(history: JournalState) -> float | None:
    """Return how long an evaluation usually takes, by the newest ones; None before the first one."""
    ended = (each for each in reversed(history.entries) if isinstance(each, Closed) and each.outcome.result is not None)
    newest = [(each.plan.proposed_at, each.outcome.completed_at) for each in islice(ended, _COUNTED)]
    took = [seconds for pair in newest if (seconds := seconds_between(*pair)) is not None]
    return statistics.median(took) if took else None


def busy_here(load: float | None = None, processors: int | None = None) -> str:
    """Return a sentence if more processes want to run than there are processors for; else an empty text.

    None: the load of this machine, and the processors that this process may use.
    """
    load = os.getloadavg()[0] if load is None else load
    processors = processors or len(os.sched_getaffinity(0))
    if load < _BUSY * processors:
        return ""
    return f"this machine is busy (load {load:.0f} on {processors} cores), so everything takes longer"


def busy_among(settings: Settings, nodes: Collection[str]) -> str:
    """Return the sentence of `busy_here` if this machine is one of the nodes that evaluate."""
    with suppress(SettingsError):
        return busy_here() if node_name(settings, os.environ) in nodes else ""
    return ""
