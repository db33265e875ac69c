"""The engine of this machine: devices and ports of the processes that it starts; processes are fakes."""

import pytest

from sidecar.daemon.workers.engine import PROBE
from sidecar.errors import SettingsError
from sidecar.system.addresses import host_and_port


def test_each_slot_has_its_device_and_the_probe_has_none(node):
    """The process that checks the task must not take memory of a GPU."""
    engine = node(("0", "1")).engine
    placed = [engine.place(f"n.1.{slot}", slot, running=(), post=print) for slot in (0, 1, PROBE)]
    assert [each.process.environment["CUDA_VISIBLE_DEVICES"] for each in placed] == ["0", "1", "-1"]


def test_a_port_is_free_again_after_its_process(node):
    """Also if the process could not be started."""

    def refuse(*_, **__):
        raise SettingsError("no such interpreter")

    engine = node().engine
    engine.place("n.1.1", 0, running=(), post=print).close()
    engine.start = refuse
    with pytest.raises(SettingsError):
        engine.place("n.1.2", 0, running=(), post=print)
    assert engine.ports.closed == [9001, 9002]


def test_ipv6_addresses_stand_in_brackets():
    """So that the port can be told from the host."""
    assert [host_and_port("10.0.0.7", 1), host_and_port("fd00::7", 2)] == ["10.0.0.7:1", "[fd00::7]:2"]
