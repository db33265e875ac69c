"""Serves a folder as a filesystem in user space but for what rules refuse: `faulty_server.py SOURCE AT RULES FLUSHES`.

RULES is a JSON file, read at each operation: see faulty.py, which writes it. Made, named and flushed files go into
FLUSHES, a line of JSON each, from which faulty.py knows what a machine without power still has.
"""

import contextlib
import errno
import functools
import json
import os
import stat
import sys
import time

import mfusepy

SOURCE, MOUNTPOINT, RULES, FLUSHES = sys.argv[1:]
OPTIONS = {"attr_timeout": 0, "entry_timeout": 0, "negative_timeout": 0, "use_ino": True, "allow_other": True}


def judged(method):
    """Refuse what a rule refuses, as long as it stands, before the operation is carried out."""

    @functools.wraps(method)
    def call(self, path, *args):
        while (rule := find(method.__name__, path)) is not None:
            if isinstance(rule["error"], int | float):
                time.sleep(rule["error"])
                break
            if rule["error"] != "hang":
                raise mfusepy.FuseOSError(getattr(errno, rule["error"]))
            time.sleep(0.02)
        return method(self, path, *args)

    return call


def find(operation, path):
    """The rule that holds, if any."""
    with open(RULES, "rb") as file:
        rules = json.load(file)
    for rule in rules:
        concerned = operation in rule["operations"] and rule["part"] in path
        if concerned and ("beyond" not in rule or used() >= rule["beyond"]):
            return rule
    return None


def used():
    """Bytes in all files, each counted once."""
    seen = {}
    for folder, _, names in os.walk(SOURCE):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                found = os.lstat(os.path.join(folder, name))
                seen[found.st_ino] = found.st_size
    return sum(seen.values())


def note(event, **fields):
    """Add a line to the flushes, whole also if several threads do so."""
    log = os.open(FLUSHES, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(log, json.dumps({"event": event, **fields}).encode() + b"\n")
    finally:
        os.close(log)


def note_name(path):
    """Note that a name is new in its folder."""
    note("named", folder=os.path.dirname(path), path=path)


def at(path):
    """Where it really lies."""
    return SOURCE + path


class Passed(mfusepy.Operations):
    """Each operation is carried out on the source."""

    use_ns = True

    @judged
    def getattr(self, path, fh=None):
        found = os.fstat(fh) if fh else os.lstat(at(path))
        keys = ("st_ino", "st_mode", "st_nlink", "st_size", "st_uid", "st_gid", "st_blocks")
        times = {f"st_{kind}time": getattr(found, f"st_{kind}time_ns") for kind in "amc"}
        return {key: getattr(found, key) for key in keys} | times

    @judged
    def readdir(self, path, fh):
        with os.scandir(at(path)) as entries:
            kinds = [(each.name, each.inode(), each.is_dir(follow_symlinks=False)) for each in entries]
        inode = os.stat(at(path)).st_ino
        kinds += [(".", inode, True), ("..", inode, True)]
        return [
            (name, {"st_ino": number, "st_mode": stat.S_IFDIR if folder else stat.S_IFREG}, 0)
            for name, number, folder in kinds
        ]

    @judged
    def open(self, path, flags):
        return os.open(at(path), flags & ~os.O_NOFOLLOW)

    @judged
    def create(self, path, mode, fi=None):
        made = os.open(at(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
        note("made", inode=os.fstat(made).st_ino)
        note_name(path)
        return made

    @judged
    def read(self, path, size, offset, fh):
        return os.pread(fh, size, offset)

    @judged
    def write(self, path, data, offset, fh):
        return os.pwrite(fh, data, offset)

    @judged
    def truncate(self, path, length, fh=None):
        os.truncate(fh or at(path), length)

    @judged
    def release(self, path, fh):
        os.close(fh)

    @judged
    def flush(self, path, fh):
        return 0

    @judged
    def fsync(self, path, datasync, fh):
        found = os.fstat(fh)
        note("flushed", inode=found.st_ino, bytes=found.st_size)

    @judged
    def fsyncdir(self, path, datasync, fh):
        note("synced", folder=path)
        return 0

    @judged
    def unlink(self, path):
        os.unlink(at(path))

    @judged
    def rmdir(self, path):
        os.rmdir(at(path))

    @judged
    def mkdir(self, path, mode):
        os.mkdir(at(path), mode)
        note_name(path)

    @judged
    def rename(self, old, new):
        os.rename(at(old), at(new))
        note_name(new)

    @judged
    def link(self, target, source):
        os.link(at(source), at(target), follow_symlinks=False)
        note_name(target)

    @judged
    def symlink(self, target, source):
        os.symlink(source, at(target))

    @judged
    def readlink(self, path):
        return os.readlink(at(path))

    @judged
    def chmod(self, path, mode):
        os.chmod(at(path), mode)

    @judged
    def chown(self, path, uid, gid):
        os.chown(at(path), uid, gid, follow_symlinks=False)

    @judged
    def utimens(self, path, times=None):
        os.utime(at(path), ns=times, follow_symlinks=False)

    @judged
    def statfs(self, path):
        found = os.statvfs(at(path))
        keys = ("f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail", "f_files", "f_ffree", "f_favail")
        return {key: getattr(found, key) for key in (*keys, "f_namemax")}


if __name__ == "__main__":
    mfusepy.FUSE(Passed(), MOUNTPOINT, foreground=True, nothreads=False, **OPTIONS)
