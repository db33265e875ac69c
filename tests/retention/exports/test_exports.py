"""The best checkpoints stay whole below `exports`, whatever befalls nodes, storage, training and the folder itself."""

import errno
import json
import os
import shutil
import subprocess
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import Node, pass_time, save
from nested_folders import nest

from sidecar.checkpoints.inspect import verify
from sidecar.coordination.journal import Journal
from sidecar.coordination.run import read_run
from sidecar.protocol.export_rule import ExportRule
from sidecar.protocol.records import Plan, Settlement, Value
from sidecar.retention.exports import exports as exports_module
from sidecar.retention.exports.exports import Exports
from sidecar.retention.saves.best import exported as best_ones
from sidecar.system.bounded_calls import HangingError
from sidecar.system.confined import Folder

RULE = ExportRule(metric="test/accuracy", count=2)


def accuracy(number, half=None):
    bounds = {} if half is None else {"lower": number - half, "upper": number + half}
    return Value(value=number, hex=number.hex(), goal="max", **bounds)


@pytest.fixture
def exporting(new_node):
    """A node that retains the two best checkpoints."""
    return new_node(exports=RULE)


def evaluate(node, *numbers, half=None, first=1, others=()):
    """Save checkpoints whose accuracies are these, one after the other; training keeps the newest only."""
    for step, number in enumerate(numbers, start=first):
        for each in (node, *others):
            each.numbers[f"ckpt-{step}"] = accuracy(number, half)
        save(node.checkpoint_dir, step)
        pass_time(12, node, *others)


def exports(node) -> Path:
    return node.run_dir / "exports"


def exported(node) -> list[str]:
    """The checkpoints that are exported."""
    return sorted(path.name.split("@")[0] for path in exports(node).glob("*@*"))


def linked(node) -> str | None:
    """The checkpoint to which the link leads."""
    link = exports(node) / "best"
    return str(link.readlink()).split("@")[0] if link.is_symlink() else None


def manifest(node, name: str = "best") -> dict:
    (path,) = exports(node).glob("best" if name == "best" else f"{name}@*")
    return json.loads((path / "manifest.json").read_text())


def pinned(node) -> list[str]:
    return sorted(path.name.split("@")[0] for path in (node.run_dir / "pins").glob("[!.]*"))


def export_of(node, name: str) -> Path:
    (path,) = exports(node).glob(f"{name}@*")
    return path


def is_whole(node, name: str) -> bool:
    path = export_of(node, name)
    return verify(path, name)[:12] == path.name.rpartition("@")[2] and (path / f"{name}.data-00000-of-00001").exists()


def requeue(node, name: str) -> None:
    """A person asks for another evaluation."""
    run = read_run(node.storage.storage)
    journal = Journal(node.storage.storage, run)
    list(journal.read_to_end())
    key = next(key for key in node.state.history.verdicts.succeeded if key[0] == name)
    settlement = Settlement(name=key[0], digest=key[1], step=None, verdict="requeued", reason="asked")
    journal.propose(
        Plan(
            plan=journal.through + 1,
            run=run,
            nonce="by hand",
            checkpoint=None,
            attempt=0,
            members=None,
            settles=(settlement,),
            task=None,
            proposer="person",
            proposed_at="now",
        )
    )


def test_the_best_two_stay_whole_though_training_deleted_them(exporting):
    """Training keeps one; the pins of all others are gone."""
    evaluate(exporting, 0.5, 0.9, 0.8, 0.6)
    assert exported(exporting) == ["ckpt-2", "ckpt-3"]
    assert is_whole(exporting, "ckpt-2")
    assert is_whole(exporting, "ckpt-3")
    assert linked(exporting) == "ckpt-2"
    assert pinned(exporting) == []
    assert not list(exporting.checkpoint_dir.glob("ckpt-2.*"))
    files = [path for path in exports(exporting).glob("*@*/*") if path.name != ".checkpoint.json"]
    assert exporting.status.disk.exports_bytes == sum(path.stat().st_size for path in files)


