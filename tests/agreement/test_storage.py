import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sidecar.agreement import storage as module
from sidecar.agreement.storage import MAX_RECORD_BYTES, PosixStorage
from sidecar.errors import RecordError, StorageError


def files(storage):
    """Every file under the root, temporary ones too."""
    return sorted(str(path.relative_to(storage.root)) for path in storage.root.rglob("*") if path.is_file())


def path_of(fd):
    return Path(f"/proc/self/fd/{fd}").readlink()


def failing(number):
    def call(*_args, **_kwargs):
        raise OSError(number, os.strerror(number))

    return call


def run_until_killed(root, patched, call):
    """Let another process reach os.<patched> in the middle of `call`, and die there by SIGKILL."""
    script = (
        "import os, pathlib, signal, sys\n"
        "from sidecar.agreement.storage import PosixStorage\n"
        f"os.{patched} = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"PosixStorage(pathlib.Path(sys.argv[1])).{call}\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(root)], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL


def test_what_is_created_is_read_back_and_nothing_else_is_left(storage):
    """A created name holds the data, in folders made on the way, and no temporary file stays."""
    storage.create("a/b/c.json", b"data")
    assert storage.read("a/b/c.json") == b"data"
    assert files(storage) == ["a/b/c.json"]


def test_a_name_that_exists_is_never_changed_by_create(storage):
    """The second creation of a name leaves the first one's data."""
    storage.create("plans/1.json", b"first")
    storage.create("plans/1.json", b"second")
    assert storage.read("plans/1.json") == b"first"
    assert files(storage) == ["plans/1.json"]


def test_replace_puts_new_content_under_an_old_name(storage):
    """Replacing works on an absent name and on one that exists."""
    for data in (b"one", b"two"):
        storage.replace("members/x.json", data)
        assert storage.read("members/x.json") == data
    assert files(storage) == ["members/x.json"]


def test_absent_names_and_folders_are_no_errors(storage):
    """Before anything is written there is nothing to read or list, and reading makes no folders."""
    assert storage.read("plans/1.json") is None
    assert storage.names("plans") == []
    assert not storage.root.exists()


def test_listing_hides_what_a_killed_daemon_left(storage, put):
    """Temporary names are no names."""
    put("plans/.tmp-0123", b'{"torn')
    storage.create("plans/2", b"")
    storage.create("plans/1", b"")
    assert storage.names("plans") == ["1", "2"]


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "a/./b", "a/", "a\0b", "a/.tmp-1"])
def test_a_path_that_leaves_the_state_directory_is_refused(storage, path):
    """Paths come out of records, so none of them is trusted, whatever is to be done there."""
    for use in (storage.read, storage.names, lambda p: storage.create(p, b""), lambda p: storage.replace(p, b"")):
        with pytest.raises(RecordError, match="no path inside"):
            use(path)


def test_a_record_that_nobody_would_read_never_becomes_visible(storage, put):
    """The size cap holds when writing, and when reading what something else wrote."""
    with pytest.raises(RecordError, match="plans/1 is longer than"):
        storage.create("plans/1", bytes(MAX_RECORD_BYTES + 1))
    with pytest.raises(RecordError, match="members/x is longer than"):
        storage.replace("members/x", bytes(MAX_RECORD_BYTES + 1))
    assert not storage.root.exists()
    put("plans/1", bytes(MAX_RECORD_BYTES + 1))
    with pytest.raises(RecordError, match="plans/1 is longer than"):
        storage.read("plans/1")


def test_data_and_then_the_name_are_made_durable(storage, monkeypatch):
    """The file is fsynced before its name is linked, the folder after it."""
    storage.create("plans/1", b"")
    calls = []
    for name in ("fsync", "link"):
        real = getattr(os, name)
        monkeypatch.setattr(module.os, name, lambda *a, _n=name, _r=real, **k: (calls.append(_n), _r(*a, **k)))
    storage.create("plans/2", b"")
    assert calls == ["fsync", "link", "fsync"]


def test_a_heartbeat_costs_no_fsync(storage, monkeypatch):
    """Replacing does not wait for the disk once the folder exists."""
    storage.replace("members/x", b"")
    monkeypatch.setattr(module.os, "fsync", failing(errno.EIO))
    storage.replace("members/x", b"more")
    assert storage.read("members/x") == b"more"


@pytest.mark.parametrize(
    ("call", "number", "sentence"),
    [
        ("fsync", errno.ENOSPC, "No space left on device; free some space"),
        ("fsync", errno.EDQUOT, "quota or raise it"),
        ("open", errno.EROFS, "Read-only file system; remount it writable"),
        ("open", errno.EACCES, f"Permission denied; let the user with id {os.getuid()}"),
        ("link", errno.EPERM, "no hard links, which agreement needs"),
        ("link", errno.EOPNOTSUPP, "no hard links, which agreement needs"),
        ("link", errno.EIO, "Input/output error; look at the storage"),
    ],
)
def test_a_failed_creation_says_what_to_do_and_leaves_nothing(storage, monkeypatch, call, number, sentence):
    """The error names the file, the reason and the remedy; neither the name nor a temporary file stays."""
    storage.create("plans/1", b"")
    with monkeypatch.context() as patch:
        patch.setattr(module.os, call, failing(number))
        with pytest.raises(StorageError, match=sentence) as caught:
            storage.create("plans/2", b"data")
    assert f"cannot create {storage.root}/plans/2: " in str(caught.value)
    assert files(storage) == ["plans/1"]


