"""Daemons whose whole histories are replayed: by hand, without processes or sleeps."""

import os

import pytest
from fakes import FakeClock, Node


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)  # nothing here is about power failures
    return FakeClock()


@pytest.fixture
def new_node(tmp_path, clock):
    def new(name="worker-1", **settings):
        return Node(tmp_path, clock, name, **settings)

    return new


@pytest.fixture
def node(tmp_path, clock):
    return Node(tmp_path, clock)
