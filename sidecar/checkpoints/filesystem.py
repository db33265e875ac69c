"""Find the filesystem of a path, and decide whether writes of other machines cause file events and are seen in time.

Pure, except for the functions that say otherwise. Sources: proc_pid_mountinfo(5) for the format of
/proc/self/mountinfo, nfs(5) for the options of NFS.
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
    *("9p", "virtiofs", "vboxsf", "vmhgfs", "prl_fs"),  # folders of a virtual machine's host
}
"""Filesystems that report no writes of other machines to this kernel, by their names in mountinfo. FUSE is extra."""

_CACHE_SECONDS: Final = ("actimeo", "acregmax", "acdirmax")  # the most seconds for which a client trusts its cache


@dataclass(frozen=True, slots=True)
class Mount:
    """Describe a mounted filesystem.

    `options`: those of the mount and of the filesystem together; the value is None for an option without a value.
    """

    point: str
    filesystem: str
    source: str
    options: Mapping[str, str | None]

    @property
    def is_nfs(self) -> bool:
        """Return whether the filesystem is NFS: other machines write to it, and this one caches their writes."""
        return self.filesystem in _NFS

    @property
    def is_shared(self) -> bool:
        """Return whether other machines may write to it without file events here. Assume so for all of FUSE."""
        return self.filesystem in _SHARED or self.filesystem.split(".")[0] == "fuse"


@dataclass(frozen=True, slots=True)
class Trouble:
    """Describe a problem of a mount, with a remedy. `fatal`: the daemons cannot coordinate on the mount."""

    fatal: bool
    text: str


def mount_of(path: Path, mountinfo: str) -> Mount | None:
    """Return the mount of an absolute path without links: the one with the longest mount point, the last of equals."""
    best = None
    for mount in _parse(mountinfo):
        above = PurePosixPath(path).is_relative_to(mount.point)
        if above and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def mount_here(path: Path) -> Mount | None:
    """Return the mount of a path on this machine; None if it cannot be found. This reads /proc, and may block."""
    try:
        return mount_of(path.resolve(), MOUNTINFO.read_text(errors="replace"))
    except OSError:  # no /proc, or the path cannot be followed
        return None


def why_no_events(path: Path, *, file_events: str, sweep_seconds: float) -> str | None:
    """Return why file events of a directory are not used; None if they are used. This reads /proc, and may block."""
    sweep = f"a sweep every {sweep_seconds:g} s finds changes"
    if file_events == "off":
        return f"file_events = off: {sweep}"
    mount = mount_here(path) if file_events == "auto" else None
    if mount is None or not mount.is_shared:
        return None
    return f"{path} is on {mount.filesystem}, where changes by other machines cause no file events here: {sweep}"


def troubles(mount: Mount, visibility_seconds: float) -> Iterator[Trouble]:
    """Yield the problems of a mount that holds shared state. Only NFS has options that cause problems."""
    if not mount.is_nfs:
        return
    if "nocto" in mount.options:
        text = "mount option nocto: a file that is opened may lack the last writes of other nodes; mount without nocto"
        yield Trouble(fatal=True, text=text)
    if "soft" in mount.options or "softerr" in mount.options:
        yield Trouble(fatal=False, text="mount option soft: a slow server seems to have broken files; use hard")
    for name in _CACHE_SECONDS:
        seconds = _seconds(mount.options.get(name))
        if seconds is not None and seconds > visibility_seconds:
            text = (
                f"mount option {name}={seconds:g}: new files may be seen later than visibility_seconds "
                f"({visibility_seconds:g}); mount with actimeo=3 or acdirmax=3, or raise visibility_seconds"
            )
            yield Trouble(fatal=False, text=text)


def _parse(mountinfo: str) -> Iterator[Mount]:
    """Yield a mount for each line like `id parent device root POINT OPTIONS [tags …] - TYPE SOURCE OPTIONS`."""
    for line in mountinfo.splitlines():
        before, dash, after = line.partition(" - ")
        of_mount, of_filesystem = before.split(" "), after.split(" ")
        if dash and len(of_mount) > 5 and len(of_filesystem) > 2:  # noqa: PLR2004 - as above
            options = dict(map(_option, f"{of_mount[5]},{of_filesystem[2]}".split(",")))
            yield Mount(_plain(of_mount[4]), of_filesystem[0], _plain(of_filesystem[1]), options)


def _option(text: str) -> tuple[str, str | None]:
    """Return the name and the value of a mount option; None if it has no value."""
    name, given, value = text.partition("=")
    return name, value if given else None


def _plain(text: str) -> str:
    r"""Undo the kernel's escapes of space, tab, line end and backslash: `\040` and the like."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _seconds(text: str | None) -> float | None:
    """Return the seconds of a mount option; None if it is not a whole number."""
    return float(text) if text is not None and text.isdecimal() else None
