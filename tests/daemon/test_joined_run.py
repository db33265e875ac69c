"""Join a run, leave it when it is gone for good, and never mix two runs."""

import json
import shutil

import pytest
from fakes import TIMING, Node, outcomes, pass_time, restarted, save

from sidecar.coordination.run import RUN_PATH
from sidecar.coordination.state_directory import StateDirectory
from sidecar.errors import RunReplacedError, SettingsError


def lose(node, *paths):
    for path in paths:
        (node.run_dir / path).unlink()


def put(node, path, data):
    file = node.run_dir / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    return file


@pytest.mark.parametrize("torn", [b"", b"{"])
def test_a_run_file_that_reads_short_is_read_again(node, torn):
    """At a visit and at the start: neither ends a daemon at once."""
    save(node.checkpoint_dir, 5)
    pass_time(10, node)
    whole = (node.run_dir / RUN_PATH).read_bytes()
    put(node, RUN_PATH, torn)
    again = restarted(node, "i2")
    pass_time(15, node)
    pass_time(15, again)
    for each in (node, again):
        assert each.exited is None
        assert RUN_PATH in each.status.unready
    put(node, RUN_PATH, whole)
    pass_time(5, again)
    assert again.status.unready is None
    assert outcomes(again.history) == [("succeeded", "ckpt-5")]


def replace(folder, how):
    if how == "rmtree":
        shutil.rmtree(folder)
    else:
        folder.rename(folder.with_name("old"))
    folder.mkdir()


@pytest.mark.parametrize("how", ["rmtree", "mv"])
def test_a_directory_that_training_makes_anew_begins_a_new_run(node, new_node, how):
    """After a lease each node builds a daemon anew, and they evaluate the new training together."""
    other = new_node("worker-2")
    save(node.checkpoint_dir, 5)
    pass_time(20, node, other)
    replace(node.checkpoint_dir, how)
    save(node.checkpoint_dir, 1)
    pass_time(TIMING.lease_seconds - 3, node, other)
    assert (node.exited, other.exited) == (None, None)
    assert "a new run begins" in node.status.unready
    pass_time(15, node, other)
    assert isinstance(node.exited, RunReplacedError)
    assert isinstance(other.exited, RunReplacedError)
    fresh = [restarted(each, "i2") for each in (node, other)]
    pass_time(30, *fresh)
    assert outcomes(node.history) == [("succeeded", "ckpt-1")]
    assert node.history.newest.outcome.result.workers == 2


def test_a_node_joins_the_run_that_another_began_meanwhile(node):
    """It was suspended for all that time."""
    save(node.checkpoint_dir, 5)
    pass_time(10, node)
    shutil.rmtree(node.checkpoint_dir)
    save(node.checkpoint_dir, 1)
    other = Node(node.checkpoint_dir.parent, node.clock, "worker-2")
    pass_time(10, other)
    pass_time(15, node, other)
    assert isinstance(node.exited, RunReplacedError)
    assert other.exited is None


def test_a_run_file_alone_that_is_gone_is_no_new_run(node):
    """A purge by age takes it first, since it is never written again: the journal is not given up for that."""
    save(node.checkpoint_dir, 5)
    pass_time(10, node)
    whole = (node.run_dir / RUN_PATH).read_bytes()
    lose(node, RUN_PATH)
    pass_time(100, node)
    assert node.exited is None
    assert json.loads(whole)["run"] in node.status.unready
    put(node, RUN_PATH, whole)
    pass_time(5, node)
    assert node.status.unready is None


def test_a_daemon_that_drains_while_its_run_is_deleted_ends(node):
    """No run is left to take leave of."""
    save(node.checkpoint_dir, 5)
    pass_time(10, node)
    shutil.rmtree(node.run_dir)
    pass_time(5, node)
    node.terminate()
    pass_time(30, node)
    assert node.exited == 0


def job(tmp_path, clock, name, node):
    return Node(tmp_path / name, clock, node, state_dir=tmp_path / "state")


def test_two_jobs_with_one_state_directory_are_told_apart(tmp_path, clock):
    """Both are named after their directories, which are named alike: the second is refused, with both paths."""
    first, second = job(tmp_path, clock, "a", "worker-1"), job(tmp_path, clock, "b", "worker-2")
    save(first.checkpoint_dir, 5)
    save(second.checkpoint_dir, 500)
    pass_time(10, first)
    pass_time(10, second)
    assert isinstance(second.exited, SettingsError)
    assert str(first.checkpoint_dir) in str(second.exited)
    assert str(second.checkpoint_dir) in str(second.exited)
    assert outcomes(first.history) == [("succeeded", "ckpt-5")]
    assert not list(second.checkpoint_dir.glob(".sidecar-run-*"))


def test_one_directory_under_two_paths_is_one_job(tmp_path, clock):
    """Nodes mount it where they like: the marker in it says whose it is."""
    first = job(tmp_path, clock, "a", "worker-1")
    save(first.checkpoint_dir, 5)
    pass_time(10, first)
    marker = json.loads((first.checkpoint_dir / ".sidecar-run-run.json").read_text())
    assert marker["run"] == first.state.run
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    second = job(tmp_path, clock, "b", "worker-2")
    pass_time(10, second, first)
    assert second.exited is None
    assert second.state.run == first.state.run


def test_checkpoints_that_belong_to_another_run_are_refused(tmp_path, clock):
    """Their marker names it; deleting the marker is how a person says that they do not."""
    first = job(tmp_path, clock, "a", "worker-1")
    save(first.checkpoint_dir, 5)
    pass_time(10, first)
    put(first, RUN_PATH, b'{"run":"another","nonce":"n"}')
    for path in ("plans", "outcomes"):
        shutil.rmtree(first.run_dir / path)
    second = job(tmp_path, clock, "a", "worker-2")
    pass_time(5, second)
    assert isinstance(second.exited, SettingsError)
    assert "delete that file" in str(second.exited)
    StateDirectory(first.checkpoint_dir, first.run_dir).marker.unlink()
    third = job(tmp_path, clock, "a", "worker-3")
    pass_time(5, third)
    assert third.state.run == "another"


def test_a_checkpoint_directory_that_comes_later_is_marked_then(tmp_path, clock):
    """The state is elsewhere, and others hear of this node meanwhile."""
    node = job(tmp_path, clock, "a", "worker-1")
    node.run_dir.mkdir(parents=True)
    pass_time(10, node)
    assert node.state.run is not None
    save(node.checkpoint_dir, 5)
    pass_time(10, node)
    assert StateDirectory(node.checkpoint_dir, node.run_dir).marker.exists()
    assert outcomes(node.history) == [("succeeded", "ckpt-5")]
