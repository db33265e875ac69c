"""Keep the folder of exports right beside links, folders and files of others."""

import os
import subprocess

import pytest
from fakes import pass_time, save
from nested_folders import nest
from retention.exports.conftest import accuracy, evaluate, export_of, exported, exports, is_whole, linked
from retention.exports.conftest import pinned as pinned_names


def test_the_link_is_there_at_any_moment(exporting, system_calls):
    """A reader who follows it finds the old one or the new one: it is replaced, and not removed before."""
    evaluate(exporting, 0.5)
    removed = []
    system_calls.observe("unlink", lambda name, **_: removed.append(str(name)))
    evaluate(exporting, 0.9, first=2)
    assert linked(exporting) == "ckpt-2"
    assert removed
    assert "best" not in removed


def test_a_kill_before_the_link_moved_is_made_good(exporting):
    """The next scan sets it, also from a link to what is gone."""
    evaluate(exporting, 0.9, 0.8)
    (exports(exporting) / "best").unlink()
    pass_time(4, exporting)
    assert linked(exporting) == "ckpt-1"
    (exports(exporting) / "best").unlink()
    (exports(exporting) / "best").symlink_to("ckpt-7@0123456789ab")
    pass_time(4, exporting)
    assert linked(exporting) == "ckpt-1"


def test_a_link_in_the_place_of_the_folder_leads_nowhere(exporting, tmp_path):
    """Nothing is written through it, and the pin stays."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    pass_time(3, exporting)
    exporting.checkpoint_dir.mkdir(exist_ok=True)
    pass_time(3, exporting)
    exports(exporting).symlink_to(elsewhere)
    evaluate(exporting, 0.9)
    assert list(elsewhere.iterdir()) == []
    assert pinned_names(exporting) == ["ckpt-1"]
    assert exporting.log.of("export_failed")


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_something_else_with_the_name_of_the_link_stays(exporting, kind):
    """It is reported, and exports are made even so."""
    evaluate(exporting, 0.5)
    (exports(exporting) / "best").unlink()
    if kind == "folder":
        (exports(exporting) / "best").mkdir()
    else:
        (exports(exporting) / "best").write_text("mine")
    evaluate(exporting, 0.9, first=2)
    assert exported(exporting) == ["ckpt-1", "ckpt-2"]
    assert not (exports(exporting) / "best").is_symlink()
    assert [problem["entry"] for problem in exporting.log.of("export_failed")] == ["best"]


@pytest.mark.parametrize("target", ["/etc", "../../../..", "..", ".", "ckpt-9@0123456789ab", "foreign"])
def test_a_planted_link_is_replaced_and_not_followed(exporting, target):
    """It leads to what the journal ranks within a scan."""
    evaluate(exporting, 0.9)
    (exports(exporting) / "foreign").mkdir()
    (exports(exporting) / "best").unlink()
    (exports(exporting) / "best").symlink_to(target)
    pass_time(4, exporting)
    assert linked(exporting) == "ckpt-1"


def test_foreign_entries_are_left_alone_and_told(exporting, tmp_path):
    """A folder, a file, a link, a FIFO, and one that looks like an export."""
    evaluate(exporting, 0.9)
    folder = exports(exporting)
    (folder / "notes").mkdir()
    (folder / "notes" / "mine.txt").write_text("mine")
    (folder / "file").write_text("mine")
    (folder / "link").symlink_to(tmp_path)
    os.mkfifo(folder / "fifo")
    (folder / "ckpt-9@0123456789ab").mkdir()
    (folder / "ckpt-9@0123456789ab" / "manifest.json").write_text('{"plan":1}')
    before = sorted(folder.rglob("*"))
    pass_time(20, exporting)
    assert sorted(folder.rglob("*")) == before
    told = {problem["entry"] for problem in exporting.log.of("export_failed")}
    assert told == {"notes", "file", "link", "fifo", "ckpt-9@0123456789ab"}
    assert exporting.status.disk.failing_exports == 5


def test_a_folder_in_the_place_of_an_export_is_replaced(exporting):
    """Only the checkpoint itself counts as exported."""
    exporting.numbers["ckpt-1"] = accuracy(0.9)
    save(exporting.checkpoint_dir, 1)
    pass_time(3, exporting)
    (pin,) = (exporting.run_dir / "pins").glob("ckpt-1@*")
    (exports(exporting) / pin.name).mkdir(parents=True)
    (exports(exporting) / pin.name / "ckpt-1.index").write_bytes(b"evil")
    pass_time(15, exporting)
    assert is_whole(exporting, "ckpt-1")


def test_a_link_in_the_place_of_an_export_is_told_and_not_the_best(exporting, tmp_path):
    """Somebody swaps the best export for a link to a model of his own."""
    evaluate(exporting, 0.9, 0.8)
    path = export_of(exporting, "ckpt-1")
    evil = path.rename(tmp_path / "evil")
    path.symlink_to(evil)
    pass_time(6, exporting)
    assert exporting.log.of("export_failed")[-1]["entry"] == path.name
    assert linked(exporting) == "ckpt-2"
    assert evil.is_dir()


@pytest.mark.parametrize("place", ["exports/x", "pins/x"])
def test_folders_nested_without_end_stop_nothing(exporting, place):
    """Python's stack and the open files of a process are bounded, and those of a filesystem are not."""
    evaluate(exporting, 0.5)
    planted = exporting.run_dir / place
    planted.mkdir()
    nest(planted, 1200)
    try:
        evaluate(exporting, 0.9, 0.95, first=2)
        assert linked(exporting) == "ckpt-3"
    finally:
        subprocess.run(["rm", "-rf", planted], check=True)  # shutil.rmtree is recursive, too


def test_many_foreign_folders_do_not_hide_an_export_that_is_unneeded(exporting):
    """A pass looks at a bounded number of entries, those of its own first."""
    evaluate(exporting, 0.5, 0.6)
    for number in range(40):
        (exports(exporting) / f"{number:02}").mkdir()
    evaluate(exporting, 0.9, first=3)
    assert exported(exporting) == ["ckpt-2", "ckpt-3"]