def test_nothing_is_exported_unless_asked_for(node):
    """Not even the folder is made."""
    evaluate(node, 0.5, 0.9)
    assert not exports(node).exists()
    assert pinned(node) == []


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


def test_a_manifest_says_what_was_measured(exporting):
    """Its place changes as better ones come, and a new best one says how much better it is."""
    evaluate(exporting, 0.5, 0.9, half=0.1)
    first = manifest(exporting)
    plan = exporting.history.newest.plan
    assert first["checkpoint"] == first["path"] == "ckpt-2"
    assert first["digest"] == plan.checkpoint.digest
    assert first["ranks"] == {"test/accuracy": 1}
    assert (first["step"], first["plan"], first["run"]) == (2, plan.plan, plan.run)
    assert first["metrics"]["test"]["accuracy"]["hex"] == (0.9).hex()
    assert first["examples"] == {"test": 1003}
    assert {file["name"] for file in first["files"]} == {"ckpt-2.index", "ckpt-2.data-00000-of-00001"}
    assert (first["better_than"]["rule"], first["better_than"]["better"]) == ("intervals", True)
    assert first["better_than"]["difference"] == pytest.approx(0.4)
    evaluate(exporting, 0.95, half=0.1, first=3)
    assert manifest(exporting, "ckpt-2")["ranks"] == {"test/accuracy": 2}
    assert manifest(exporting)["ranks"] == {"test/accuracy": 1}
    assert manifest(exporting)["better_than"]["better"] is False


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


def test_the_link_is_there_at_any_moment(exporting, monkeypatch):
    """A reader who follows it finds the old one or the new one: it is replaced, and not removed before."""
    evaluate(exporting, 0.5)
    unlink = Folder.unlink

    def refuse(self, name):
        assert name != "best"
        unlink(self, name)

    monkeypatch.setattr(Folder, "unlink", refuse)
    evaluate(exporting, 0.9, first=2)
    assert linked(exporting) == "ckpt-2"


def test_two_nodes_export_the_same(new_node):
    """Each of them may make and remove exports; neither takes offence at the other's work."""
    nodes = new_node("worker-1", exports=RULE), new_node("worker-2", exports=RULE)
    evaluate(nodes[0], 0.5, 0.9, 0.8, 0.95, others=nodes[1:])
    assert exported(nodes[0]) == ["ckpt-2", "ckpt-4"]
    assert linked(nodes[0]) == "ckpt-4"
    assert not any(node.log.of("export_failed") for node in nodes)


def test_a_node_with_other_settings_takes_nothing_away(new_node):
    """What any node wants is retained, and the difference is told."""
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
def test_a_pin_that_cannot_be_exported_stays_and_is_tried_again(exporting, monkeypatch, code):
    """Evaluation goes on meanwhile, and the reason is told."""
    rename = os.rename

    def refuse(source, target, *arguments, **settings):
        if settings.get("src_dir_fd") != settings.get("dst_dir_fd"):
            raise OSError(code, os.strerror(code))
        return rename(source, target, *arguments, **settings)

    monkeypatch.setattr(os, "rename", refuse)
    evaluate(exporting, 0.5, 0.9, 0.8)
    assert exported(exporting) == []
    assert pinned(exporting) == ["ckpt-2", "ckpt-3"]  # the first is not among the best any more
    assert len(exporting.history.verdicts.succeeded) == 3
    assert exporting.log.of("checkpoint_entry_failed")
    monkeypatch.setattr(os, "rename", rename)
    pass_time(70, exporting)
    assert (exported(exporting), pinned(exporting)) == (["ckpt-2", "ckpt-3"], [])


def test_a_kill_between_manifest_and_rename_leaves_a_pin(exporting, monkeypatch):
    """The manifest is in the pin already. The next daemon finishes it."""
    rename = os.rename

    def dies(source, target, *arguments, **settings):
        if settings.get("src_dir_fd") != settings.get("dst_dir_fd"):
            raise KeyboardInterrupt
        return rename(source, target, *arguments, **settings)

    monkeypatch.setattr(os, "rename", dies)
    with pytest.raises(KeyboardInterrupt):
        evaluate(exporting, 0.9)
    monkeypatch.setattr(os, "rename", rename)
    (pin,) = (exporting.run_dir / "pins").glob("ckpt-1@*")
    assert (pin / "manifest.json").exists()
    restarted = Node(exporting.checkpoint_dir.parent, exporting.clock, incarnation="i2", exports=RULE)
    pass_time(40, restarted)
    assert (exported(restarted), linked(restarted), pinned(restarted)) == (["ckpt-1"], "ckpt-1", [])


