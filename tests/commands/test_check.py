import pytest

from sidecar import mounts
from sidecar.commands.check import _checkpoints
from sidecar.commands.patience import Patience
from sidecar.config import Settings

TABLE = "22 1 259:2 / / rw,relatime shared:1 - {type} somewhere rw\n"


@pytest.mark.parametrize(
    ("filesystem", "file_events", "told"),
    [
        ("ext4", "auto", "new ones on ext4 are seen by file events and a sweep every 7 s"),
        ("nfs4", "auto", "new ones on nfs4 are seen by a sweep every 7 s only ("),
        ("fuse.sshfs", "auto", "new ones on fuse.sshfs are seen by a sweep every 7 s only ("),
        ("nfs4", "on", "new ones on nfs4 are seen by file events and a sweep every 7 s"),
        ("ext4", "off", "new ones on ext4 are seen by a sweep every 7 s only (file_events = off"),
    ],
)
def test_how_new_checkpoints_are_seen(place, catalog, tmp_path, monkeypatch, filesystem, file_events, told):
    """The filesystem's type decides, unless the user does."""
    monkeypatch.setattr(mounts, "MOUNTINFO", tmp_path / "mountinfo")
    mounts.MOUNTINFO.write_text(TABLE.format(type=filesystem))
    settings = Settings(checkpoint_dir=place, sweep_seconds=7.0, file_events=file_events)
    findings = list(_checkpoints(settings, catalog, Patience(10.0, "here")))
    assert all(each.ok for each in findings)
    assert any(each.text.startswith(told) for each in findings)
