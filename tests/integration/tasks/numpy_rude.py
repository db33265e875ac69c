"""The plain numpy task that does what no task should, once: the file RUDE names it, and is emptied then."""

import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy_plain as plain

FILE = Path(os.environ["RUDE"])
SAVES = Path(os.environ.get("SAVES", "/nonexistent"))
MEGABYTE = 1 << 20
LEAKED = []


def predict(model, x):
    """Return probabilities, and be rude."""
    words = FILE.read_text().split()
    if words and words[0] in RUDE:
        if words[0] not in LASTING:
            FILE.write_text("")
        RUDE[words[0]]()
    return plain.predict(model, x)


def fork_without_end():
    """Fork in all descendants, each in a session of its own, until that is refused, and then again and again."""
    while True:
        try:
            if os.fork() == 0:
                os.setsid()
        except OSError:
            time.sleep(0.5)


def hang():
    """Ignore and block all that could be, and never return."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
    sys.stdout.write("HANGING\n")
    while True:
        time.sleep(1)


def leak():
    """Hold on to one more megabyte, which is really there."""
    LEAKED.append(b"\1" * MEGABYTE)


def grow():
    """Take memory until somebody ends that."""
    while True:
        leak()


def write_to_saves():
    """Damage all that the run has saved, and what it is about to save; plant links and strange files."""
    for folder in [each for each in SAVES.rglob("*") if each.is_dir()]:
        for path in [each for each in folder.iterdir() if each.is_file()]:
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2] + b"\0rude")
        (folder / "planted").symlink_to("/etc/passwd")
        os.mkfifo(folder / "fifo")
        (folder / "deep").mkdir()


RUDE = {each.__name__: each for each in (fork_without_end, hang, leak, grow, write_to_saves)}
LASTING = {"leak"}


def task():
    """Return the plain task with a `predict` that misbehaves once."""
    return replace(plain.task(), predict=predict)
