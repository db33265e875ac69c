"""Logs of worker processes where other users of the machine are hostile, and where workers print without end."""

import os
import queue
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from sidecar.daemon.workers import logs
from sidecar.daemon.workers.logs import LOG_BYTES, WorkerLog, remove_old_logs, usable_log_folder
from sidecar.daemon.workers.process import Exited, start
from sidecar.errors import SettingsError

MALLORY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="another user's part is played by root")


@pytest.fixture
def open_folder():
    """A folder that other users reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="logs-") as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


@pytest.fixture
def temporary(open_folder, tmp_path, monkeypatch):  # noqa: ARG001 - pytest's own folder is made before
    """A temporary folder in which every user may make names, and nobody may touch those of others."""
    folder = open_folder / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    previous = os.umask(0o002)
    yield folder
    os.umask(previous)


def default(temporary):
    """Where logs go unless a setting says otherwise."""
    return temporary / f"sidecar-{os.getuid()}" / "ckpts-1234"


def by_mallory(command, *arguments):
    """Run a shell command as another user, in the group of the victim; its exit code, and what it said."""

    def become():
        os.setgroups([os.getgid()])
        os.setuid(MALLORY)

    words = ["/bin/sh", "-c", command, "sh", *map(str, arguments)]
    done = subprocess.run(words, preexec_fn=become, capture_output=True, text=True, cwd="/", timeout=240)
    return done.returncode, done.stderr


def test_the_default_folder_is_private_whatever_the_umask(temporary):
    """Both folders, also where an older version left them open."""
    wanted = default(temporary)
    for _ in range(2):
        assert usable_log_folder(wanted) == (wanted, None)
        for folder in (wanted, wanted.parent):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        for folder in (wanted, wanted.parent):
            folder.chmod(0o775)


@as_root
def test_another_user_cannot_lead_the_log_elsewhere(temporary, open_folder):
    """With umask 002 the folder was renamed, and a link to files of the victim put in its place."""
    wanted = default(temporary)
    usable_log_folder(wanted)
    trap = open_folder / "trap"
    trap.mkdir()
    trap.chmod(0o777)
    code, error = by_mallory('mv "$1" "$1.old" && ln -s "$2" "$1"', wanted, trap)
    assert code != 0
    assert "ermission denied" in error
    WorkerLog.create(wanted / "n.a.1.log").close()
    assert list(trap.iterdir()) == []


@as_root
def test_a_link_in_place_of_the_folder_is_not_followed(temporary, tmp_path):
    """A trap from the time when the folder was open to the group."""
    wanted = default(temporary)
    wanted.parent.mkdir()
    trap = tmp_path / "trap"
    trap.mkdir()
    wanted.symlink_to(trap)
    with pytest.raises(OSError, match=r"ckpts-1234"):
        WorkerLog.create(wanted / "n.a.1.log")
    instead, reason = usable_log_folder(wanted)
    assert str(wanted) in reason
    assert "worker_logs" in reason
    WorkerLog.create(instead / "n.a.1.log").close()
    assert list(trap.iterdir()) == []


@as_root
@pytest.mark.parametrize(
    "squat",
    [
        'mkdir "$1"',
        'mkdir -m 0 "$1"',
        'mkdir -m 777 "$1"',
        'ln -s /root "$1"',
        'ln -s /nowhere "$1"',
        'touch "$1"',
    ],
)
def test_a_squatted_folder_does_not_prevent_the_start(temporary, squat):
    """Another folder is used, which nobody could foresee, the same one at the next start; and that is said."""
    wanted = default(temporary)
    assert by_mallory(squat, wanted.parent) == (0, "")
    instead, reason = usable_log_folder(wanted)
    assert str(wanted.parent) in reason
    assert str(instead) in reason
    assert instead.name == wanted.name
    assert instead.stat().st_uid == os.geteuid()
    assert stat.S_IMODE(instead.parent.stat().st_mode) == 0o700
    by_mallory('mkdir "$1"', temporary / f"sidecar-{os.getuid()}-000")
    assert usable_log_folder(wanted)[0] == instead


def test_a_folder_of_the_settings_that_cannot_be_used(tmp_path):
    """A sentence that names the setting, and no other folder in its place: this one was asked for."""
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=r"file.*worker_logs"):
        usable_log_folder(tmp_path / "file" / "logs")


def test_a_log_is_never_a_file_that_was_there(tmp_path):
    """A link, or a file, under its name is left alone."""
    (tmp_path / "profile").write_text("mine\n")
    (tmp_path / "n.a.1.log").symlink_to(tmp_path / "profile")
    with pytest.raises(FileExistsError):
        WorkerLog.create(tmp_path / "n.a.1.log")
    assert (tmp_path / "profile").read_text() == "mine\n"


def test_removing_logs_does_not_follow_links(tmp_path):
    """The target of a link in the log folder is not removed."""
    (tmp_path / "precious").touch()
    folder = tmp_path / "logs"
    folder.mkdir()
    for number in range(40):
        (folder / f"n.a.{number}.log").symlink_to(tmp_path / "precious")
    remove_old_logs(folder / "n.b.1.log", ())
    assert len(list(folder.iterdir())) == logs.LOGS_KEPT
    assert (tmp_path / "precious").exists()


def test_what_a_worker_writes_while_its_log_is_cut_is_kept(tmp_path, system_calls):
    """The last line before a worker dies is the reason; a thread of the daemon may be cutting the log just then."""
    log = WorkerLog.create(tmp_path / "w.log")
    worker = log.appending()
    os.write(worker, b"first words\n" + b"-" * LOG_BYTES + b"\n")
    last_words = [b"out of memory\n"]
    system_calls.observe("pwrite", lambda *_: last_words and os.write(worker, last_words.pop()))
    assert log.limit()
    os.close(worker)
    assert log.tail().endswith("out of memory")
    assert log.path.stat().st_size <= LOG_BYTES
    log.close()


@pytest.mark.timeout(900)  # 200 MB take seconds, and minutes on a machine that is busy with other tests
def test_a_log_is_bounded_while_the_worker_lives(tmp_path):
    """Beginning and end of 200 MB that a worker prints stay, with a line about the rest; it can go on printing."""
    script = tmp_path / "interpreter"
    script.write_text(
        f"#!{sys.executable}\nimport os, sys, time\nprint('first words')\n"
        "for number in range(2_000_000):\n    print(f'{number:099}')\n"
        f"sys.stdout.flush()\nopen({str(tmp_path / 'printed')!r}, 'x')\n"
        f"while not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.05)\nprint('last words', flush=True)\n"
    )
    script.chmod(0o755)
    inbox = queue.SimpleQueue()
    log = tmp_path / "logs" / "w.log"
    process = start(
        "w",
        interpreter=str(script),
        framework="x",
        environment={"PATH": "/usr/bin:/bin"},
        directory=str(tmp_path),
        log=log,
        keep_logs=(),
        post=lambda _, report: inbox.put(report),
    )
    try:
        deadline = time.monotonic() + 300
        while not ((tmp_path / "printed").exists() and log.stat().st_size <= LOG_BYTES):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        (tmp_path / "go").touch()
        exited = inbox.get(timeout=240)
    finally:
        process.kill()
        assert process.join(240)
    assert isinstance(exited, Exited)
    assert exited.status == 0
    assert exited.tail.endswith("last words")
    text = log.read_bytes()
    assert text.startswith(b"first words\n" + b"0" * 99 + b"\n")
    assert b" bytes were cut here" in text
    assert text.count(b" bytes were cut here") == 1
    assert log.stat().st_blocks * 512 <= LOG_BYTES + 8192
