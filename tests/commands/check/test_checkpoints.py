"""Report how checkpoints are found, and which settings would find more."""

import pickle
import zipfile

import pytest
from fakes import save

from sidecar.checkpoints import candidate_decision
from sidecar.commands.check.checkpoints import checkpoints
from sidecar.commands.from_settings import make_catalog
from sidecar.commands.storage_timeout import StorageTimeout
from sidecar.protocol.records import Checkpoint
from sidecar.settings import Settings

TABLE = "22 1 259:2 / / rw,relatime shared:1 - {type} somewhere rw\n"


@pytest.mark.parametrize(
    ("filesystem", "file_events", "told"),
    [
        ("ext4", "auto", "new ones on ext4 are detected by file events and a scan every 7 s"),
        ("nfs4", "auto", "new ones on nfs4 are detected by a scan every 7 s only ("),
        ("fuse.sshfs", "auto", "new ones on fuse.sshfs are detected by a scan every 7 s only ("),
        ("nfs4", "on", "new ones on nfs4 are detected by file events and a scan every 7 s"),
        ("ext4", "off", "new ones on ext4 are detected by a scan every 7 s only (file_events = off"),
    ],
)
def test_how_new_checkpoints_are_seen(place, catalog, tmp_path, monkeypatch, filesystem, file_events, told):
    """The filesystem's type decides, unless the user does."""
    monkeypatch.setattr("sidecar.checkpoints.filesystem.MOUNTINFO", tmp_path / "mountinfo")
    (tmp_path / "mountinfo").write_text(TABLE.format(type=filesystem))
    settings = Settings(checkpoint_dir=place, sweep_seconds=7.0, file_events=file_events)
    findings = list(checkpoints(settings, catalog, StorageTimeout(10.0, "here")))
    assert all(each.ok for each in findings)
    assert any(each.text.startswith(told) for each in findings)


def test_checkpoints_in_sub_folders_are_told_of(place, catalog):
    """Nothing is found, and one sentence says what to set; as long as nothing is, that is no failure."""
    save(place / "epoch_1", 5)
    findings = list(checkpoints(Settings(checkpoint_dir=place), catalog, StorageTimeout(10.0, "here")))
    assert all(each.ok for each in findings)
    (told,) = [each.text for each in findings if "sub-folders" in each.text]
    assert "epoch_1/ckpt-5" in told
    assert told.endswith('checkpoint_glob = "epoch_*/*"')


def test_two_runs_that_a_glob_makes_one_are_doubtful(tmp_path, place):
    """There would be one curve and one best checkpoint of both; a typo of the folder is doubtful, too."""
    for folder in ("exp1", "exp2"):
        for step in (1, 2):
            save(place / folder, step, keep=[1])
    timeout = StorageTimeout(10.0, "here")

    def doubtful(**given):
        settings = Settings(**{"checkpoint_dir": place, **given})
        return [
            each.text for each in checkpoints(settings, make_catalog(settings, once=True), timeout) if each.doubtful
        ]

    (told,) = doubtful(checkpoint_glob="exp*/*")
    assert f"`sidecar run {place}/exp1`" in told
    assert "exp1, exp2" in told
    assert "did you mean ckpts?" in doubtful(checkpoint_dir=tmp_path / "ckpt")[0]


def test_a_last_ckpt_that_is_not_evaluated_is_named(place, catalog, clock):
    """With the checkpoint that has the same training state, so that nobody looks for its numbers."""
    place.mkdir(exist_ok=True)
    for name in ("epoch=0-step=5.ckpt", "last.ckpt"):
        with zipfile.ZipFile(place / name, "w") as archive:
            archive.writestr("m/data.pkl", pickle.dumps({"global_step": 5, "path": name}, protocol=2))
            archive.writestr("m/data/0", b"weights")
    catalog.scan()
    clock.seconds += 10
    findings = list(checkpoints(Settings(checkpoint_dir=place), catalog, StorageTimeout(10.0, "here")))
    (text,) = [each.text for each in findings if "last.ckpt" in each.text]
    assert "epoch=0-step=5.ckpt" in text


def test_a_pattern_that_matches_nothing_is_told_of(place, catalog):
    """It may be misspelt; as long as the directory is empty, nothing is said."""

    def told(pattern):
        settings = Settings(checkpoint_dir=place, checkpoint_pattern=pattern)
        return [each.text for each in checkpoints(settings, catalog, StorageTimeout(10.0, "here"))]

    place.mkdir(exist_ok=True)
    assert not any("checkpoint_pattern" in text for text in told("model_*"))
    (place / "model-1.joblib").write_bytes(b"x")
    assert not any("checkpoint_pattern" in text for text in told("model-*"))
    (text,) = [text for text in told("model_*") if "checkpoint_pattern" in text]
    assert "model-1.joblib" in text
    assert "model_*" in text


def test_how_steps_were_found_and_what_to_set(place, catalog, monkeypatch):
    """A sentence about all that lie there; what to set only where something is in doubt."""
    for step in (1, 2):
        save(place, step, keep=[1])
    settings = Settings(checkpoint_dir=place)

    def told():
        texts = [each.text for each in checkpoints(settings, catalog, StorageTimeout(10.0, "here"))]
        return [text for text in texts if text.startswith("step = ")]

    assert told() == ["step = a variable of the checkpoint, for all 2"]

    def nameless(_format, name, inspection, _pattern):
        return Checkpoint(name=name, digest=inspection.digest, step=None, format="tf_object")

    monkeypatch.setattr(candidate_decision, "as_checkpoint", nameless)
    save(place, 3, keep=[1, 2])
    (text,) = told()
    assert "a number in order of writing for 1 (ckpt-3), of 3: set step_pattern" in text
