"""Say which filesystem a path lies on: whether other machines' writes cause file events here, and are seen in time.

Pure, given the text of /proc/self/mountinfo; its format is in proc_pid_mountinfo(5), NFS' options are in nfs(5).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

MOUNTINFO: Final = Path("/proc/self/mountinfo")

_NFS: Final = frozenset({"nfs", "nfs4"})
_SHARED: Final = _NFS | {
    *("cifs", "smb3", "smbfs", "ncpfs", "afs", "coda"),
    *("lustre", "ceph", "gpfs", "beegfs", "glusterfs", "pvfs2", "orangefs", "panfs", "wekafs", "quobyte"),
    *("gfs2", "ocfs2"),  # one disk, many machines
    *("9p", "virtiofs", "vboxsf", "vmhgfs", "prl_fs"),  # of a virtual machine's host
}
"""Filesystems that report no writes of other machines to this kernel. Named as in mountinfo, without FUSE types."""

_CACHE_SECONDS: Final = ("actimeo", "acregmax", "acdirmax")  # how long a client may believe what it knows


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted filesystem: options of the mount and of the filesystem together, None for those without a value."""

    point: str
    filesystem: str
    source: str
    options: Mapping[str, str | None]

    @property
    def is_nfs(self) -> bool:
        """Return whether other machines write there, too, and this one caches what they wrote."""
        return self.filesystem in _NFS

    @property
    def is_shared(self) -> bool:
        """Return whether other machines may write there, of which no file events tell. With FUSE that is unknown."""
        return self.filesystem in _SHARED or self.filesystem.split(".")[0] == "fuse"


@dataclass(frozen=True, slots=True)
class Trouble:
    """Describe a problem of a mount, with a remedy. It is `fatal` if the daemons cannot coordinate on the mount."""

    fatal: bool
    text: str


def mount_of(path: Path, mountinfo: str) -> Mount | None:
    """Return the mount of an absolute path without links: that of the longest mount point, the last of equals."""
    best = None
    for mount in _parse(mountinfo):
        above = PurePosixPath(path).is_relative_to(mount.point)
        if above and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def mount_here(path: Path) -> Mount | None:
    """Return the mount of a path of this machine; None if the kernel does not say. It reads, and may block."""
    try:
        return mount_of(path.resolve(), MOUNTINFO.read_text(errors="replace"))
    except OSError:  # no /proc, or the path cannot be followed
        return None


def why_no_events(path: Path, *, file_events: str, sweep_seconds: float) -> str | None:
    """Return why file events of a directory are not used; None: they are. It reads, and may block."""
    sweep = f"a sweep every {sweep_seconds:g} s looks"
    if file_events == "off":
        return f"file_events = off: {sweep}"
    mount = mount_here(path) if file_events == "auto" else None
    if mount is None or not mount.is_shared:
        return None
    return f"{path} is on {mount.filesystem}, of which other machines' changes cause no events here: {sweep}"


def troubles(mount: Mount, visibility_seconds: float) -> Iterator[Trouble]:
    """Return what is wrong with the options of a mount that daemons meet on; only NFS has any that matter."""
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
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.isdecimal() else None
