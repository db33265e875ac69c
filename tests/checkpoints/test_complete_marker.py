"""The user's own marker, asked for on top of what each format needs; and formats that are not looked for."""

import shutil

import pytest
from checkpoints.kinds import NEVER_WHOLE
from fakes import save

from sidecar.checkpoints.file_group import CompleteMarker
from sidecar.checkpoints.formats import looked_for
from sidecar.retention.pins.pin import pin
from sidecar.settings.values import FORMATS as KNOWN_TO_SETTINGS

SAVED_MODELS = ("saved_model", "saved_model_by_tf_keras", "export")
KINDS = ("keras", "weights", "h5", "shards", "tf_object", *SAVED_MODELS)


def names(scan) -> list[str]:
    return [found.checkpoint.name for found in scan.found]


@pytest.mark.parametrize("kind", KINDS)
def test_a_marker_beside_each_checkpoint(written, root, new_catalog, clock, kind):
    """Whole and unchanged for long, but not found before `<name>.STABLE` is there; its pin needs none."""
    assert kind not in NEVER_WHOLE
    shutil.copytree(written / kind, root, dirs_exist_ok=True)
    catalog = new_catalog(complete_marker="{name}.STABLE")
    catalog.scan()
    clock.seconds += 300
    scan = catalog.scan()
    ((name, reason),) = scan.waiting
    assert (scan.found, scan.corrupt) == ((), ())
    assert f"{name}.STABLE is missing" in reason
    (root / f"{name}.STABLE").touch()
    (found,) = catalog.scan({f"{name}.STABLE"}, sweep=False).found
    pinned = pin(found, root / ".sidecar/run/pins")
    shutil.rmtree(root / name, ignore_errors=True)
    for path in root.glob(f"{name}*"):
        path.unlink()
    (again,) = new_catalog(complete_marker="{name}.STABLE").scan().found
    assert again.checkpoint == pinned.checkpoint


@pytest.mark.parametrize("kind", SAVED_MODELS)
@pytest.mark.parametrize("pattern", ["_SUCCESS", "{name}/_SUCCESS"])
def test_a_marker_inside_a_saved_model(written, root, new_catalog, clock, kind, pattern):
    """Seen by the sweep, as nothing outside changes with it; one beside it means nothing."""
    shutil.copytree(written / kind, root, dirs_exist_ok=True)
    catalog = new_catalog(complete_marker=pattern)
    (root / "_SUCCESS").touch()
    catalog.scan()
    clock.seconds += 300
    ((name, reason),) = catalog.scan().waiting
    assert f"{name}/_SUCCESS" in reason
    (root / name / "_SUCCESS").touch()
    assert names(catalog.scan()) == [name]


def test_one_marker_for_all_files(written, root, new_catalog, clock):
    """Without `{name}` it says that everything beside it is finished."""
    for kind in ("keras", "tf_object"):
        shutil.copytree(written / kind, root, dirs_exist_ok=True)
    catalog = new_catalog(complete_marker="STABLE")
    catalog.scan()
    clock.seconds += 10
    assert catalog.scan().found == ()
    (root / "STABLE").touch()
    assert sorted(names(catalog.scan({"STABLE"}, sweep=False))) == ["m-5", "m-5.keras"]


def test_a_marker_that_comes_too_early_declares_nothing(root, new_catalog, clock):
    """The structure is checked all the same, and what stays broken is told as such."""
    save(root, 5)
    whole = (root / "ckpt-5.index").read_bytes()
    (root / "ckpt-5.index").write_bytes(whole[:40])
    (root / "ckpt-5.done").touch()
    catalog = new_catalog(complete_marker="{name}.done")
    ((_, reason),) = catalog.scan().waiting
    assert "done" not in reason
    (root / "ckpt-5.index").write_bytes(whole)
    assert names(catalog.scan()) == ["ckpt-5"]
    (root / "ckpt-5.index").write_bytes(whole[:40])
    catalog.scan()
    clock.seconds += 60
    assert [each.verdict for each in catalog.scan().corrupt] == ["corrupt"]


def test_a_marker_that_listings_do_not_show_yet(root, new_catalog, monkeypatch):
    """It is opened: on NFS a listing may be half a minute old."""
    save(root, 5)
    catalog = new_catalog(complete_marker="{name}.done")
    catalog.scan()
    (root / "ckpt-5.done").touch()
    monkeypatch.setattr(type(catalog._directory._index), "changed", lambda *_, **__: set())
    assert names(catalog.scan()) == ["ckpt-5"]


def test_hidden_markers_and_odd_names(root, new_catalog):
    """A marker may begin with a dot, and a checkpoint's name hold what means something in a pattern."""
    save(root, 5)
    for path in root.glob("ckpt-5*"):
        path.rename(root / path.name.replace("ckpt-5", "a (1)+[x]"))
    (root / "checkpoint").write_text('model_checkpoint_path: "a (1)+[x]"')
    catalog = new_catalog(complete_marker=".{name}.ok")
    assert catalog.scan().found == ()
    (root / ".a (1)+[x].ok").touch()
    assert names(catalog.scan()) == ["a (1)+[x]"]


def test_a_marker_is_a_file(root):
    """Also one that a link leads to; no folder, link to nothing, or name that is too long."""
    marker = CompleteMarker("{name}.ok")
    (root / "a.ok").mkdir()
    (root / "b.ok").symlink_to("nowhere")
    (root / "d.ok").symlink_to("e")
    (root / "e").touch()
    assert marker.is_there(root, "d", is_folder=False)
    assert not marker.is_there(root, "a", is_folder=False)
    assert not marker.is_there(root, "b", is_folder=False)
    assert not marker.is_there(root, "c" * 300, is_folder=False)


def test_formats_that_are_not_looked_for(written, root, new_catalog, clock):
    """A data set beside the checkpoints may be an HDF5 file, too."""
    for kind in ("keras", "h5", "tf_object"):
        shutil.copytree(written / kind, root, dirs_exist_ok=True)
    catalog = new_catalog(formats=("tf_object", "keras"))
    catalog.scan()
    clock.seconds += 3
    scan = catalog.scan()
    assert sorted(names(scan)) == ["m-5", "m-5.keras"]
    assert scan.waiting == ()


def test_settings_know_every_format():
    """They cannot import what reads them."""
    assert tuple(format_.name for format_ in looked_for()) == KNOWN_TO_SETTINGS
