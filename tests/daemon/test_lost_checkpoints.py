"""Give up checkpoints that vanished or are corrupt, and say so once."""

from fakes import Node, outcomes, pass_time, restarted, save

from sidecar.errors import StorageError
from sidecar.retention.pins.executor import PinExecutor
from sidecar.retention.pins.pin import pin


def test_what_was_given_up_is_told_though_no_pin_can_be_written(node):
    """An error about one checkpoint is no word about another."""
    save(node.checkpoint_dir, 5)
    (node.checkpoint_dir / "ckpt-5.index").write_bytes(b"broken")
    pass_time(58, node)

    def full(*_, **__):
        raise StorageError("cannot pin: No space left on device")

    make, node.storage_thread.reconciler.pinner.make = node.storage_thread.reconciler.pinner.make, full
    save(node.checkpoint_dir, 6, keep=[5])
    (node.checkpoint_dir / "ckpt-5.index").write_bytes(b"broken")
    pass_time(70, node)
    assert outcomes(node.history) == [("corrupt", "ckpt-5")]
    (told,) = node.log.of("checkpoint_entry_failed")
    assert "No space" in told["reason"]
    node.storage_thread.reconciler.pinner.make = make
    pass_time(40, node)
    assert outcomes(node.history) == [("corrupt", "ckpt-5"), ("succeeded", "ckpt-6")]


def test_what_was_given_up_is_told_though_storage_fails_then(node, monkeypatch):
    """The look that gives it up may fail in the end: the next one tells of it."""
    save(node.checkpoint_dir, 5)
    (node.checkpoint_dir / "ckpt-5.index").write_bytes(b"broken")
    pass_time(58, node)

    def fail(*_, **__):
        raise StorageError("cannot list: Input/output error")

    monkeypatch.setattr(PinExecutor, "pin", fail)
    pass_time(70, node)
    assert outcomes(node.history) == []
    monkeypatch.undo()
    pass_time(20, node)
    assert outcomes(node.history) == [("corrupt", "ckpt-5")]


def test_a_checkpoint_that_vanishes_before_it_is_pinned_is_settled_once(node):
    """It was complete and is gone: the journal says vanished, and it is not asked for again."""
    save(node.checkpoint_dir, 5)
    pass_time(5, node)

    def look_and_delete(look):
        seen = look()
        for path in node.checkpoint_dir.glob("ckpt-6.*"):
            path.unlink()
        return seen

    node.catalog.around = look_and_delete
    save(node.checkpoint_dir, 6, keep=[5])
    pass_time(58, node)
    assert outcomes(node.history) == [("succeeded", "ckpt-5")], "it may be seen again"
    pass_time(20, node)
    assert outcomes(node.history) == [("succeeded", "ckpt-5"), ("vanished", "ckpt-6")]
    assert node.status.checkpoints.pending == 0


def test_what_another_node_pinned_in_time_has_not_vanished(node):
    """A look that finds nothing is not enough: the pin of a node that was faster shows in the next one."""
    save(node.checkpoint_dir, 5)
    pass_time(5, node)
    other = restarted(node, "i2")

    def look_too_late(look):
        seen = look()
        node.catalog.around = None
        other.catalog.scan()
        other_pin(other)
        for path in node.checkpoint_dir.glob("ckpt-6.*"):
            path.unlink()
        (pins,) = [path for path in (node.run_dir / "pins").iterdir() if path.name.startswith("ckpt-6@")]
        pins.rename(pins.with_name(".tmp-away"))
        return seen

    node.catalog.around = look_too_late
    save(node.checkpoint_dir, 6, keep=[5])
    for _ in range(20):
        pass_time(1, node)
        away = node.run_dir / "pins" / ".tmp-away"
        if away.exists():
            (pinned,) = {found.checkpoint.folder for found in other.found if found.checkpoint.name == "ckpt-6"}
            away.rename(away.with_name(pinned))
    assert outcomes(node.history) == [("succeeded", "ckpt-5"), ("succeeded", "ckpt-6")]


def other_pin(other):
    """The other node pins all that it finds."""
    other.found = [pin(found, other.run_dir / "pins") for found in other.catalog.scan().found]


def test_a_corrupt_checkpoint_is_told_once_and_settled(node):
    """Named and broken for as long as storage may take to show it whole: then given up, and the queue goes on."""
    save(node.checkpoint_dir, 5)
    (node.checkpoint_dir / "ckpt-5.index").write_bytes(b"broken")
    pass_time(50, node)
    assert node.history.entries == []
    pass_time(30, node)
    assert outcomes(node.history) == [("corrupt", "ckpt-5")]
    save(node.checkpoint_dir, 6, keep=[5])
    (node.checkpoint_dir / "ckpt-5.index").write_bytes(b"broken")
    pass_time(90, node)
    assert outcomes(node.history) == [("corrupt", "ckpt-5"), ("succeeded", "ckpt-6")]


def test_what_found_no_room_and_was_deleted_has_vanished(tmp_path, clock):
    """Nothing that was seen complete is left without an end."""
    save(tmp_path / "checkpoints", 1)
    node = Node(tmp_path, clock, pin_max_bytes=1)
    node.silent = {"Evaluate"}
    pass_time(5, node)
    save(node.checkpoint_dir, 2)
    pass_time(5, node)
    save(node.checkpoint_dir, 3)
    pass_time(5, node)
    node.silent = set()
    pass_time(70, node)
    assert outcomes(node.history) == [("succeeded", "ckpt-1"), ("succeeded", "ckpt-3"), ("vanished", "ckpt-2")]
