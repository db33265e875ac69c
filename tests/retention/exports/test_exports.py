"""The best checkpoints stay whole below `exports`, whatever befalls nodes, storage, training and the folder itself."""

import errno
import os
import shutil
from copy import deepcopy
from dataclasses import replace

import pytest
from fakes import Node, pass_time, save
from retention.exports.conftest import (
    RULE,
    accuracy,
    evaluate,
    export_of,
    exported,
    exports,
    is_export,
    is_whole,
    linked,
    manifest,
    requeue,
)
from retention.exports.conftest import pinned as pinned_names

from sidecar.retention.exports.exports import Exports
from sidecar.retention.saves.best import exported as best_ones
from sidecar.system.bounded_calls import HangingError


def test_the_best_two_stay_whole_though_training_deleted_them(exporting):
    """Training keeps one; the pins of all others are gone."""
    evaluate(exporting, 0.5, 0.9, 0.8, 0.6)
    assert exported(exporting) == ["ckpt-2", "ckpt-3"]
    assert is_whole(exporting, "ckpt-2")
    assert is_whole(exporting, "ckpt-3")
    assert linked(exporting) == "ckpt-2"
    assert pinned_names(exporting) == []
    assert not list(exporting.checkpoint_dir.glob("ckpt-2.*"))
    files = [path for path in exports(exporting).glob("*@*/*") if path.name != ".checkpoint.json"]
    assert exporting.status.disk.exports_bytes == sum(path.stat().st_size for path in files)


def test_nothing_is_exported_unless_asked_for(node):
    """Not even the folder is made."""
    evaluate(node, 0.5, 0.9)
    assert not exports(node).exists()
    assert pinned_names(node) == []


@pytest.mark.parametrize("by", ["value", "significant"])
def test_the_best_one_is_found_anew_for_other_data(new_node, by):
    """The link moves to the first one that was measured on them. The best one of before stays whole, unranked."""
    node = new_node(exports=replace(RULE, count=1, by=by))
    node.data = "first"
    evaluate(node, 0.5, 0.9, 0.6, half=0.05)
    assert (exported(node), linked(node)) == (["ckpt-2"], "ckpt-2")
    node.data = "other"
    evaluate(node, 0.4, half=0.05, first=4)
    assert (exported(node), linked(node)) == (["ckpt-2", "ckpt-4"], "ckpt-4")
    assert manifest(node)["better_than"] is None
    assert manifest(node, "ckpt-2")["ranks"] == {}
    evaluate(node, 0.8, half=0.05, first=5)
    assert (exported(node), linked(node)) == (["ckpt-2", "ckpt-5"], "ckpt-5")
    assert is_whole(node, "ckpt-2")
    node.data = "third"
    evaluate(node, 0.1, half=0.05, first=6)
    assert (exported(node), linked(node)) == (["ckpt-5", "ckpt-6"], "ckpt-6")


def test_the_first_of_equal_ones_stays_the_best(exporting):
    """As in the gauges."""
    evaluate(exporting, 0.9, 0.9, 0.9)
    assert (exported(exporting), linked(exporting)) == (["ckpt-1", "ckpt-2"], "ckpt-1")


def test_the_link_moves_only_for_more_than_noise(new_node):
    """The best one by number is retained, too; and the one that is linked, although it is not among the best ones."""
    node = new_node(exports=replace(RULE, count=1, by="significant"))
    evaluate(node, 0.8, 0.805, 0.81, half=0.05)
    assert linked(node) == "ckpt-1"
    assert exported(node) == ["ckpt-1", "ckpt-3"]
    assert manifest(node)["ranks"] == {}
    evaluate(node, 0.99, half=0.05, first=4)
    assert linked(node) == "ckpt-4"
    assert exported(node) == ["ckpt-4"]
    assert manifest(node)["better_than"]["lower"] > 0


