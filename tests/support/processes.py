"""Observe processes of this machine: whether one has ended, and which children this process has."""

import contextlib
import time

import psutil

MOST_SECONDS = 240.0


def gone(pid):
    """Wait until a process has ended, and return whether it did so in time. A zombie has ended."""
    end = time.monotonic() + MOST_SECONDS
    while time.monotonic() < end:
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.02)
                continue
        return True
    return False


def children():
    """Return the ids of the children of this process. Other tests may have left some."""
    return {child.pid for child in psutil.Process().children()}


def written(path, words):
    """Wait until a file holds so many words and a line end, and return the words as numbers."""
    end = time.monotonic() + MOST_SECONDS
    while not (path.exists() and (text := path.read_text()).endswith("\n") and len(text.split()) == words):
        assert time.monotonic() < end
        time.sleep(0.02)
    return [int(word) for word in text.split()]
