"""Replay a daemon whose run's state is torn, full of holes, newer, away, deleted or another's: as histories."""

import json
import os
import subprocess

import pytest
from fakes import TIMING, Node, outcomes, pass_time, restarted, save

from sidecar.coordination.journal import outcome_path, plan_path
from sidecar.coordination.run import RUN_PATH
from sidecar.errors import RecordError, StorageLostError
from sidecar.protocol.messages import Join

NEWER = b'{"schema":3}'


def heartbeat(node):
    return json.loads((node.run_dir / "members" / f"{node.node}.json").read_bytes())


def lose(node, *paths):
    for path in paths:
        (node.run_dir / path).unlink()


def put(node, path, data):
    file = node.run_dir / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    return file


@pytest.fixture
def evaluated(node):
    """A node that has evaluated ckpt-5 and stopped."""
    save(node.checkpoint_dir, 5)
    pass_time(10, node)
    node.terminate()
    pass_time(5, node)
    assert node.exited == 0
    return node


def test_an_old_outcome_never_becomes_the_result_of_another_checkpoint(evaluated):
    """A purge by age took plan 1 and not its outcome: a restarted daemon says so, and publishes nothing."""
    lose(evaluated, plan_path(1))
    save(evaluated.checkpoint_dir, 6)
    again = restarted(evaluated, "i2")
    pass_time(TIMING.pin_wait_seconds - 5, again)
    assert again.exited is None
    assert "plans/000000000001.json is missing" in again.status.unready
    pass_time(10, again)
    assert isinstance(again.exited, StorageLostError)
    assert again.exited.exit_code == 5
    assert not list((again.run_dir / "plans").iterdir())
    assert not any(process.told(Join) for process in again.processes.values())


def test_a_live_daemon_proposes_nothing_behind_a_record_that_is_gone(node):
    """It has read plan 1; others would begin there again."""
    save(node.checkpoint_dir, 5)
    pass_time(10, node)
    lose(node, outcome_path(1))
    save(node.checkpoint_dir, 6, keep=[5])
    pass_time(30, node)
    assert "outcomes/000000000001.json, which this program has read, is not there" in node.status.unready
    assert not (node.run_dir / plan_path(2)).exists()
    pass_time(60, node)
    assert isinstance(node.exited, StorageLostError)


def test_a_record_that_reads_short_for_a_while_ends_nobody(node, new_node):
    """Both nodes beat on; once it is whole they go on by themselves, and have evaluated all of it once."""
    other = new_node("worker-2")
    save(node.checkpoint_dir, 5)
    pass_time(20, node, other)
    plan = node.history.through + 1
    torn = put(node, plan_path(plan), b"")
    save(node.checkpoint_dir, 6, keep=[5])
    beat = heartbeat(node)["beat"]
    pass_time(5, node, other)
    assert f"{plan_path(plan)}" in node.status.unready
    assert heartbeat(node)["beat"] > beat
    assert heartbeat(node)["state"] == "ready"
    pass_time(15, node, other)
    assert heartbeat(node)["state"] == heartbeat(other)["state"] == "starting"  # listed by nobody, and alive
    assert other.status.nodes.members == {"starting": 2}
    torn.unlink()
    pass_time(20, node, other)
    assert (node.status.unready, other.status.unready) == (None, None)
    assert outcomes(node.history) == [("succeeded", "ckpt-5"), ("succeeded", "ckpt-6")]


def test_a_record_that_stays_broken_ends_the_daemon_by_name(node):
    """After visibility_seconds: nobody can tell what was decided."""
    save(node.checkpoint_dir, 5)
    pass_time(10, node)
    put(node, plan_path(2), b"{")
    pass_time(TIMING.pin_wait_seconds - 5, node)
    assert node.exited is None
    pass_time(15, node)
    assert isinstance(node.exited, RecordError)
    assert plan_path(2) in str(node.exited)


def test_what_is_saved_while_the_journal_cannot_be_read_is_held(node):
    """Training may delete it before the journal is read again."""
    save(node.checkpoint_dir, 5)
    pass_time(10, node)
    torn = put(node, plan_path(2), b"")
    save(node.checkpoint_dir, 6)
    pass_time(10, node)
    save(node.checkpoint_dir, 7)  # deletes 6
    torn.unlink()
    pass_time(20, node)
    assert outcomes(node.history) == [("succeeded", f"ckpt-{step}") for step in (5, 6, 7)]


