"""Files from which data were read are known, and a file with another content is noticed."""

import os
import sqlite3
import sys
import threading
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from sidecar.evaluation.data import opened_files
from sidecar.evaluation.data.opened_files import DATA_FILE, OpenedFiles

READ = os.O_RDONLY


@pytest.fixture
def files():
    """Hear what a hook would be told."""
    return OpenedFiles()


def read(files, *paths, flags=READ, excluded=()):
    """Say that these files are opened while data are read."""
    with files.reading(*map(str, excluded)):
        for path in paths:
            files.hear("open", (str(path), "rb", flags))


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "data.bin"
    path.write_bytes(b"first")
    return path


def test_any_replacement_is_noticed(files, path):
    """Notice another size, the same size, a rename, and a write into the same file."""
    read(files, path)
    assert files.changed() == []
    path.write_bytes(b"longer than before")
    assert files.changed() == [str(path)]
    files.forget()
    read(files, path)
    assert files.changed() == []
    status = path.stat()
    path.write_bytes(b"LONGER THAN BEFORE")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert files.changed() == [str(path)]
    files.forget()
    read(files, path)
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    os.utime(other, ns=(status.st_atime_ns, path.stat().st_mtime_ns))  # size and time are the same
    other.rename(path)
    assert files.changed() == [str(path)]


def test_a_data_set_in_memory_is_noticed(files):
    """Other files of /dev are not data."""
    with TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder, "data.bin")
        path.write_bytes(b"first")
        read(files, path)
        path.write_bytes(b"second")
        assert files.changed() == [str(path)]


def test_a_write_that_sets_size_and_time_back_is_noticed(files, path):
    """As a tool does that copies times: nobody can set the time of the last change of the status."""
    read(files, path)
    status = path.stat()
    path.write_bytes(b"other")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    assert files.changed() == [str(path)]


@pytest.mark.parametrize("how", ["added", "removed", "renamed", "folder replaced"])
@pytest.mark.parametrize("listed", [os.listdir, os.scandir, os.walk, Path.iterdir, lambda path: path.glob("*.npy")])
def test_a_file_that_comes_or_goes_in_a_listed_folder_is_noticed(files, tmp_path, how, listed):
    """Its name may be its label."""
    files.install()
    folder = tmp_path / "images"
    folder.mkdir()
    (folder / "0.npy").write_bytes(b"x")
    with files.reading():
        list(listed(folder))
    assert files.changed() == []
    if how == "added":
        (folder / "1.npy").write_bytes(b"y")
    elif how == "removed":
        (folder / "0.npy").unlink()
    elif how == "renamed":
        (folder / "0.npy").rename(folder / "1.npy")
    else:
        folder.rename(tmp_path / "old")
        folder.mkdir()
    assert files.changed() == [str(folder)]


def test_folders_above_checkpoints_and_those_of_modules_say_nothing(files, tmp_path, monkeypatch):
    """Each checkpoint and each save changes them."""
    files.install()
    modules, checkpoints = tmp_path / "modules", tmp_path / "ckpts"
    modules.mkdir()
    (checkpoints / "run").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(modules))
    with files.reading():
        for folder in (modules, checkpoints, Path(sys.prefix)):
            list(folder.iterdir())
    (modules / "new.py").write_text("")
    (checkpoints / "model-1").write_text("")
    assert files.changed(str(checkpoints / "run" / "pins" / "model-1")) == []
    assert files.changed() == [str(checkpoints)]


def test_a_database_is_a_file(files, tmp_path):
    """`sqlite3` opens it in C, and tells of it."""
    files.install()
    path = tmp_path / "data.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("create table examples(x)")
        database.commit()
    with files.reading(), closing(sqlite3.connect(path)) as database:
        database.execute("select * from examples").fetchall()
    assert files.changed() == []
    with closing(sqlite3.connect(path)) as database:
        database.execute("insert into examples values(1)")
        database.commit()
    assert files.changed() == [str(path)]


def test_a_file_that_is_gone_or_comes_back_with_its_content(files, path):
    """Between the removal and the new file nothing is known; the data in memory are still those that were read."""
    read(files, path)
    path.unlink()
    assert files.changed() == []
    path.write_bytes(b"second")
    assert files.changed() == [str(path)]


def test_the_version_of_the_first_reading_counts(files, path):
    """A file that is opened for each evaluation may have been replaced in between."""
    read(files, path)
    path.write_bytes(b"another content")
    read(files, path)
    assert files.changed() == [str(path)]


def test_what_is_no_data_is_not_noted(files, path, tmp_path, monkeypatch):
    """Code, files that are written, the checkpoint, what is opened at another time, and more than can be looked at."""
    code, checkpoint = tmp_path / "task.py", tmp_path / "ckpt-5.index"
    for each in (code, checkpoint):
        each.write_text("x")
    read(files, code, tmp_path, "/proc/self/status", "/dev/null", tmp_path / "missing")
    read(files, path, flags=os.O_WRONLY)
    read(files, checkpoint, excluded=[tmp_path / "ckpt-5"])
    files.hear("open", (str(path), "rb", READ))
    with files.reading():
        files.hear("open", (3, "rb", READ))
        files.hear("import", ("os", None, None, None, None))
    monkeypatch.setattr(opened_files, "_MOST_FILES", 0)
    read(files, path)
    for each in (code, checkpoint, path):
        each.write_text("another content")
    assert files.changed() == []


def test_a_file_that_changes_without_the_data_is_left_alone_in_the_end(files, path):
    """A log that a source reads would have the task built anew for each checkpoint."""
    for number in range(5):
        read(files, path)
        path.write_bytes(b"x" * (10 + number))
        changed = files.changed()
        assert bool(changed) == (number < 3)
        files.count_useless(changed)
        files.forget()


def test_python_tells_of_each_file(files, path, tmp_path):
    """Note files of `open`, of numpy, of any thread, and those that a source names by itself."""
    files.install()
    array, named = tmp_path / "x.npy", tmp_path / "named.tfrecord"
    np.save(array, np.arange(3))
    named.write_bytes(b"x")
    before = tmp_path / "before"
    before.write_text("x")
    before.read_text()
    with files.reading():
        thread = threading.Thread(target=path.read_bytes)
        thread.start()
        thread.join()
        np.load(array)
        sys.audit(DATA_FILE, str(named))
    for each in (array, path, named, before):
        each.write_bytes(b"another content")
    assert files.changed() == [str(path), str(array), str(named)]