def test_a_failed_replacement_keeps_the_old_content(storage, monkeypatch):
    """Whole or not at all."""
    storage.replace("members/x", b"old")
    with monkeypatch.context() as patch:
        patch.setattr(module.os, "rename", failing(errno.EIO))
        with pytest.raises(StorageError, match="cannot write"):
            storage.replace("members/x", b"new")
    assert storage.read("members/x") == b"old"
    assert files(storage) == ["members/x"]


def test_the_folder_is_synced_even_if_the_reply_to_link_was_lost(storage, monkeypatch):
    """The name may be there and others may act on it, so it must be durable."""
    storage.create("plans/1", b"")
    real, synced = os.link, []

    def link_then_fail(*args, **kwargs):
        real(*args, **kwargs)
        raise OSError(errno.EIO, "reply lost")

    sync = os.fsync
    monkeypatch.setattr(module.os, "link", link_then_fail)
    monkeypatch.setattr(module.os, "fsync", lambda fd: (synced.append(path_of(fd)), sync(fd)))
    with pytest.raises(StorageError):
        storage.create("plans/2", b"data")
    assert storage.read("plans/2") == b"data"
    assert synced[-1] == storage.root / "plans"


def test_a_filesystem_that_cannot_sync_folders_is_good_enough(storage, monkeypatch):
    """Only that one answer is forgiven: a folder that failed to sync is an error."""
    storage.create("plans/1", b"")
    real = os.fsync

    def sync(fd, number):
        if path_of(fd).is_dir():
            raise OSError(number, "no")
        real(fd)

    monkeypatch.setattr(module.os, "fsync", lambda fd: sync(fd, errno.EINVAL))
    storage.create("plans/2", b"")
    monkeypatch.setattr(module.os, "fsync", lambda fd: sync(fd, errno.EIO))
    with pytest.raises(StorageError):
        storage.create("plans/3", b"")


@pytest.mark.parametrize(("stale", "answers"), [(2, True), (3, False)])
def test_a_file_replaced_while_it_is_read_is_read_again(storage, monkeypatch, stale, answers):
    """NFS calls such a file stale: that is no failure, unless it goes on."""
    storage.replace("members/x", b"data")
    real, left = module.read_from, [stale]

    def read(*args):
        if left[0]:
            left[0] -= 1
            raise OSError(errno.ESTALE, "Stale file handle")
        return real(*args)

    monkeypatch.setattr(module, "read_from", read)
    if answers:
        assert storage.read("members/x") == b"data"
    else:
        with pytest.raises(StorageError, match="mount it again"):
            storage.read("members/x")


def test_a_file_in_the_place_of_a_folder_is_explained(storage, put):
    """What stands in the way is named, with the remedy."""
    put("plans", b"")
    for use in (storage.read, lambda path: storage.create(path, b"")):
        with pytest.raises(StorageError, match=r"plans/1: Not a directory \(.*/plans\); .* move it away"):
            use("plans/1")
    with pytest.raises(StorageError, match="cannot list"):
        storage.names("plans")


def test_a_folder_in_the_place_of_a_file_is_explained(storage):
    """The other way round."""
    storage.create("plans/1/x", b"")
    with pytest.raises(StorageError, match=r"plans/1: it is a folder, .*; move it away"):
        storage.read("plans/1")


def test_a_daemon_killed_before_the_link_leaves_no_record(storage):
    """What is written but not yet linked is invisible, and the name is free."""
    run_until_killed(storage.root, "link", "create('plans/1', b'dead')")
    assert [name.startswith("plans/.tmp-") for name in files(storage)] == [True]
    assert storage.names("plans") == []
    assert storage.read("plans/1") is None
    storage.create("plans/1", b"alive")
    assert storage.read("plans/1") == b"alive"


def test_a_daemon_killed_before_the_rename_leaves_its_last_heartbeat(storage):
    """A torn heartbeat is never visible after a kill."""
    storage.replace("members/x", b"before")
    run_until_killed(storage.root, "rename", "replace('members/x', b'dead')")
    assert storage.read("members/x") == b"before"


def test_of_many_creators_of_one_name_one_wins_and_all_see_it(storage):
    """Threads that start together agree on every name, whole."""
    count, rounds = 8, 20
    barrier = threading.Barrier(count)
    seen = [[] for _ in range(count)]

    def race(me):
        mine = PosixStorage(storage.root)
        for number in range(rounds):
            barrier.wait(timeout=60)
            mine.create(f"plans/{number}", f"{me:100000d}".encode())
            seen[me].append(mine.read(f"plans/{number}"))

    threads = [threading.Thread(target=race, args=(me,)) for me in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert all(len(reads) == rounds for reads in seen)
    for reads in zip(*seen, strict=True):
        assert len(set(reads)) == 1
        assert len(reads[0]) == 100000