def test_a_kill_while_an_export_was_removed_leaves_nothing(exporting):
    """Half of it has a hidden name, and goes."""
    evaluate(exporting, 0.9)
    export_of(exporting, "ckpt-1").joinpath("deep").mkdir()
    shutil.copytree(export_of(exporting, "ckpt-1"), exports(exporting) / ".tmp-0123456789abcdef")
    pass_time(8, exporting)
    assert sorted(path.name.split("@")[0] for path in exports(exporting).iterdir()) == ["best", "ckpt-1"]


def test_a_kill_before_the_link_moved_is_made_good(exporting):
    """The next scan sets it, also from a link to what is gone."""
    evaluate(exporting, 0.9, 0.8)
    (exports(exporting) / "best").unlink()
    pass_time(4, exporting)
    assert linked(exporting) == "ckpt-1"
    (exports(exporting) / "best").unlink()
    (exports(exporting) / "best").symlink_to("ckpt-7@0123456789ab")
    pass_time(4, exporting)
    assert linked(exporting) == "ckpt-1"


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
    assert pinned(exporting) == []


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
    """What falls out goes, and the others stay."""
    evaluate(exporting, 0.9, 0.8)
    restarted = Node(exporting.checkpoint_dir.parent, exporting.clock, incarnation="i2", exports=replace(RULE, count=1))
    pass_time(30, restarted)
    assert exported(restarted) == ["ckpt-1"]
    assert restarted.log.of("export_returned") == []


# -- others who may write there ----------------------------------------------------------------------------------------