def test_two_nodes_export_the_same(new_node):
    """Each of them may make and remove exports; neither takes offence at the other's work."""
    nodes = new_node("worker-1", exports=RULE), new_node("worker-2", exports=RULE)
    evaluate(nodes[0], 0.5, 0.9, 0.8, 0.95, others=nodes[1:])
    assert exported(nodes[0]) == ["ckpt-2", "ckpt-4"]
    assert linked(nodes[0]) == "ckpt-4"
    assert not any(node.log.of("export_failed") for node in nodes)


def test_a_node_with_other_settings_takes_nothing_away(new_node):
    """Exports that any node wants are retained, and each node logs that the settings differ."""
    nodes = new_node("worker-1", exports=replace(RULE, count=3)), new_node("worker-2", exports=replace(RULE, count=1))
    evaluate(nodes[0], 0.7, 0.9, 0.8, 0.6, others=nodes[1:])
    assert exported(nodes[0]) == ["ckpt-1", "ckpt-2", "ckpt-3"]
    assert [node.log.of("export_settings_differ") != [] for node in nodes] == [True, True]


def test_a_node_that_exports_nothing_exports_for_others(new_node):
    """It lets pins go first here; without it, the checkpoint would be lost."""
    nodes = new_node("worker-1"), new_node("worker-2", exports=RULE)
    evaluate(nodes[0], 0.7, 0.9, 0.8, others=nodes[1:])
    assert exported(nodes[0]) == ["ckpt-2", "ckpt-3"]


