"""A daemon's memory does not grow with its run, but for a little of each evaluated checkpoint: in virtual time."""

import gc
import sys
import threading
import types
from dataclasses import replace

import pytest

from simulation import by_hand
from simulation.scenario import NodeSettings
from simulation.simulation import Simulation

SECONDS = 4.0  # between two saves: long enough for one evaluation
FIRST, MORE = 1300, 650  # by the first all that is remembered for a while is full; the log of entries is cut every 65
MOST_BYTES = 120  # of each evaluation: 20,000 of them take 2.4 MB
_CODE = (
    *(type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, types.CodeType, types.FrameType),
    *(types.GeneratorType, type(threading.Lock())),
)


def slots(thing):
    """Yield the attributes of an object."""
    for cls in type(thing).__mro__:
        own = getattr(cls, "__slots__", ())
        yield from (own,) if isinstance(own, str) else own
    yield from getattr(thing, "__dict__", ())


def held(daemon):
    """Return the bytes of everything that can be reached from a daemon, without the simulation around it."""
    seen, left, size = set(), [daemon], 0
    while left:
        thing = left.pop()
        if isinstance(thing, types.MethodType):
            thing = thing.__self__
        module = type(thing).__module__
        if id(thing) in seen or isinstance(thing, _CODE) or module.startswith(("simulation", "unittest")):
            continue
        seen.add(id(thing))
        size += sys.getsizeof(thing)
        if module.startswith("sidecar"):
            left += (getattr(thing, name) for name in slots(thing) if hasattr(thing, name))
        else:
            left += gc.get_referents(thing)
    return size


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_a_daemon_grows_by_little_for_each_evaluation(record_property):
    """Two hours of virtual time, in which training saves and deletes thousands of checkpoints."""
    last = FIRST + MORE
    saves = by_hand.saves_of(*((100 * number, 2.0 + SECONDS * number) for number in range(1, last + 5)))
    scenario = replace(by_hand.scenario_of(by_hand.nodes_of(1, NodeSettings()), saves, ()), keep=12)
    simulation, found = Simulation(scenario), []

    def look():
        gc.collect()
        found.append((simulation.outcomes["succeeded"], held(simulation.hosts[0].life.daemon)))

    for number in (FIRST, last):
        simulation.scheduler.at(2.5 + SECONDS * number, look)
    assert simulation.run().violation is None
    (before, less), (after, more) = found
    record_property("bytes of each evaluation", (more - less) / MORE)
    assert after - before == MORE
    assert more > 100_000
    assert more - less < MOST_BYTES * MORE
