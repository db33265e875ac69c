"""Write down what an export is, and believe no manifest that lies."""

import errno
import os
import shutil
from dataclasses import replace

import pytest
from fakes import Node, pass_time
from retention.exports.conftest import (
    RULE,
    evaluate,
    export_of,
    exported,
    exports,
    is_export,
    linked,
    manifest,
)
from retention.exports.conftest import pinned as pinned_names


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


def test_a_kill_between_manifest_and_rename_leaves_a_pin(exporting, system_calls):
    """The manifest is in the pin already. The next daemon finishes it."""
    system_calls.refuse("rename", KeyboardInterrupt(), is_export)
    with pytest.raises(KeyboardInterrupt):
        evaluate(exporting, 0.9)
    system_calls.allow()
    (pin,) = (exporting.run_dir / "pins").glob("ckpt-1@*")
    assert (pin / "manifest.json").exists()
    restarted = Node(exporting.checkpoint_dir.parent, exporting.clock, incarnation="i2", exports=RULE)
    pass_time(40, restarted)
    assert (exported(restarted), linked(restarted), pinned_names(restarted)) == (["ckpt-1"], "ckpt-1", [])


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


def test_a_manifest_that_names_another_evaluation_removes_nothing(exporting):
    """It must be that of the folder's own checkpoint, and of this journal."""
    evaluate(exporting, 0.9, 0.8, 0.7)
    folder = exports(exporting) / "precious@0123456789ab"
    shutil.copytree(export_of(exporting, "ckpt-1"), folder)
    pass_time(20, exporting)
    assert folder.is_dir()


def refuse_manifests(system_calls, code):
    """Let no manifest be opened for reading."""
    system_calls.refuse(
        "open", code, lambda name, flags, *_, **__: name == "manifest.json" and not flags & (os.O_WRONLY | os.O_RDWR)
    )


def test_a_manifest_that_cannot_be_read_is_no_foreign_one(new_node, system_calls):
    """The best one by more than noise stays linked, nobody is told to move an export away, and nothing is forgotten."""
    node = new_node(exports=replace(RULE, count=1, by="significant"))
    evaluate(node, 0.5, 0.8, 0.805, half=0.05)
    assert (linked(node), exported(node)) == ("ckpt-2", ["ckpt-2", "ckpt-3"])
    refuse_manifests(system_calls, errno.EIO)
    restarted = Node(node.checkpoint_dir.parent, node.clock, incarnation="i2", exports=replace(RULE, by="significant"))
    pass_time(10, restarted)
    assert linked(restarted) == "ckpt-2"
    reasons = [problem["reason"] for problem in restarted.log.of("export_failed")]
    assert reasons
    assert all("manifest.json: Input/output error" in reason for reason in reasons)
    system_calls.allow()
    pass_time(10, restarted)
    assert manifest(restarted, "ckpt-2")["better_than"]["better"]


def test_a_manifest_of_another_user_is_replaced(exporting, system_calls):
    """It may be for its owner's eyes only, as by another umask."""
    evaluate(exporting, 0.8)
    (export_of(exporting, "ckpt-1") / "manifest.json").write_text("{}")
    restarted = Node(exporting.checkpoint_dir.parent, exporting.clock, incarnation="i2", exports=RULE)
    refuse_manifests(system_calls, errno.EACCES)
    pass_time(10, restarted)
    assert manifest(restarted)["checkpoint"] == "ckpt-1"
