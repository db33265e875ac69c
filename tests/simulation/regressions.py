"""Schedules that once found a bug: they run always, as they were drawn and with other delays.

What a seed draws stays (`generations`), but which operation meets which delay changes with every request that a daemon
makes more or less. So each is run with some other delays, too; and where the mend can be undone in a few lines, it is
undone: some of these delays must then find the bug again.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from sidecar.checkpoints.found import Look
from sidecar.daemon import sightings
from sidecar.history import History
from simulation.by_hand import (
    copied_for_long_after_it_was_deleted,
    old_heartbeat_shows_a_worker_of_a_replaced_group,
    varied,
)
from simulation.generations import make
from simulation.mutation import Mutation
from simulation.mutations_of_promises import leave_the_replaced
from simulation.scenario import Scenario

_see = sightings.Sightings.see


@dataclass(frozen=True, slots=True)
class Regression:
    """A schedule by its seed, what it found, and how the mend is undone, if that takes a few lines."""

    seed: int
    found: str
    undone: Mutation | None = None
    generation: int = 1
    delays: int = 4  # with which it is run
    by_hand: Scenario | None = None  # the same bug, found with nearly any delay

    @property
    def name(self) -> str:
        """Return how people write the seed."""
        return f"{self.generation}:{self.seed}"

    def scenarios(self, count: int | None = None) -> Iterator[Scenario]:
        """Return it as it was drawn, and with other delays; what was made by hand comes first."""
        for scenario in filter(None, (self.by_hand, make(self.seed, self.generation))):
            yield from varied(scenario, count or self.delays)


def _see_no_growth(self, look: Look, *arguments):
    """That a copy grows says nothing: it is waited for no longer than what is broken."""
    known = self._incomplete_since
    new = _see(self, look, *arguments)
    if look.copied and self._incomplete and known:
        self._incomplete_since = known
    return new


_ENDS_TOO_SOON = ("daemons end for a reason", "all is settled", "all end", "whole checkpoints succeed")
_NO_GROWTH = Mutation(
    "copies are not waited for as long as they grow", ((sightings.Sightings, "see", _see_no_growth),), _ENDS_TOO_SOON
)

_COPIED = copied_for_long_after_it_was_deleted()

REGRESSIONS = (
    Regression(
        49144,
        "of a group that another one replaced, a worker was listed again, as an old heartbeat still showed it",
        Mutation(
            "a group that was replaced is not spent",
            ((History, "_spend", leave_the_replaced),),
            ("one group in a life",),
        ),
        by_hand=old_heartbeat_shows_a_worker_of_a_replaced_group(),
    ),
    Regression(29208, "a run ended while another node made the pin of what this one had never seen"),
    Regression(39384, "a run ended while another node made the pin of what this one had never seen"),
    Regression(21051, "such a pin took longer than what is broken is waited for", _NO_GROWTH, by_hand=_COPIED),
    Regression(28172, "such a pin took longer than what is broken is waited for"),
    Regression(
        27884,
        "a run ended while a checkpoint that training deleted was still being copied",
        _NO_GROWTH,
        by_hand=_COPIED,
    ),
    Regression(26720, "a daemon whose state directory was deleted was not started again"),
    Regression(28096, "found while the simulator was extended; what it found is not on record"),
    Regression(6174, "a pin of what training had deleted was taken for the newest checkpoint"),
)