def test_a_link_in_the_place_of_the_folder_leads_nowhere(exporting, tmp_path):
    """Nothing is written through it, and the pin stays."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    pass_time(3, exporting)
    exporting.checkpoint_dir.mkdir(exist_ok=True)
    pass_time(3, exporting)
    exports(exporting).symlink_to(elsewhere)
    evaluate(exporting, 0.9)
    assert list(elsewhere.iterdir()) == []
    assert pinned(exporting) == ["ckpt-1"]
    assert exporting.log.of("export_failed")


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_something_else_with_the_name_of_the_link_stays(exporting, kind):
    """It is reported, and exports are made even so."""
    evaluate(exporting, 0.5)
    (exports(exporting) / "best").unlink()
    if kind == "folder":
        (exports(exporting) / "best").mkdir()
    else:
        (exports(exporting) / "best").write_text("mine")
    evaluate(exporting, 0.9, first=2)
    assert exported(exporting) == ["ckpt-1", "ckpt-2"]
    assert not (exports(exporting) / "best").is_symlink()
    assert [problem["entry"] for problem in exporting.log.of("export_failed")] == ["best"]


@pytest.mark.parametrize("target", ["/etc", "../../../..", "..", ".", "ckpt-9@0123456789ab", "foreign"])
def test_a_planted_link_is_replaced_and_not_followed(exporting, target):
    """It leads to what the journal ranks within a scan."""
    evaluate(exporting, 0.9)
    (exports(exporting) / "foreign").mkdir()
    (exports(exporting) / "best").unlink()
    (exports(exporting) / "best").symlink_to(target)
    pass_time(4, exporting)
    assert linked(exporting) == "ckpt-1"


def test_foreign_entries_are_left_alone_and_told(exporting, tmp_path):
    """A folder, a file, a link, a FIFO, and one that looks like an export."""
    evaluate(exporting, 0.9)
    folder = exports(exporting)
    (folder / "notes").mkdir()
    (folder / "notes" / "mine.txt").write_text("mine")
    (folder / "file").write_text("mine")
    (folder / "link").symlink_to(tmp_path)
    os.mkfifo(folder / "fifo")
    (folder / "ckpt-9@0123456789ab").mkdir()
    (folder / "ckpt-9@0123456789ab" / "manifest.json").write_text('{"plan":1}')
    before = sorted(folder.rglob("*"))
    pass_time(20, exporting)
    assert sorted(folder.rglob("*")) == before
    told = {problem["entry"] for problem in exporting.log.of("export_failed")}
    assert told == {"notes", "file", "link", "fifo", "ckpt-9@0123456789ab"}
    assert exporting.status.disk.failing_exports == 5


@pytest.mark.parametrize(
    "lie",
    [
        b"{" * 200_000,
        b"[" * 200_000,
        b" " * (2 << 20),
        b"\xff\xfe",
        b"null",
        b'{"plan": -1}',
        b'{"schema": 99}',
        "link",
        "fifo",
        "folder",
    ],
)
def test_a_manifest_of_somebody_else_is_written_anew(exporting, tmp_path, lie):
    """Nothing hangs, nothing is read without a bound, and no link is followed."""
    evaluate(exporting, 0.9)
    path = export_of(exporting, "ckpt-1") / "manifest.json"
    path.unlink()
    secret = tmp_path / "secret"
    secret.write_text("secret")
    if lie == "link":
        path.symlink_to(secret)
    elif lie == "fifo":
        os.mkfifo(path)
    elif lie == "folder":
        path.mkdir()
    else:
        path.write_bytes(lie)
    restarted = Node(exporting.checkpoint_dir.parent, exporting.clock, incarnation="i2", exports=RULE)
    pass_time(30, restarted)
    assert secret.read_text() == "secret"
    if lie == "folder":
        assert restarted.log.of("export_failed")
    else:
        assert manifest(restarted)["checkpoint"] == "ckpt-1"


def test_a_folder_in_the_place_of_an_export_is_replaced(exporting):
    """Only the checkpoint itself counts as exported."""
    exporting.numbers["ckpt-1"] = accuracy(0.9)
    save(exporting.checkpoint_dir, 1)
    pass_time(3, exporting)
    (pin,) = (exporting.run_dir / "pins").glob("ckpt-1@*")
    (exports(exporting) / pin.name).mkdir(parents=True)
    (exports(exporting) / pin.name / "ckpt-1.index").write_bytes(b"evil")
    pass_time(15, exporting)
    assert is_whole(exporting, "ckpt-1")


def test_a_manifest_that_names_another_evaluation_removes_nothing(exporting):
    """It must be that of the folder's own checkpoint, and of this journal."""
    evaluate(exporting, 0.9, 0.8, 0.7)
    folder = exports(exporting) / "precious@0123456789ab"
    shutil.copytree(export_of(exporting, "ckpt-1"), folder)
    pass_time(20, exporting)
    assert folder.is_dir()


def test_a_link_in_the_place_of_an_export_is_told_and_not_the_best(exporting, tmp_path):
    """Somebody swaps the best export for a link to a model of his own."""
    evaluate(exporting, 0.9, 0.8)
    path = export_of(exporting, "ckpt-1")
    evil = path.rename(tmp_path / "evil")
    path.symlink_to(evil)
    pass_time(6, exporting)
    assert exporting.log.of("export_failed")[-1]["entry"] == path.name
    assert linked(exporting) == "ckpt-2"
    assert evil.is_dir()


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


def test_the_linked_one_stays_while_the_link_cannot_be_read(new_node, monkeypatch):
    """It is not among the best by number; another node may be replacing something at that moment."""
    node = new_node(exports=replace(RULE, count=1, by="significant"))
    evaluate(node, 0.8, 0.805, half=0.05)
    assert exported(node) == ["ckpt-1", "ckpt-2"]

    def vanish(*_):
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(exports_module.Exports, "_best", vanish)
    pass_time(20, node)
    assert exported(node) == ["ckpt-1", "ckpt-2"]


