"""Written data survive a power failure, as far as the filesystem can promise that."""

import ast
import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import faulty
import numpy as np
import pytest
from records import make_plan

from sidecar.checkpoints.files import as_file
from sidecar.checkpoints.scan import DiscoveredCheckpoint
from sidecar.coordination.journal import Journal, read_history
from sidecar.coordination.run import open_run
from sidecar.coordination.storage import PosixStorage
from sidecar.evaluation.artifact_writer import ArtifactWriter
from sidecar.evaluation.backend import Rows
from sidecar.protocol.records import Checkpoint, Settlement
from sidecar.retention.pins import pin as pin_module
from sidecar.system import durable
from sidecar.system.confined import open_folder

SOURCES = Path(durable.__file__).parents[1]


@pytest.fixture
def mount(tmp_path):
    """A mount on which no folder can be fsynced, as on some network filesystems."""
    faulty.require_fuse()
    (tmp_path / "disk").mkdir()
    with (
        faulty.Faulty(tmp_path / "disk", tmp_path / "mount") as mounted,
        mounted.failing("", "EINVAL", "fsyncdir"),
    ):
        descriptor = os.open(mounted.path, os.O_RDONLY | os.O_DIRECTORY)
        with pytest.raises(OSError, match="Invalid argument"):
            os.fsync(descriptor)
        os.close(descriptor)
        yield mounted.path


def test_a_journal_is_written_where_folders_cannot_be_fsynced(mount):
    """A plan is created, and read back."""
    storage = PosixStorage(mount / "state" / "run")
    run = open_run(storage, 0.0)
    journal = Journal(storage, run)
    settlement = Settlement(name="ckpt-1", digest="d" * 64, step=1, verdict="skipped", reason="a test")
    assert journal.propose(
        make_plan(
            1, None, run=run, nonce="n", attempt=0, members=None, settles=(settlement,), task=None, proposer="node"
        )
    )
    assert read_history(storage).through == 1


def test_a_checkpoint_is_pinned_where_folders_cannot_be_fsynced(mount, monkeypatch):
    """One file is copied and one is linked, in a sub-folder. The format's own check does not matter here."""
    names = ("ckpt-1.index", "variables/ckpt-1.data-00000-of-00001")
    (mount / "variables").mkdir()
    for name in names:
        (mount / name).write_bytes(b"weights")
    checkpoint = Checkpoint(name="ckpt-1", digest="d" * 64, step=1, format="tf_object")
    monkeypatch.setattr(pin_module, "verify", lambda *_: checkpoint.digest)
    files = tuple(as_file(name, (mount / name).stat()) for name in names)
    found = DiscoveredCheckpoint(checkpoint=checkpoint, folder=mount, written_at=0.0, seen_at=0.0, files=files)
    pinned = pin_module.pin(found, mount / "state" / "pins")
    assert [(pinned.folder / name).read_bytes() for name in names] == [b"weights", b"weights"]


def test_artifacts_are_saved_where_folders_cannot_be_fsynced(mount):
    """Weights and predictions, in folders of their own."""

    def save_weights(folder):
        (folder / "weights").mkdir()
        (folder / "weights" / "shard").write_bytes(b"weights")

    folder = mount / "state" / "evaluations" / "c" / "plan-1" / "worker-0-of-1"
    with ArtifactWriter(folder, mount, in_parallel=ThreadPoolExecutor(1)) as saves:
        saves.begin(save_weights)
        saves.keep("test", Rows(0, 2, {"predictions": np.array([1.0, 2.0])}))
        saves.finish({}, "v")
    assert sorted(path.name for path in folder.iterdir()) == ["predictions", "states.json", "weights"]


def test_only_two_modules_call_fsync():
    """Anything that a filesystem cannot do is then tolerated everywhere, or nowhere."""
    callers = {
        path.relative_to(SOURCES).as_posix()
        for path in SOURCES.rglob("*.py")
        if "sync" in (source := path.read_text())
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and node.attr in ("fsync", "fdatasync")
    }
    assert callers == {"system/confined.py", "system/durable.py"}


def test_a_new_file_is_durable_with_its_content(tmp_path, system_calls):
    """It is written whole before it is synced; a name that stands there is an error."""
    synced = []
    system_calls.observe("fsync", lambda file: synced.append(Path(f"/proc/self/fd/{file}").read_bytes()))
    with open_folder(tmp_path) as folder:
        durable.write_new(folder, "name", b"content")
        with pytest.raises(FileExistsError):
            durable.write_new(folder, "name", b"other")
    assert (synced, (tmp_path / "name").read_bytes()) == ([b"content"], b"content")


def test_a_write_that_fails_leaves_nothing(tmp_path, system_calls):
    """Neither a new file nor a replacement that could not be finished stays."""
    system_calls.refuse("fsync", errno.ENOSPC)
    (tmp_path / "name").write_bytes(b"before")
    with open_folder(tmp_path) as folder:
        with pytest.raises(OSError, match="No space"):
            durable.write_new(folder, "new", b"content")
        with pytest.raises(OSError, match="No space"):
            durable.replace(folder, "name", b"content", temporary=".part")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"name": b"before"}


def test_a_file_is_replaced_whole(tmp_path, system_calls):
    """A view that may be lost is written without waiting for the disk."""
    (tmp_path / "name").write_bytes(b"before")
    system_calls.refuse("fsync", errno.ENOSPC)
    with open_folder(tmp_path) as folder:
        durable.replace(folder, "name", b"after", temporary=".part", survives_crash=False)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"name": b"after"}


def test_all_below_a_folder_is_synced(tmp_path, system_calls):
    """Files before the folders that hold them; links are left alone."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").touch()
    (tmp_path / "a" / "link").symlink_to("nowhere")
    synced = []
    system_calls.observe("fsync", lambda file: synced.append(Path(f"/proc/self/fd/{file}").readlink().name))
    with open_folder(tmp_path / "a") as folder:
        durable.sync_below(folder)
    assert synced == ["file", "b"]
