"""Folders that others write to: nothing is read, removed or replaced behind a link, whatever is swapped meanwhile."""

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from nested_folders import nest
from users import MALLORY, VICTIM, acting_as, is_untouched, only_root, private_folder, shared_folder

from sidecar.system.confined import NotRegularError, open_folder


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    with open_folder(root) as opened:
        yield opened


@pytest.fixture
def outside(tmp_path):
    """Return what must stay as it is."""
    (tmp_path / "outside" / "below").mkdir(parents=True)
    (tmp_path / "outside" / "below" / "file").write_text("mine")
    yield tmp_path / "outside"
    assert (tmp_path / "outside" / "below" / "file").read_text() == "mine"
    assert [path.name for path in (tmp_path / "outside").rglob("*")] == ["below", "file"]


@pytest.mark.parametrize("name", ["", ".", "..", "a\0b", "../x", "\ud800"])
def test_a_name_is_one_component(folder, name):
    """Names come out of records, which are not trusted."""
    for use in (folder.stat, folder.unlink, folder.remove, folder.make_folder, lambda each: folder.read(each, 9)):
        with pytest.raises(OSError, match="not the name"):
            use(name)
    with pytest.raises(OSError, match="not the name"), folder.folder(f"{name}/x"):
        pass


def test_folders_are_made_on_the_way_and_durable_before_what_is_below(folder, system_calls):
    """A folder that is there costs no fsync."""
    synced = []
    system_calls.observe("fsync", lambda fd: synced.append(Path(f"/proc/self/fd/{fd}").readlink().name))
    for name in ("first", "second"):
        with folder.folder("a/b", make=True) as made, made.create_file(name):
            pass
    assert synced == ["root", "a"]
    with pytest.raises(FileNotFoundError) as caught, folder.folder("a/c"):
        pass
    assert caught.value.filename == f"{folder.path}/a/c"


@pytest.mark.parametrize("make", [False, True])
@pytest.mark.parametrize("path", ["link", "link/below", "a/link"])
def test_no_link_is_followed_to_a_folder(folder, outside, path, make):
    """Wherever it stands in a path, and though it leads to a folder."""
    (folder.path / "a").mkdir()
    (folder.path / "link").symlink_to(outside)
    (folder.path / "a" / "link").symlink_to(outside)
    with pytest.raises(OSError, match="is a link") as caught, folder.folder(path, make=make):
        pass
    assert caught.value.errno == errno.ELOOP


def planted(folder):
    """One of each thing that is not a regular file."""
    (folder.path / "link").symlink_to("/dev/tty")
    (folder.path / "sub").mkdir()
    os.mkfifo(folder.path / "fifo")
    server = socket.socket(socket.AF_UNIX)
    at = os.getcwd()  # noqa: PTH109
    os.chdir(folder.path)  # the path of a socket must be short
    server.bind("socket")
    os.chdir(at)
    server.close()
    return ["link", "sub", "fifo", "socket"]


