"""A checkpoint that was renamed is the same one; a copy under another name is not."""

import os
import pickle
import shutil

import pytest

from sidecar.checkpoints.formats.matching import MatchingFiles
from sidecar.checkpoints.renamed_checkpoints import RenamedCheckpoints
from sidecar.checkpoints.watched_catalog import WatchedCatalog
from sidecar.retention.pins.pin import pin, unpin


@pytest.fixture
def catalog(new_catalog, clock):
    return WatchedCatalog(new_catalog(quiet_seconds=0, checkpoint_pattern="m-*"), None, clock)


@pytest.fixture
def save(root):
    """Saves a file or a folder of this name and content."""

    def write(name, content):
        if name.endswith("/"):
            (root / name).mkdir()
        path = root / name / "model" if name.endswith("/") else root / name
        path.write_text(content)
        return root / name

    return write


def scan(catalog, *settled):
    """Return the names, pinned ones with a star, of a scan that finds these keys settled."""
    found = catalog.scan(everything=True, is_settled=lambda key: key[0] in settled).found
    return [f"{each.checkpoint.name}{'*' * (each.checkpoint.pin is not None)}" for each in found]


def first(catalog):
    return catalog.scan(everything=True).found[0]


@pytest.mark.parametrize("ending", ["", "/"], ids=["file", "folder"])
@pytest.mark.parametrize("copies", [True, False])
def test_a_pinned_checkpoint_that_is_renamed_stays_one(catalog, save, root, pins, ending, copies):
    """Under its first name, while it is pinned and when it was evaluated; the reason is told."""
    path = save(f"m-1{ending}", "one")
    pinned = pin(first(catalog), pins, copies=copies)
    assert scan(catalog) == ["m-1*"]
    path.rename(root / "m-best")
    assert scan(catalog) == ["m-1*"]
    assert catalog.scan(everything=True).left_out == (("m-best", "it is m-1, renamed"),)
    unpin(pinned.checkpoint, pins)
    assert scan(catalog, "m-1") == []
    (root / "m-best").rename(root / "m-final")
    assert scan(catalog, "m-1") == []


@pytest.mark.parametrize("number", range(8))
def test_a_daemon_that_starts_after_the_rename_knows_it_by_the_pin(
    new_catalog, clock, save, root, pins, monkeypatch, number
):
    """If that is made of links, as of Orbax, in any order. Without the pin nothing tells a rename from a copy."""
    monkeypatch.setattr(MatchingFiles, "written_in_place", lambda *_: False)
    before = WatchedCatalog(new_catalog(quiet_seconds=0, checkpoint_pattern="m-*"), None, clock)
    path = save("m-1", f"{number}")
    pinned = pin(first(before), pins)
    path.rename(root / f"m-best-{number}")
    after = WatchedCatalog(new_catalog(quiet_seconds=0, checkpoint_pattern="m-*"), None, clock)
    assert scan(after) == ["m-1*"]
    unpin(pinned.checkpoint, pins)
    assert scan(after, "m-1") == []
    last = WatchedCatalog(new_catalog(quiet_seconds=0, checkpoint_pattern="m-*"), None, clock)
    assert scan(last, "m-1") == [f"m-best-{number}"]


def test_a_name_that_other_content_takes_is_gone(catalog, save, root, pins):
    """As with `last` and `previous`: the new content counts, and the old one is not evaluated again."""
    save("m-last", "one")
    pin(first(catalog), pins)
    (root / "m-last").rename(root / "m-previous")
    save("m-last", "two")
    assert scan(catalog) == ["m-last*", "m-last"]


def test_a_checkpoint_that_was_neither_pinned_nor_settled_counts_under_its_new_name(catalog, save, root):
    """Nothing else is left of it."""
    save("m-1", "one")
    assert scan(catalog) == ["m-1"]
    (root / "m-1").rename(root / "m-best")
    assert scan(catalog) == ["m-best"]
    assert scan(catalog, "m-1") == ["m-best"], "what was reported stays"


def test_a_settled_one_counts_again_when_it_is_not_settled_any_more(catalog, save, root):
    """As under a new task, or after a person asked for it: its files have only the new name."""
    save("m-1", "one")
    scan(catalog)
    (root / "m-1").rename(root / "m-best")
    assert scan(catalog, "m-1") == []
    assert scan(catalog) == ["m-best"]


@pytest.mark.parametrize("make", [shutil.copy, shutil.copy2, os.link])
def test_a_copy_is_a_checkpoint_of_its_own(catalog, save, root, pins, make):
    """Also when training deletes the other one afterwards."""
    save("m-1", "one")
    pinned = pin(first(catalog), pins)
    make(root / "m-1", root / "m-best")
    assert scan(catalog) == ["m-1*", "m-best"]
    (root / "m-1").unlink()
    unpin(pinned.checkpoint, pins)
    assert scan(catalog, "m-1") == ["m-best"]


def test_new_content_under_the_new_name_is_a_checkpoint(catalog, save, root, pins):
    """Also if it is written in place."""
    save("m-1", "one")
    pin(first(catalog), pins)
    (root / "m-1").rename(root / "m-best")
    assert scan(catalog) == ["m-1*"]
    save("m-best", "other")
    assert scan(catalog) == ["m-1*", "m-best"]


def test_of_checkpoints_that_are_gone_the_newest_are_remembered(catalog, save, root):
    """A year of checkpoints takes no more memory than a day; what is there is never forgotten."""
    catalog.renamed, sizes = RenamedCheckpoints(gone_remembered=5, forgotten_at_once=5), []
    save("m-here", "here")
    scan(catalog)
    (root / "m-here").rename(root / "m-best")
    assert scan(catalog, "m-here") == []
    for number in range(40):
        path = save(f"m-{number}", f"{number}")
        scan(catalog, "m-here")
        path.rename(path.with_name("away")) if number == 39 else path.unlink()
        sizes.append(len(pickle.dumps(catalog.renamed)))
    assert sizes[0] * 2 < max(sizes[:20])
    assert max(sizes[20:]) <= 1.1 * max(sizes[:20])
    (root / "away").rename(root / "m-again")
    assert scan(catalog, "m-here", "m-39") == []
    (root / "m-best").rename(root / "m-last")
    assert scan(catalog, "m-here", "m-39") == []
