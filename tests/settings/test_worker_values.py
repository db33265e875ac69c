"""Check the GPUs and ports that workers may use."""

import pytest
from settings.conftest import problems

from sidecar.settings import load


@pytest.mark.parametrize(
    ("replicas", "ports", "fits"), [(1, "21000-21001", True), (2, "21000-21003", True), (2, "21000-21002", False)]
)
def test_every_replica_needs_two_ports(replicas, ports, fits):
    """An active worker and its standby hold a port each."""
    flags = {"checkpoint_dir": "/data", "replicas": replicas, "port_range": ports}
    if fits:
        assert len(load(flags, environ={}).ports) == 2 * replicas
    else:
        (line,) = problems(flags)
        assert line.startswith("option --port-range: '21000-21002': has 3 ports")
        assert "widen it" in line


def test_more_replicas_than_listed_gpus_are_refused():
    """A GPU takes one process."""
    (line,) = problems({"checkpoint_dir": "/data", "replicas": 3}, environ={"SIDECAR_DEVICES": "0,1"})
    assert line.startswith("environment SIDECAR_DEVICES: '0,1': a GPU takes one process")