@pytest.mark.parametrize("code", [errno.EXDEV, errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_pin_that_cannot_be_exported_stays_and_is_tried_again(exporting, system_calls, code):
    """Evaluation goes on meanwhile, and the reason is told."""
    system_calls.refuse("rename", code, is_export)
    evaluate(exporting, 0.5, 0.9, 0.8)
    assert exported(exporting) == []
    assert pinned_names(exporting) == ["ckpt-2", "ckpt-3"]  # the first is not among the best any more
    assert len(exporting.history.verdicts.succeeded) == 3
    assert exporting.log.of("checkpoint_entry_failed")
    system_calls.allow()
    pass_time(70, exporting)
    assert (exported(exporting), pinned_names(exporting)) == (["ckpt-2", "ckpt-3"], [])


def test_a_kill_while_an_export_was_removed_leaves_nothing(exporting):
    """Half of it has a hidden name, and goes."""
    evaluate(exporting, 0.9)
    export_of(exporting, "ckpt-1").joinpath("deep").mkdir()
    shutil.copytree(export_of(exporting, "ckpt-1"), exports(exporting) / ".tmp-0123456789abcdef")
    pass_time(8, exporting)
    assert sorted(path.name.split("@")[0] for path in exports(exporting).iterdir()) == ["best", "ckpt-1"]


def test_a_checkpoint_that_is_evaluated_again_competes_with_its_new_number(exporting):
    """Training deleted it: its export is the pin from which it is restored."""
    evaluate(exporting, 0.9, 0.8, 0.7)
    exporting.numbers["ckpt-1"] = accuracy(0.75)
    requeue(exporting, "ckpt-1")
    pass_time(30, exporting)
    assert exporting.history.verdicts.succeeded == exporting.history.totals.checkpoints["evaluated"]
    assert linked(exporting) == "ckpt-2"
    assert exported(exporting) == ["ckpt-1", "ckpt-2"]
    assert manifest(exporting, "ckpt-1")["metrics"]["test"]["accuracy"]["value"] == 0.75
    assert manifest(exporting, "ckpt-1")["ranks"] == {"test/accuracy": 2}
    assert pinned_names(exporting) == []


def test_the_second_best_is_best_once_the_best_one_is_measured_to_be_worse(exporting):
    """And what fell out when there were better ones cannot come back."""
    evaluate(exporting, 0.9, 0.8, 0.7)
    exporting.numbers["ckpt-1"] = accuracy(0.1)
    requeue(exporting, "ckpt-1")
    pass_time(30, exporting)
    assert linked(exporting) == "ckpt-2"


def test_the_same_name_with_other_content_is_another_checkpoint(exporting):
    """Training begins again and overwrites its names."""
    evaluate(exporting, 0.9, 0.8)
    evaluate(exporting, 0.95)
    exporting.numbers["ckpt-1"] = accuracy(0.97)
    for path in exporting.checkpoint_dir.glob("ckpt-1.*"):
        path.unlink()
    save(exporting.checkpoint_dir / "elsewhere", 77)
    for path in (exporting.checkpoint_dir / "elsewhere").glob("ckpt-77.*"):
        path.rename(exporting.checkpoint_dir / path.name.replace("77", "1"))
    shutil.rmtree(exporting.checkpoint_dir / "elsewhere")
    pass_time(15, exporting)
    digests = {path.name.rpartition("@")[2] for path in exports(exporting).glob("ckpt-1@*")}
    assert len(digests) == 2


def test_exports_of_a_run_before_are_left_alone(exporting):
    """The state directory was made anew by hand, and the exports put back."""
    evaluate(exporting, 0.9)
    kept = exporting.checkpoint_dir.parent / "kept"
    shutil.copytree(exports(exporting), kept, symlinks=True)
    shutil.rmtree(exporting.run_dir)
    restarted = Node(exporting.checkpoint_dir.parent, exporting.clock, incarnation="i2", exports=RULE)
    restarted.numbers["ckpt-2"] = accuracy(0.3)
    pass_time(3, restarted)
    shutil.copytree(kept, exports(restarted), symlinks=True)
    save(restarted.checkpoint_dir, 2)
    pass_time(30, restarted)
    assert exported(restarted) == ["ckpt-1", "ckpt-2"]
    assert linked(restarted) == "ckpt-2"
    (problem,) = restarted.log.of("export_failed")
    assert problem["entry"].startswith("ckpt-1@")


def test_training_goes_on_after_a_restart_with_a_smaller_number(exporting):
    """Exports beyond the smaller number are removed after the restart, and the others stay."""
    evaluate(exporting, 0.9, 0.8)
    restarted = Node(exporting.checkpoint_dir.parent, exporting.clock, incarnation="i2", exports=replace(RULE, count=1))
    pass_time(30, restarted)
    assert exported(restarted) == ["ckpt-1"]
    assert restarted.log.of("export_returned") == []


@pytest.mark.parametrize("kind", ["link", "fifo", "folder", "file"])
def test_planted_comparisons_stop_nothing_by_value(exporting, tmp_path, kind):
    """They are for people then; nothing is written through a link."""
    evaluate(exporting, 0.5, half=0.1)
    place = exporting.run_dir / "comparisons"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    if kind == "link":
        place.symlink_to(elsewhere)
    elif kind == "file":
        place.write_text("mine")
    elif kind == "fifo":
        os.mkfifo(place)
    else:
        place.mkdir()
        place.chmod(0o500)
    evaluate(exporting, 0.9, half=0.1, first=2)
    assert linked(exporting) == "ckpt-2"
    assert list(elsewhere.iterdir()) == []


def test_comparisons_that_cannot_be_recorded_keep_the_link(new_node, tmp_path):
    """Another node could decide otherwise; nothing is removed meanwhile, and the reason is told."""
    node = new_node(exports=replace(RULE, count=1, by="significant"))
    evaluate(node, 0.5, half=0.01)
    (node.run_dir / "comparisons").symlink_to(tmp_path)
    evaluate(node, 0.9, half=0.01, first=2)
    assert linked(node) == "ckpt-1"
    assert exported(node) == ["ckpt-1", "ckpt-2"]
    assert [problem["entry"] for problem in node.log.of("export_failed")] == ["best"]
    (node.run_dir / "comparisons").unlink()
    pass_time(8, node)
    assert (linked(node), exported(node)) == ("ckpt-2", ["ckpt-2"])


def test_the_linked_one_stays_while_the_link_cannot_be_read(new_node, system_calls):
    """It is not among the best by number; another node may be replacing something at that moment."""
    node = new_node(exports=replace(RULE, count=1, by="significant"))
    evaluate(node, 0.8, 0.805, half=0.05)
    assert exported(node) == ["ckpt-1", "ckpt-2"]
    system_calls.refuse("readlink", errno.EIO, lambda name, **_: str(name) == "best")
    pass_time(20, node)
    assert exported(node) == ["ckpt-1", "ckpt-2"]


def test_problems_of_a_pass_that_ends_late_are_told(new_node):
    """Slow storage answers each pass only in the next one; nothing is told twice, or taken for solved meanwhile."""
    node = new_node(exports=RULE)
    evaluate(node, 0.9)
    (exports(node) / "notes").mkdir()
    late = []

    def in_the_next_pass(key, function):
        if key != "/exports":
            return function()
        if not late:
            late.append(function())
            raise HangingError(key, "storage has not answered for 1 s")
        return late.pop()

    node.exports.calls = in_the_next_pass
    pass_time(10, node)
    assert [problem["entry"] for problem in node.log.of("export_failed")] == ["notes"]
    assert node.status.disk.failing_exports == 1


def test_passes_that_never_end_are_told(new_node):
    """A comparison of many examples may take some passes, and storage that does not answer takes all."""
    node = new_node(exports=RULE)
    evaluate(node, 0.9)

    def hangs(key, function):
        if key != "/exports":
            return function()
        raise HangingError(key, "storage has not answered for 20 s")

    node.exports.calls = hangs
    pass_time(10, node)
    assert node.log.of("export_failed") == []
    pass_time(40, node)
    (problem,) = node.log.of("export_failed")
    assert problem["entry"] == "exports"
    assert "has not answered" in problem["reason"]


FEWER = replace(RULE, count=1)


@pytest.mark.parametrize(
    ("rule", "leaving", "left"), [(FEWER, False, [2, 1]), (FEWER, True, [1]), (None, True, [2, 2])]
)
def test_an_export_is_removed_by_the_second_pass_that_finds_it_unneeded(exporting, rule, leaving, left):
    """A node that starts at that moment may want it. A node that leaves has no second one; one without a rule waits."""
    evaluate(exporting, 0.9, 0.8)
    policy = exporting.state.pin_policy(exporting.clock.now())
    policy = replace(policy, exports=((FEWER, best_ones(exporting.history, FEWER)),))
    made = Exports(exporting.run_dir, exporting.storage, rule)
    counts = []
    for _ in left:
        assert made.reconcile(policy, leaving=leaving).problems == {}
        counts.append(len(exported(exporting)))
    assert counts == left


def test_one_after_the_other_is_compared_with_the_best_one_before_it(new_node, tmp_path):
    """As if each had been compared when it was evaluated, so that the time of a pass does not matter."""
    node = new_node(exports=replace(RULE, by="significant"))
    evaluate(node, 0.5, half=0.02)
    (node.run_dir / "comparisons").symlink_to(tmp_path)
    evaluate(node, 0.56, 0.57, half=0.02, first=2)
    assert linked(node) == "ckpt-1"
    (node.run_dir / "comparisons").unlink()
    pass_time(8, node)
    assert linked(node) == "ckpt-2"


def test_a_node_that_reads_the_journal_late_moves_nothing_back(new_node):
    """Its storage shows it the new best export before the outcome, or its scan takes long."""
    rule = replace(RULE, by="significant")
    node = new_node(exports=rule)
    evaluate(node, 0.5, 0.505, half=0.05)
    behind = deepcopy(node.history)
    evaluate(node, 0.9, 0.6, half=0.05, first=3)
    policy = replace(
        node.state.pin_policy(node.clock.now()), history=behind, exports=((rule, best_ones(behind, rule)),)
    )
    late = Exports(node.run_dir, node.storage, rule)
    for _ in range(3):
        assert late.reconcile(policy).problems == {}
        assert (linked(node), exported(node), pinned_names(node)) == ("ckpt-3", ["ckpt-3", "ckpt-4"], [])
        assert manifest(node)["ranks"] == {"test/accuracy": 1}
