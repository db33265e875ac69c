"""Create, replace and read files of shared storage durably and within bounds."""

import errno
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from users import MALLORY, VICTIM, acting_as, is_untouched, only_root, private_folder, shared_folder

from sidecar.coordination import storage as module
from sidecar.coordination.storage import MAX_RECORD_BYTES, PosixStorage
from sidecar.errors import RecordError, StorageError


def files(storage):
    """Every file under the root, temporary ones too."""
    return sorted(str(path.relative_to(storage.root)) for path in storage.root.rglob("*") if path.is_file())


def path_of(fd):
    return Path(f"/proc/self/fd/{fd}").readlink()


def run_until_killed(root, patched, call):
    """Let another process reach os.<patched> in the middle of `call`, and die there by SIGKILL."""
    script = (
        "import os, pathlib, signal, sys\n"
        "from sidecar.coordination.storage import PosixStorage\n"
        f"os.{patched} = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"PosixStorage(pathlib.Path(sys.argv[1])).{call}\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(root)], timeout=240, check=False)
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
        with pytest.raises(RecordError, match=re.escape(f"{path!r} ")):
            use(path)


def test_a_record_that_nobody_would_read_never_becomes_visible(storage, put):
    """The size cap holds when writing, and when reading what something else wrote."""
    with pytest.raises(RecordError, match=rf"plans/1\b.*{MAX_RECORD_BYTES}"):
        storage.create("plans/1", bytes(MAX_RECORD_BYTES + 1))
    with pytest.raises(RecordError, match=rf"members/x\b.*{MAX_RECORD_BYTES}"):
        storage.replace("members/x", bytes(MAX_RECORD_BYTES + 1))
    assert not storage.root.exists()
    put("plans/1", bytes(MAX_RECORD_BYTES + 1))
    with pytest.raises(RecordError, match=rf"plans/1\b.*{MAX_RECORD_BYTES}"):
        storage.read("plans/1")


def test_data_and_then_the_name_are_made_durable(storage, system_calls):
    """The file is fsynced before its name is linked, the folder after it."""
    storage.create("plans/1", b"")
    calls = []
    for name in ("fsync", "link"):
        system_calls.observe(name, lambda *_, called=name, **__: calls.append(called))
    storage.create("plans/2", b"")
    assert calls == ["fsync", "link", "fsync"]


def test_a_heartbeat_costs_no_fsync(storage, system_calls):
    """Replacing does not wait for the disk once the folder exists."""
    storage.replace("members/x", b"")
    system_calls.refuse("fsync", errno.EIO)
    storage.replace("members/x", b"more")
    assert storage.read("members/x") == b"more"


@pytest.mark.parametrize(
    ("call", "number", "named"),
    [
        ("fsync", errno.ENOSPC, "No space left.*free some"),
        ("fsync", errno.EDQUOT, "quota.*raise it"),
        ("open", errno.EROFS, "Read-only file system.*state_dir"),
        ("open", errno.EACCES, rf"Permission denied.*id {os.getuid()}\b"),
        ("link", errno.EPERM, "hard links.*state_dir"),
        ("link", errno.EOPNOTSUPP, "hard links.*state_dir"),
        ("link", errno.EIO, "Input/output error"),
    ],
)
def test_a_failed_creation_says_what_to_do_and_leaves_nothing(storage, system_calls, call, number, named):
    """The error names the file, the reason and the remedy; neither the name nor a temporary file stays."""
    storage.create("plans/1", b"")
    system_calls.refuse(call, number)
    with pytest.raises(StorageError, match=named) as caught:
        storage.create("plans/2", b"data")
    system_calls.allow()
    assert f"cannot create {storage.root}/plans/2: " in str(caught.value)
    assert files(storage) == ["plans/1"]


def test_a_failed_replacement_keeps_the_old_content(storage, system_calls):
    """Whole or not at all."""
    storage.replace("members/x", b"old")
    system_calls.refuse("rename", errno.EIO)
    with pytest.raises(StorageError, match="cannot write"):
        storage.replace("members/x", b"new")
    assert storage.read("members/x") == b"old"
    assert files(storage) == ["members/x"]


