"""Daemons whose whole histories are replayed: by hand, without processes or sleeps."""

import pytest
from fakes import FakeClock, Node, pass_time, save

from sidecar.checkpoints import candidate_decision
from sidecar.protocol.records import Checkpoint
from sidecar.retention.pins import index


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def new_node(tmp_path, clock):
    def new(name="worker-1", **settings):
        return Node(tmp_path, clock, name, **settings)

    return new


@pytest.fixture
def nameless(monkeypatch):
    """Neither files nor names hold a step."""

    def nameless(format_, name, inspection, _):
        return Checkpoint(name=name, digest=inspection.digest, step=None, format=format_.name)

    monkeypatch.setattr(candidate_decision, "as_checkpoint", nameless)
    monkeypatch.setattr(index, "as_checkpoint", nameless)


@pytest.fixture
def node(tmp_path, clock):
    return Node(tmp_path, clock)


@pytest.fixture
def evaluating(node):
    """A node in the middle of its first evaluation."""
    save(node.checkpoint_dir, 5)
    node.silent = {"Evaluate"}
    pass_time(5, node)
    return node
