"""Draws the scenario of a seed. How that is done has changed: each generation of it stays, so that seeds stay replayable.

A seed without a generation is of the newest. In text a seed of another one is written `1:4711`.
"""

from typing import Final

from simulation import generation_1, generation_2
from simulation.scenario import Scenario

NEWEST: Final = 2

_MAKERS: Final = {1: generation_1.make, 2: generation_2.make}


def make(seed: int, generation: int = NEWEST) -> Scenario:
    """Return the scenario of a seed."""
    return _MAKERS[generation](seed)
