"""Show what is read of one run, and which task its nodes run."""

import pytest

from sidecar.commands.status.run_reader import RunReader


@pytest.fixture
def reader(storage, run):
    return RunReader.begin(storage, run)


def test_the_journal_is_read_on(reader, writers, checkpoint):
    """Each call takes in what was written since the last one."""
    for plan, name in enumerate(("ckpt-1", "ckpt-2"), start=1):
        writers.propose(checkpoint=checkpoint(plan))
        reader.read_journal()
        assert (reader.history.through, reader.history.open.checkpoint.name) == (plan, name)
        writers.close()


def test_the_task_is_that_of_a_node_that_is_alive(reader, writers):
    """A node that was there counts only if no node with a task is known to be alive."""
    assert reader.task(10.0) is None
    writers.beat("node-0", 1, task="old")
    writers.beat("node-1", 1, task="new")
    reader.read_heartbeats(0.0)
    assert reader.task(10.0) == "old"
    writers.beat("node-1", 2, task="new")
    reader.read_heartbeats(3.0)
    assert reader.task(10.0) == "new"


def test_a_file_that_is_no_heartbeat_is_named(reader, writers, storage):
    """The other heartbeats are read all the same."""
    writers.beat("node-0", 1)
    storage.replace("members/node-1.json", b"{")
    reader.read_heartbeats(0.0)
    assert [observed.heartbeat.node for observed in reader.nodes] == ["node-0"]
    assert list(reader.unread) == ["node-1"]
