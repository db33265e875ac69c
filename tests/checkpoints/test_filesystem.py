"""Find the file system that holds a path, and warn of mount options that hide changes."""

from pathlib import Path

import pytest

from sidecar.checkpoints.filesystem import MOUNTINFO, Mount, mount_here, mount_of, troubles

NFS = "rw,vers=4.2,rsize=1048576,wsize=1048576,namlen=255,hard,proto=tcp,timeo=600,retrans=2,sec=sys"
TABLE = rf"""
22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw,errors=remount-ro
23 22 0:21 / /proc rw,nosuid,nodev,noexec,relatime shared:12 - proc proc rw
28 22 0:25 / /run rw,nosuid,nodev shared:5 master:3 - tmpfs tmpfs rw,size=3256776k,mode=755,inode64
151 22 0:53 / /data rw,relatime shared:80 - nfs4 filer.example:/export {NFS},local_lock=none,addr=10.0.0.9
152 151 0:54 /team\040a /data/team\040a rw,relatime - nfs4 filer.example:/export/team\040a {NFS},nocto,acregmax=600
153 151 0:55 / /data/scratch rw,noatime - xfs /dev/sdb1 rw,attr2,inode64,noquota
154 151 0:56 / /data/over rw - ext4 /dev/sdc1 rw
155 154 0:57 / /data/over rw - nfs filer.example:/over rw,vers=3,soft,acregmin=3,acregmax=60,acdirmax=120,addr=10.0.0.9
156 22 0:58 / /odd\134name\012 rw - fuse.sshfs user@host:/x rw,user_id=0
a line that no kernel wrote
"""


@pytest.mark.parametrize(
    ("path", "point", "filesystem"),
    [
        ("/home/me/ckpts", "/", "ext4"),
        ("/data/ckpts/.sidecar/run", "/data", "nfs4"),
        ("/data", "/data", "nfs4"),
        ("/database/ckpts", "/", "ext4"),
        ("/data/team a/ckpts", "/data/team a", "nfs4"),
        ("/data/scratch/ckpts", "/data/scratch", "xfs"),
        ("/data/over/ckpts", "/data/over", "nfs"),
        ("/odd\\name\n/ckpts", "/odd\\name\n", "fuse.sshfs"),
    ],
)
def test_the_longest_mount_point_above_a_path_holds_it(path, point, filesystem):
    """Whole names count, escapes are undone, and of two mounts on one point the later covers the earlier."""
    found = mount_of(Path(path), TABLE)
    assert (found.point, found.filesystem) == (point, filesystem)


def test_the_source_is_told():
    """It names the server."""
    assert mount_of(Path("/data/team a/x"), TABLE).source == "filer.example:/export/team a"


def test_without_a_table_nothing_is_known():
    """A container may have no /proc."""
    assert mount_of(Path("/data"), "") is None


def test_nocto_is_refused_and_long_caches_are_warned_of():
    """With nocto an NFS client opens what it remembers; attributes may be believed for so long."""
    found = list(troubles(mount_of(Path("/data/team a/x"), TABLE), 60.0))
    assert [each.fatal for each in found] == [True, False]
    assert "nocto" in found[0].text
    assert "acregmax=600" in found[1].text
    assert "visibility_seconds (60)" in found[1].text


def test_soft_mounts_and_slow_directories_are_warned_of():
    """Acregmax at the limit is none."""
    found = list(troubles(mount_of(Path("/data/over/x"), TABLE), 60.0))
    assert [each.fatal for each in found] == [False, False]
    assert "soft" in found[0].text
    assert "acdirmax=120" in found[1].text


@pytest.mark.parametrize("path", ["/data/x", "/home/x", "/data/scratch/x"])
def test_usual_mounts_have_no_troubles(path):
    """Hard NFS with its defaults, and what is local."""
    assert not list(troubles(mount_of(Path(path), TABLE), 60.0))


@pytest.mark.parametrize(
    ("filesystem", "shared"),
    [
        *[(name, True) for name in ("nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "gpfs", "9p", "virtiofs", "afs")],
        *[(name, True) for name in ("beegfs", "glusterfs", "fuse", "fuse.sshfs", "fuse.glusterfs", "fuse.s3fs")],
        *[(name, False) for name in ("ext4", "xfs", "btrfs", "overlay", "tmpfs", "zfs", "fuseblk", "bcachefs")],
    ],
)
def test_where_others_write_without_a_file_event(filesystem, shared):
    """`fuseblk` is a local disk."""
    assert Mount("/", filesystem, "", {}).is_shared == shared


def test_this_machine_tells_where_the_tests_lie(tmp_path):
    """The real table, which the kernel writes."""
    found = mount_of(tmp_path.resolve(), MOUNTINFO.read_text())
    assert tmp_path.is_relative_to(found.point)
    assert found.filesystem
    assert mount_here(tmp_path) == found