def test_a_folder_in_place_of_a_record_makes_the_node_unready_and_no_more(node):
    """Storage says the same at every visit; the node beats on, for as long as it takes somebody to look."""
    save(node.checkpoint_dir, 5)
    pass_time(10, node)
    (node.run_dir / plan_path(2)).mkdir()
    pass_time(300, node, step=5)
    assert node.exited is None
    assert f"{plan_path(2)}: it is a folder" in node.status.unready
    (node.run_dir / plan_path(2)).rmdir()
    save(node.checkpoint_dir, 6, keep=[5])
    pass_time(20, node)
    assert outcomes(node.history) == [("succeeded", "ckpt-5"), ("succeeded", "ckpt-6")]


@pytest.mark.parametrize("path", [plan_path(2), RUN_PATH])
def test_a_daemon_stands_by_where_a_newer_release_wrote(node, path):
    """It beats, as a node that others do not count on, and has no workers; it holds and lets go of nothing."""
    save(node.checkpoint_dir, 5)
    pass_time(10, node)
    pinned = sorted((node.run_dir / "pins").iterdir())
    put(node, path, NEWER)
    save(node.checkpoint_dir, 6, keep=[5])
    beat = heartbeat(node)["beat"]
    pass_time(600, node, step=2)
    assert node.exited is None
    assert node.status.unready.startswith(f"the journal needs a newer release of this daemon: {path}")
    assert node.alive() == []
    assert sorted((node.run_dir / "pins").iterdir()) == pinned
    assert node.status.state == "starting"
    if path != RUN_PATH:
        assert heartbeat(node)["beat"] > beat + 100
        assert heartbeat(node)["state"] == "starting"
    assert node.log.names().count("storage_failed") == 1
    node.terminate()
    pass_time(TIMING.storage_timeout_seconds + 5, node)
    assert node.exited == 0


def test_a_daemon_that_starts_where_a_newer_release_wrote_stands_by_too(evaluated):
    """A supervisor that restarts it again and again would only cost: it waits for its own upgrade."""
    put(evaluated, plan_path(2), NEWER)
    again = restarted(evaluated, "i2")
    pass_time(100, again)
    assert again.exited is None
    assert "needs a newer release" in again.status.unready
    assert again.alive() == []
    again.terminate()
    pass_time(5, again)
    assert again.exited == 0


def test_the_newer_release_goes_on_without_those_that_stand_by(node):
    """The part of an older node in an open plan is over: its workers are killed, the others see who it is."""
    save(node.checkpoint_dir, 5)
    node.silent = {"Evaluate"}
    pass_time(5, node)
    worker = node.active
    put(node, outcome_path(1), NEWER)
    pass_time(10, node)
    assert worker.killed
    assert node.exited is None
    assert node.status.unready is not None


@pytest.fixture
def mount(tmp_path):
    """Mounts folders of a disk of its own; what lies there stays when it is unmounted."""
    if os.geteuid() != 0:
        pytest.skip("only root mounts")
    disk, points = tmp_path / "disk", []
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "none", disk], capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount")
    (disk / "state").mkdir()

    def at(point):
        point.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "--bind", disk / "state", point], check=True)
        points.append(point)

    yield at
    for point in [*points, disk]:
        subprocess.run(["umount", "--lazy", point], capture_output=True)


@pytest.mark.parametrize("inside", [True, False], ids=["inside the checkpoint directory", "elsewhere"])
def test_a_state_directory_that_is_unmounted_for_a_while_is_waited_for(tmp_path, clock, mount, inside):
    """Nobody ends, who starts meanwhile waits, nothing is written below it, and nothing is evaluated twice."""
    state = tmp_path / "checkpoints" / ".sidecar" if inside else tmp_path / "state"
    settings = {} if inside else {"state_dir": state}
    mount(state)
    nodes = [Node(tmp_path, clock, name, **settings) for name in ("worker-1", "worker-2")]
    folder = nodes[0].checkpoint_dir
    save(folder, 5)
    pass_time(20, *nodes)
    assert nodes[0].log.names().count("journal_read") == 1
    subprocess.run(["umount", "--lazy", state], check=True)
    pass_time(10, *nodes)
    started = Node(tmp_path, clock, "worker-3", **settings)
    nodes.append(started)
    pass_time(60, *nodes)
    assert [node.exited for node in nodes] == [None] * 3
    assert all("mount it again" in node.status.unready.lower() for node in nodes)
    assert str(folder / ".sidecar-run-run.json") in started.status.unready
    assert list(state.iterdir()) == []
    save(folder, 6, keep=[5])
    mount(state)
    pass_time(30, *nodes)
    assert [node.status.unready for node in nodes] == [None] * 3
    assert outcomes(nodes[0].history) == [("succeeded", "ckpt-5"), ("succeeded", "ckpt-6")]