def test_the_folder_is_synced_even_if_the_reply_to_link_was_lost(storage, system_calls):
    """The name may be there and others may act on it, so it must be durable."""
    storage.create("plans/1", b"")
    synced = []
    system_calls.refuse("link", errno.EIO, once_done=True)
    system_calls.observe("fsync", lambda fd: synced.append(path_of(fd)))
    with pytest.raises(StorageError):
        storage.create("plans/2", b"data")
    assert storage.read("plans/2") == b"data"
    assert synced[-1] == storage.root / "plans"


def test_a_filesystem_that_cannot_sync_folders_is_good_enough(storage, system_calls):
    """Only that one answer is forgiven: a folder that failed to sync is an error."""
    storage.create("plans/1", b"")
    system_calls.refuse("fsync", errno.EINVAL, lambda fd: path_of(fd).is_dir())
    storage.create("plans/2", b"")
    system_calls.allow()
    system_calls.refuse("fsync", errno.EIO, lambda fd: path_of(fd).is_dir())
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
    """The error names the file that stands in the place of a folder."""
    put("plans", b"")
    for use in (storage.read, lambda path: storage.create(path, b"")):
        with pytest.raises(StorageError, match=r"plans/1\b.*Not a directory.*/plans\)"):
            use("plans/1")
    with pytest.raises(StorageError, match=r"cannot list .*/plans\b"):
        storage.names("plans")


def test_a_folder_in_the_place_of_a_file_is_explained(storage):
    """The other way round."""
    storage.create("plans/1/x", b"")
    with pytest.raises(StorageError, match=r"plans/1\b.*folder"):
        storage.read("plans/1")


def test_a_daemon_killed_before_the_link_leaves_no_record(storage):
    """A record that was written but not yet linked is invisible, and its name is free."""
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
            barrier.wait(timeout=240)
            mine.create(f"plans/{number}", f"{me:100000d}".encode())
            seen[me].append(mine.read(f"plans/{number}"))

    threads = [threading.Thread(target=race, args=(me,)) for me in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=240)
    assert all(len(reads) == rounds for reads in seen)
    for reads in zip(*seen, strict=True):
        assert len(set(reads)) == 1
        assert len(reads[0]) == 100000


ODD = {
    "a FIFO": (os.mkfifo, "a FIFO"),
    "a folder": (lambda path: path.mkdir(), "a folder"),
    "a link to a terminal": (lambda path: path.symlink_to("/dev/tty"), "a link"),
    "a link to a record": (lambda path: path.symlink_to("000000000001.json"), "a link"),
    "a link to itself": (lambda path: path.symlink_to(path.name), "a link"),
}


@pytest.mark.parametrize("folder", ["members", "plans", "outcomes"])
@pytest.mark.parametrize("odd", list(ODD))
def test_whatever_stands_in_the_place_of_a_file_is_explained_at_once(storage, folder, odd):
    """A FIFO would hold the storage thread for ever, and a link leads anywhere."""
    storage.create(f"{folder}/000000000001.json", b"data")
    make, kind = ODD[odd]
    make(storage.root / folder / "2.json")
    with pytest.raises(StorageError, match=rf"/2\.json: .*\b{kind}\b") as caught:
        storage.read(f"{folder}/2.json")
    assert f"cannot read {storage.root}/{folder}/2.json: " in str(caught.value)
    assert storage.read(f"{folder}/000000000001.json") == b"data"


@pytest.mark.timeout(20)
def test_a_file_of_a_terabyte_is_refused_without_being_read(storage, put):
    """A sparse one takes nothing to make."""
    os.truncate(put("plans/1", b""), 1 << 40)
    with pytest.raises(RecordError, match=rf"plans/1\b.*{MAX_RECORD_BYTES}"):
        storage.read("plans/1")