@pytest.mark.parametrize("place", ["exports/x", "pins/x"])
def test_folders_nested_without_end_stop_nothing(exporting, place):
    """Python's stack and the open files of a process are bounded, and those of a filesystem are not."""
    evaluate(exporting, 0.5)
    planted = exporting.run_dir / place
    planted.mkdir()
    nest(planted, 1200)
    try:
        evaluate(exporting, 0.9, 0.95, first=2)
        assert linked(exporting) == "ckpt-3"
    finally:
        subprocess.run(["rm", "-rf", planted], check=True)  # shutil.rmtree is recursive, too


def test_problems_of_a_pass_that_ends_late_are_told(new_node, monkeypatch):
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

    reconcile = Exports.reconcile

    def slowly(self, policy, **settings):
        self.calls = in_the_next_pass
        return reconcile(self, policy, **settings)

    monkeypatch.setattr(Exports, "reconcile", slowly)
    pass_time(10, node)
    assert [problem["entry"] for problem in node.log.of("export_failed")] == ["notes"]
    assert node.status.disk.failing_exports == 1


def test_passes_that_never_end_are_told(new_node, monkeypatch):
    """A comparison of many examples may take some passes, and storage that does not answer takes all."""
    node = new_node(exports=RULE)
    evaluate(node, 0.9)

    def hangs(*_, **__):
        raise HangingError("/exports", "storage has not answered for 20 s")

    monkeypatch.setattr(Exports, "_reconcile", hangs)
    pass_time(10, node)
    assert node.log.of("export_failed") == []
    pass_time(40, node)
    (problem,) = node.log.of("export_failed")
    assert problem["entry"] == "exports"
    assert "has not answered" in problem["reason"]


def test_many_foreign_folders_do_not_hide_an_export_that_is_unneeded(exporting):
    """A pass looks at a bounded number of entries, those of its own first."""
    evaluate(exporting, 0.5, 0.6)
    for number in range(40):
        (exports(exporting) / f"{number:02}").mkdir()
    evaluate(exporting, 0.9, first=3)
    assert exported(exporting) == ["ckpt-2", "ckpt-3"]


def refuse_manifests(monkeypatch, code):
    """Let no manifest be read."""
    read = Folder.read

    def refuse(self, name, limit):
        if name == "manifest.json":
            raise OSError(code, os.strerror(code), str(self.path / name))
        return read(self, name, limit)

    monkeypatch.setattr(Folder, "read", refuse)


def test_a_manifest_that_cannot_be_read_is_no_foreign_one(new_node, monkeypatch):
    """The best one by more than noise stays linked, nobody is told to move an export away, and nothing is forgotten."""
    node = new_node(exports=replace(RULE, count=1, by="significant"))
    evaluate(node, 0.5, 0.8, 0.805, half=0.05)
    assert (linked(node), exported(node)) == ("ckpt-2", ["ckpt-2", "ckpt-3"])
    with monkeypatch.context() as patched:
        refuse_manifests(patched, errno.EIO)
        restarted = Node(
            node.checkpoint_dir.parent, node.clock, incarnation="i2", exports=replace(RULE, by="significant")
        )
        pass_time(10, restarted)
        assert linked(restarted) == "ckpt-2"
        reasons = [problem["reason"] for problem in restarted.log.of("export_failed")]
        assert reasons
        assert all("manifest.json: Input/output error" in reason for reason in reasons)
    pass_time(10, restarted)
    assert manifest(restarted, "ckpt-2")["better_than"]["better"]


def test_a_manifest_of_another_user_is_replaced(exporting, monkeypatch):
    """It may be for its owner's eyes only, as by another umask."""
    evaluate(exporting, 0.8)
    (export_of(exporting, "ckpt-1") / "manifest.json").write_text("{}")
    restarted = Node(exporting.checkpoint_dir.parent, exporting.clock, incarnation="i2", exports=RULE)
    refuse_manifests(monkeypatch, errno.EACCES)
    pass_time(10, restarted)
    assert manifest(restarted)["checkpoint"] == "ckpt-1"


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
        assert (linked(node), exported(node), pinned(node)) == ("ckpt-3", ["ckpt-3", "ckpt-4"], [])
        assert manifest(node)["ranks"] == {"test/accuracy": 1}
