"""Whole daemons beside training that saves into sub-folders."""

import shutil
from pathlib import Path

import pytest
from fakes import FakeClock, Node, failed, outcomes, pass_time, save

from sidecar.commands.requeue import Request, requeue
from sidecar.protocol.messages import Evaluate
from sidecar.publishing.report import rows


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path, FakeClock(), checkpoint_glob=("epoch_*/*",), max_attempts=1)


def test_each_folder_is_evaluated(node):
    """Folder names, records, views and history all hold the path; training may delete a folder at any time."""
    save(node.checkpoint_dir / "epoch_1", 5)
    pass_time(10, node)
    save(node.checkpoint_dir / "epoch_2", 5)  # the same name, and the same content
    pass_time(3, node)
    shutil.rmtree(node.checkpoint_dir / "epoch_1")
    save(node.checkpoint_dir, 9)
    pass_time(20, node)
    assert outcomes(node.history) == [("succeeded", "epoch_1/ckpt-5"), ("succeeded", "epoch_2/ckpt-5")]
    assert [row["checkpoint"] for row in rows(node.history)] == ["epoch_1/ckpt-5", "epoch_2/ckpt-5"]
    plans = [entry.plan for entry in node.history.entries]
    assert plans[0].checkpoint.digest == plans[1].checkpoint.digest
    views = sorted(path.relative_to(node.run_dir) for path in (node.run_dir / "evaluations").rglob("result.json"))
    assert views == [Path(plan.folder).parent / "result.json" for plan in plans]
    assert all(len(view.parts) == 3 for view in views)
    for plan, each in zip(plans, node.active.told(Evaluate), strict=True):
        pin = node.run_dir / "pins" / plan.checkpoint.folder
        assert each.path == str(pin / "ckpt-5")


def test_one_that_vanishes_and_one_that_failed(node):
    """By their whole names, also when they are requeued."""
    node.silent = {"Evaluate"}
    save(node.checkpoint_dir / "epoch_1", 5)
    pass_time(5, node)
    node.silent = set()
    node.report(node.active, failed("task_error", plan=1, rank=0))
    pass_time(5, node)
    assert outcomes(node.history)[-1] == ("failed", "epoch_1/ckpt-5")
    told = []
    written = requeue(
        node.storage.storage,
        node.storage_thread.reconciler.checkpoints.catalog,
        Request(["epoch_1/ckpt-5"]),
        by="me",
        clock=node.clock,
        wait_seconds=0.0,
        pause=lambda _: None,
        report=told.append,
    )
    assert ([each.name for each in written], told) == (["epoch_1/ckpt-5"], [])
    pass_time(10, node)
    assert outcomes(node.history)[-1] == ("succeeded", "epoch_1/ckpt-5")


def test_what_nobody_asked_for_is_said(tmp_path):
    """Once in the log, at once, and in the hint of the status where nothing is seen for long."""
    node = Node(tmp_path, FakeClock())
    save(node.checkpoint_dir / "epoch_1", 5)
    pass_time(5, node)
    (told,) = node.log.of("checkpoints_in_subfolders")
    assert told["remedy"].endswith('set checkpoint_glob = "epoch_*/*"')
    pass_time(300, node)
    assert node.status.hint == f"no checkpoint was seen in 300 s: {told['remedy']}"
    assert node.log.names().count("checkpoints_in_subfolders") == 1
    save(node.checkpoint_dir, 6)
    pass_time(5, node)
    assert node.status.hint is None
