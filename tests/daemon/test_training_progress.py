"""Which steps count for stop_after_step: those of the training that goes on now."""

import os
from pathlib import Path

import pytest
from fakes import Node, outcomes, pass_time, restarted, save

from sidecar.checkpoints.scan import DiscoveredCheckpoint
from sidecar.commands.requeue import Request, requeue
from sidecar.daemon.training_progress import TrainingProgress
from sidecar.protocol.records import Checkpoint, Key

END = {"stop_after_step": 1000}


@pytest.fixture
def trained(new_node):
    """A node that has seen a training to its end, with its last two checkpoints still there."""
    node = new_node(**END)
    for step in (990, 1000):
        save(node.checkpoint_dir, step, keep=[990] if step == 1000 else ())
        pass_time(10, node)
    pass_time(10, node)
    assert node.exited == 0
    return node


def clear(node):
    for path in node.checkpoint_dir.glob("c*"):
        path.unlink()


def test_a_directory_that_is_used_again_is_watched_to_the_end_of_the_new_training(trained):
    """Its journal has the former one's last step; its files are gone."""
    clear(trained)
    again = restarted(trained, "i2", **END)
    pass_time(100, again)
    assert again.exited is None
    for step in (10, 1000):
        assert again.exited is None
        save(again.checkpoint_dir, step)
        pass_time(20, again)
    assert again.exited == 0
    assert [name for _, name in outcomes(again.history)] == ["ckpt-990", "ckpt-1000", "ckpt-10"]


def test_old_checkpoints_with_higher_steps_end_no_new_training(trained):
    """They were left where they lie: the one that was written last says where training is."""
    old = [path for path in trained.checkpoint_dir.glob("ckpt-*") if "1000" in path.name]
    for path in old:
        os.utime(path, (1e9, 1e9))
    save(trained.checkpoint_dir, 10, keep=[1000])
    again = restarted(trained, "i2", **END)
    pass_time(100, again)
    assert again.exited is None
    assert outcomes(again.history)[-1] == ("succeeded", "ckpt-10")


def test_a_daemon_that_is_restarted_after_the_end_ends_again(trained):
    """The last checkpoint is there, and evaluated."""
    again = restarted(trained, "i2", **END)
    pass_time(20, again)
    assert again.exited == 0


def test_a_broken_file_with_a_number_in_its_name_ends_nothing(new_node):
    """`x-20240101.h5` is given up as corrupt; no step of it was ever reached."""
    node = new_node(**END)
    save(node.checkpoint_dir, 5)
    (node.checkpoint_dir / "x-20240101.h5").write_bytes(b"no HDF5 at all")
    pass_time(100, node)
    assert ("corrupt", "x-20240101.h5") in outcomes(node.history)
    assert node.exited is None


def test_all_nodes_of_a_run_end(tmp_path, clock):
    """Training deletes the last checkpoint at once: those who saw its end in the journal need it no more."""
    nodes = [Node(tmp_path, clock, f"worker-{number}", **END) for number in range(3)]
    save(nodes[0].checkpoint_dir, 990)
    pass_time(20, *nodes)
    save(nodes[0].checkpoint_dir, 1000, keep=[990])
    pass_time(3, *nodes)
    clear(nodes[0])
    pass_time(60, *nodes)
    assert [node.exited for node in nodes] == [0, 0, 0]


def test_a_training_that_is_set_back_counts_anew(new_node):
    """Live: step 900 was evaluated, then training began again from 10."""
    node = new_node(stop_after_step=950)
    save(node.checkpoint_dir, 900)
    pass_time(20, node)
    save(node.checkpoint_dir, 10)
    pass_time(20, node)
    assert node.daemon.state.view(node.clock.now(), draining=False).checkpoints.last_step == 10
    assert node.exited is None


def test_what_was_there_before_the_start_ends_nothing_with_start_new(new_node):
    """An older training left checkpoints with higher steps: they are skipped, so nothing is evaluated yet."""
    settings = {"start_new": True, "stop_after_step": 100}
    node = new_node(**settings)
    save(node.checkpoint_dir, 300)
    pass_time(100, node)
    assert node.exited is None
    again = restarted(node, "i2", **settings)  # the journal says now what was there
    pass_time(100, again)
    assert again.exited is None
    save(again.checkpoint_dir, 100, keep=[300])
    pass_time(20, again)
    assert again.exited == 0
    assert outcomes(again.history) == [("skipped", "ckpt-300"), ("succeeded", "ckpt-100")]


def test_an_older_checkpoint_that_a_person_asks_for_ends_nothing_with_start_new(new_node):
    """It is evaluated, and is still no checkpoint of this training."""
    node = new_node(start_new=True, stop_after_step=100)
    save(node.checkpoint_dir, 300)
    pass_time(20, node)
    options = {"by": "me", "clock": node.clock, "wait_seconds": 0.0, "pause": lambda _: None, "report": [].append}
    requeue(node.storage.storage, node.storage_thread.reconciler.checkpoints.catalog, Request(["ckpt-300"]), **options)
    pass_time(100, node)
    assert outcomes(node.history)[-1] == ("succeeded", "ckpt-300")
    assert node.exited is None


def seen(name, step):
    checkpoint = Checkpoint(name=name, digest="d" * 64, step=step, format="tf_object")
    return DiscoveredCheckpoint(checkpoint=checkpoint, folder=Path("/ckpts"), written_at=1.0, seen_at=1.0)


def test_what_another_node_found_before_the_start_ends_nothing_with_start_new():
    """One node saw it appear, another began to look later and said that it was there before: it counts for neither."""
    before: set[Key] = set()
    training = TrainingProgress(lambda key: key not in before)
    found = seen("ckpt-200", 200)
    training.record_scan([found], {found.checkpoint.key: found})
    assert training.last_step == 200
    before.add(found.checkpoint.key)
    assert training.last_step == -1


def test_old_checkpoints_are_considered_again_once_the_journal_says_more():
    """Scans without news leave out those that do not count; a record may change that."""
    old = seen("ckpt-200", 200)
    before, asked = {old.checkpoint.key}, []
    training = TrainingProgress(lambda key: asked.append(key) or key not in before)
    for new in ([old], [], []):
        training.record_scan(new, {old.checkpoint.key: old})
    assert training.last_step == -1
    assert len(asked) == 1
    before.clear()
    training.apply((), None, live=True)
    training.record_scan([], {old.checkpoint.key: old})
    assert training.last_step == 200


def test_a_step_that_is_known_later_counts():
    """Names are compared with each other, so a scan may find the step of a checkpoint that had none before."""
    unknown, known = seen("ckpt-200", None), seen("ckpt-200", 200)
    training = TrainingProgress()
    training.record_scan([unknown], {unknown.checkpoint.key: unknown})
    assert training.last_step == -1
    training.record_scan([], {known.checkpoint.key: known})
    assert training.last_step == 200