@pytest.mark.parametrize("path", ["members/n1.json", "evaluations/ckpt-5@0/n1.json"])
@pytest.mark.parametrize("level", [0, -1])
def test_a_link_in_the_place_of_a_folder_leads_nowhere(storage, tmp_path, path, level):
    """Nothing behind it is read, replaced, created, listed or removed, and the link is named."""
    outside = tmp_path / "outside" / "ckpt-5@0"
    for name in (outside / "n1.json", outside.parent / "n1.json"):
        name.parent.mkdir(parents=True, exist_ok=True)
        name.write_text("mine")
    folders = path.split("/")[:-1]
    link = storage.root / folders[0] if level == 0 else storage.root.joinpath(*folders)
    link.parent.mkdir(parents=True)
    link.symlink_to(outside.parent)
    folder = "/".join(folders)
    uses = {
        "read": lambda: storage.read(path),
        "write": lambda: storage.replace(path, b"ours"),
        "create": lambda: storage.create(f"{folder}/new", b"ours"),
        "list": lambda: storage.names(folder),
        "remove": lambda: storage.remove(path),
        "sync": lambda: storage.sync(folder),
    }
    for verb, use in uses.items():
        with pytest.raises(StorageError, match=f"cannot {verb} .*symbolic links.*state_dir") as caught:
            use()
        assert str(link) in str(caught.value)
    assert [name.read_text() for name in (outside / "n1.json", outside.parent / "n1.json")] == ["mine", "mine"]
    assert len([each for each in outside.parent.rglob("*") if each.is_file()]) == 2


def test_the_state_directory_itself_may_be_behind_a_link(tmp_path):
    """Its path is a setting: whoever gives it may do so."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "state").symlink_to(tmp_path / "disk")
    storage = PosixStorage(tmp_path / "state" / "run")
    storage.create("plans/1", b"data")
    assert (tmp_path / "disk" / "run" / "plans" / "1").read_bytes() == b"data"


@only_root
def test_what_this_user_may_not_read_is_said_so():
    """Another user's file with umask 077: to read is what is missing."""
    with shared_folder() as shared:
        with acting_as(MALLORY):
            PosixStorage(shared / "run").replace("members/n2.json", b"{}")
            (shared / "run/members/n2.json").chmod(0)
        with acting_as(VICTIM), pytest.raises(StorageError, match=rf"Permission denied.*\b{VICTIM}\b.*\bread\b"):
            PosixStorage(shared / "run").read("members/n2.json")


@only_root
def test_a_folder_that_another_user_replaces_by_a_link_makes_nobody_write_behind_it():
    """Use a folder that the daemon's user may write to and the other user may not look into."""
    with shared_folder() as shared:
        private, storage = private_folder(shared), PosixStorage(shared / "run")
        with acting_as(VICTIM):
            storage.replace("members/n1.json", b"{}")
        with acting_as(MALLORY):
            (shared / "run/members").rename(shared / "run/away")
            (shared / "run/members").symlink_to(private)
        with acting_as(VICTIM), pytest.raises(StorageError, match=r"symbolic links.*state_dir"):
            storage.replace("members/n1.json", b"{}")
        assert is_untouched(private)


def test_files_tell_when_they_were_written_and_nothing_else_does(storage, put):
    """Relative to one another."""
    for name, seconds in (("a.json", 1000), ("b.json", 2000)):
        os.utime(put(f"members/{name}", b""), (seconds, seconds))
    (storage.root / "members" / "folder.json").mkdir()
    (storage.root / "members" / "link.json").symlink_to("a.json")
    assert storage.modified("members") == {"a.json": 1000, "b.json": 2000}
    assert storage.modified("nowhere") == {}


def test_a_file_is_removed_and_a_folder_stays(storage, put):
    """Removing a file that is already gone is not an error."""
    put("members/a.json", b"")
    put("members/b.json/in_it", b"")
    for _ in range(2):
        storage.remove("members/a.json")
    with pytest.raises(StorageError, match="cannot remove"):
        storage.remove("members/b.json")
    assert files(storage) == ["members/b.json/in_it"]


def test_what_killed_writers_left_is_swept_once_it_is_old(storage, put):
    """Remove nothing that is being written now, and no other file."""
    for name, seconds in ((".tmp-old", 1000), (".tmp-new", 3000), ("1.json", 1000)):
        os.utime(put(f"plans/{name}", b""), (seconds, seconds))
    (storage.root / "plans" / ".tmp-folder").mkdir()
    storage.sweep("plans", 2000)
    storage.sweep("", 2000)
    storage.sweep("nowhere", 2000)
    assert files(storage) == ["plans/.tmp-new", "plans/1.json"]