def test_only_regular_files_are_read_and_nothing_is_waited_for(folder):
    """A FIFO without a writer would hold whoever opens it for ever."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    for name in planted(folder):
        with pytest.raises(NotRegularError) as caught:
            folder.read(name, 100)
        assert caught.value.filename == f"{folder.path}/{name}"
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_of_a_long_file_a_bounded_part_is_read(folder):
    """A terabyte of nothing is one byte more than the limit."""
    with folder.create_file("sparse") as file:
        file.truncate(1 << 40)
    assert len(folder.read("sparse", 1000)) == 1001


def test_what_stands_under_a_name_is_never_created_over(folder, outside):
    """A link that leads nowhere included: nothing is made where it points to."""
    (folder.path / "link").symlink_to(outside / "new")
    for use in (lambda: folder.create_file("link").__enter__(), lambda: folder.make_folder("link")):
        with pytest.raises(FileExistsError):
            use()


def test_what_is_removed_goes_with_all_below_and_links_go_themselves(folder, outside):
    """Folders, files, FIFOs and links, at any depth; what they point to stays."""
    with folder.folder("tree/a/b", make=True) as deep:
        planted(deep)
        (deep.path / "out").symlink_to(outside)
    (folder.path / "tree" / "out").symlink_to(outside)
    (folder.path / "alone").symlink_to(outside)
    for name in ("tree", "alone", "never there"):
        folder.remove(name)
    assert folder.names() == []


def test_removing_goes_on_where_something_cannot_be_removed(folder):
    """Then the first error is raised, with the path of what stays; folders in each other have a bound."""
    with folder.folder("tree/deep", make=True), folder.folder("tree/other", make=True):
        pass
    nest(folder.path / "tree/deep", 100)
    with pytest.raises(OSError, match="64 folders"):
        folder.remove("tree")
    assert [path.name for path in (folder.path / "tree").iterdir()] == ["deep"]


@only_root
def test_what_another_user_owns_goes_where_the_group_may_write_and_stays_elsewhere():
    """As `rm -r` by that user would: the error names what stays."""
    with shared_folder() as shared:
        private = private_folder(shared)
        with acting_as(VICTIM), open_folder(shared) as opened, opened.folder("saves/worker", make=True) as saves:
            saves.make_folder("weights")
        with acting_as(MALLORY), open_folder(shared) as opened:
            with pytest.raises(PermissionError, match="private"):
                opened.remove("private")
            opened.remove("saves")
        assert is_untouched(private)
        assert sorted(path.name for path in shared.iterdir()) == ["private"]


SWAPS = """
import os, sys
own, link, away, outside = sys.argv[1:]
print("swapping", flush=True)
while True:
    try:
        os.rename(own, away)
        os.symlink(outside, link)
        os.rename(link, own)
        os.unlink(own)
        os.rename(away, own)
    except OSError:
        for path in (link, away):  # the other removed what was to be moved
            if os.path.islink(path):
                os.unlink(path)
"""


@pytest.mark.seconds
@pytest.mark.parametrize("what", ["remove", "read", "write"])
def test_a_folder_that_is_swapped_for_a_link_again_and_again_leads_nowhere(folder, outside, what):
    """Another process does so as fast as it can: what is done here fails or works, and only inside."""
    places = [str(folder.path / name) for name in ("sub", "link", "away")]
    hostile = subprocess.Popen([sys.executable, "-c", SWAPS, *places, str(outside)], stdout=subprocess.PIPE)
    try:
        assert hostile.stdout.readline() == b"swapping\n"
        for _ in range(500):
            try:
                with folder.folder("sub/below", make=True) as below, below.create_file("file") as file:
                    file.write(b"ours")
                if what == "read":
                    with folder.folder("sub/below") as below:
                        assert below.read("file", 10) == b"ours"
                if what != "write":
                    folder.remove("sub")
            except OSError:
                continue
        assert hostile.poll() is None
    finally:
        hostile.kill()
        hostile.communicate()


def test_a_file_is_continued_only_if_it_is_ones_own(folder, outside):
    """A link, whatever its kind, could lead to somebody else's file; nothing else than a regular file is opened."""
    with folder.append_to_file("log") as file:
        file.write(b"one ")
    with folder.append_to_file("log") as file:
        file.write(b"two")
        file.seek(0)
        assert file.read() == b"one two"
    (folder.path / "soft").symlink_to(outside / "below" / "file")
    (folder.path / "dangling").symlink_to(outside / "new")
    (folder.path / "hard").hardlink_to(outside / "below" / "file")
    os.mkfifo(folder.path / "fifo")
    for name in ("soft", "dangling", "hard", "fifo"):
        with pytest.raises(OSError, match=name), folder.append_to_file(name):
            pytest.fail(f"{name} was opened")
    (folder.path / "hard").unlink()
