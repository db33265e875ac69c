"""Which filesystem a path lies on, and whether its mount options let daemons on other nodes be seen in time.

Pure, given the text of /proc/self/mountinfo; its format is in proc_pid_mountinfo(5), NFS' options are in nfs(5).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

MOUNTINFO: Final = Path("/proc/self/mountinfo")

_NFS: Final = frozenset({"nfs", "nfs4"})
_CACHE_SECONDS: Final = ("actimeo", "acregmax", "acdirmax")  # how long a client may believe what it knows


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted filesystem: options of the mount and of the filesystem together, null for those without a value."""

    point: str
    filesystem: str
    source: str
    options: Mapping[str, str | None]

    @property
    def is_nfs(self) -> bool:
        """Whether other machines write there, too, and this one caches what they wrote."""
        return self.filesystem in _NFS


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong with a mount, and what to do; `fatal` if agreement cannot rest on it."""

    fatal: bool
    text: str


def mount_of(path: Path, mountinfo: str) -> Mount | None:
    """The mount that an absolute path without links lies on: the longest mount point above it, the last of equals."""
    best = None
    for mount in _parse(mountinfo):
        above = PurePosixPath(path).is_relative_to(mount.point)
        if above and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def troubles(mount: Mount, visibility_seconds: float) -> Iterator[Trouble]:
    """What is wrong with the options of a mount that daemons meet on; only NFS has any that matter."""
    if not mount.is_nfs:
        return
    if "nocto" in mount.options:
        text = "mount option nocto: what other nodes wrote may not be seen when it is opened; mount it without"
        yield Trouble(fatal=True, text=text)
    if "soft" in mount.options or "softerr" in mount.options:
        yield Trouble(fatal=False, text="mount option soft: a slow server looks like a broken file; hard is better")
    for name in _CACHE_SECONDS:
        seconds = _seconds(mount.options.get(name))
        if seconds is not None and seconds > visibility_seconds:
            text = (
                f"mount option {name}={seconds:g}: new files may be seen later than visibility_seconds "
                f"({visibility_seconds:g}); mount with actimeo=3 or acdirmax=3, or raise that"
            )
            yield Trouble(fatal=False, text=text)


def _parse(mountinfo: str) -> Iterator[Mount]:
    """Lines are `id parent device root POINT OPTIONS [tags …] - TYPE SOURCE OPTIONS`; others are left out."""
    for line in mountinfo.splitlines():
        before, dash, after = line.partition(" - ")
        here, there = before.split(" "), after.split(" ")
        if dash and len(here) > 5 and len(there) > 2:  # noqa: PLR2004 - as above
            options = f"{here[5]},{there[2]}"
            yield Mount(_plain(here[4]), there[0], _plain(there[1]), dict(map(_option, options.split(","))))


def _option(text: str) -> tuple[str, str | None]:
    name, given, value = text.partition("=")
    return name, value if given else None


def _plain(text: str) -> str:
    r"""Undo the kernel's escapes of space, tab, line end and backslash: `\040` and the like."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.isdecimal() else None
