"""The best export is shown to another program without following any link."""

import os
from pathlib import Path

import pytest

from sidecar.publishing.sinks.exported_best import opened_best
from sidecar.publishing.sinks.sink import SinkUnavailableError

NAME = "ckpt-5@0123456789ab"


@pytest.fixture
def export(tmp_path):
    """An export with two files and a folder."""
    folder = tmp_path / "exports" / NAME
    (folder / "variables").mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    (folder / "variables" / "weights").write_text("weights")
    (tmp_path / "exports" / "best").symlink_to(NAME)
    return folder


def open_files():
    """The number of descriptors of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


def shown(run_dir, known=None):
    """Files and contents that another program would read; None if there is no export."""
    with opened_best(run_dir, known=known) as best:
        if best is None:
            return None
        files = [path for path in best.folder.rglob("*") if path.is_file()]
        found = {str(path.relative_to(best.folder)): path.read_text() for path in files}
        assert all(os.fstat(descriptor) for descriptor in best.descriptors)
        assert len(best.descriptors) == len(files)
    assert not best.folder.exists()
    return found


def test_an_export_is_shown(export, tmp_path):
    """All of its files, and nothing is left afterwards."""
    assert shown(tmp_path) == {"manifest.json": "{}", "variables/weights": "weights"}
    assert shown(tmp_path, known=NAME) is None
    assert sorted(path.name for path in export.iterdir()) == ["manifest.json", "variables"]


def test_there_is_none(tmp_path):
    """Before the first export, and while one has no manifest or is removed."""
    assert shown(tmp_path) is None
    (tmp_path / "exports").mkdir()
    assert shown(tmp_path) is None
    (tmp_path / "exports" / "best").symlink_to(NAME)
    assert shown(tmp_path) is None
    (tmp_path / "exports" / NAME).mkdir()
    assert shown(tmp_path) is None


@pytest.mark.parametrize("target", ["..", ".", "../state", "/etc", f"{NAME}/variables", "a\nb"])
def test_a_link_to_another_place(export, tmp_path, target):
    """It leads to a folder with a manifest, but not to an export."""
    (tmp_path / "manifest.json").write_text("{}")
    (export.parent / "manifest.json").write_text("{}")
    (export / "variables" / "manifest.json").write_text("{}")
    (export.parent / "best").unlink()
    (export.parent / "best").symlink_to(target)
    if target == "a\nb":
        assert shown(tmp_path) is None
        return
    with pytest.raises(SinkUnavailableError, match="exports"):
        shown(tmp_path)


def plant_link(export):
    (export / "variables" / "secret").symlink_to("/etc/passwd")


def plant_folder(export):
    (export / "more").symlink_to("/etc")


def plant_fifo(export):
    os.mkfifo(export / "fifo")


def plant_depth(export):
    export.joinpath(*"abcdefghij").mkdir(parents=True)


def plant_many(export):
    for number in range(600):
        (export / f"file-{number}").touch()


def replace_by_link(export):
    export.rename(export.with_name("elsewhere"))
    export.symlink_to("elsewhere")


PLANTED = [plant_link, plant_folder, plant_fifo, plant_depth, plant_many, replace_by_link]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_what_others_may_plant(export, tmp_path, plant):
    """It is refused with its path, and nothing stays open."""
    plant(export)
    before = open_files()
    with pytest.raises(SinkUnavailableError, match="exports"):
        shown(tmp_path)
    assert open_files() == before
