"""Checkpoints in sub-folders: which are found, held and named, and what is said of those that nobody asked for."""

import os
import shutil
import threading
import time
from pathlib import Path

import pytest
from catalogs import make_catalog
from fakes import save

from sidecar.checkpoints import files, subfolders
from sidecar.checkpoints.inspect import inspect_one, restore_path, verify
from sidecar.checkpoints.presence import Presence
from sidecar.checkpoints.subfolder_hint import SubfolderHint, of_several_runs, remedy_below, similar_folder
from sidecar.checkpoints.watch import Watch
from sidecar.errors import IncompleteError, VanishedError
from sidecar.retention.pins.pin import pin
from sidecar.system.bounded_calls import HangingError

BOUND_SECONDS = 20


def names(scan) -> list[str]:
    return [found.checkpoint.name for found in scan.found]


def put(folder, step: int):
    """Save one more checkpoint in a folder."""
    there = [int(each.stem.removeprefix("ckpt-")) for each in folder.glob("ckpt-*.index")]
    save(folder, step, keep=there)
    return folder


@pytest.fixture
def catalog(new_catalog):
    """A catalog that looks into some sub-folders."""

    def new(*patterns, **settings):
        return new_catalog(checkpoint_glob=tuple(patterns), **settings)

    return new


@pytest.mark.parametrize(
    ("patterns", "found"),
    [
        (("*",), ["ckpt-0"]),
        (("*/*",), ["epoch_1/ckpt-1", "epoch_2/ckpt-2", "run-7/ckpt-7"]),
        (("epoch_*/*",), ["epoch_1/ckpt-1", "epoch_2/ckpt-2"]),
        (("*", "*/ckpt-[17]"), ["ckpt-0", "epoch_1/ckpt-1", "run-7/ckpt-7"]),
        (("*/*/*",), ["checkpoints/epoch_03/ckpt-3"]),
        (("no*/*",), []),
    ],
)
def test_what_a_glob_finds(root, catalog, patterns, found):
    """Each name of a path is compared on its own; steps and files are found as anywhere."""
    for folder, step in (("", 0), ("epoch_1", 1), ("epoch_2", 2), ("run-7", 7), ("checkpoints/epoch_03", 3)):
        put(root / folder, step)
    scan = catalog(*patterns).scan()
    assert names(scan) == found
    assert [each.checkpoint.step for each in scan.found] == [int(name[-1]) for name in found]
    for each in scan.found:
        assert restore_path(each, each.folder) == str(root / each.checkpoint.name)
        assert verify(each.folder, each.checkpoint.name) == each.checkpoint.digest


def test_a_pin_has_no_folders_in_its_name(root, pins, catalog):
    """One name of a file, that no other checkpoint has; another daemon reads from it which checkpoint it holds."""
    put(root / "epoch_1", 5)
    put(root / "epoch_2", 5)  # the same content
    put(root, 5)
    shutil.copytree(root / "epoch_1", root / "epoch_1%2Fckpt-5")
    found = catalog("*", "*/*").scan().found
    assert sorted(each.checkpoint.name for each in found) == [
        "ckpt-5",
        "epoch_1%2Fckpt-5/ckpt-5",
        "epoch_1/ckpt-5",
        "epoch_2/ckpt-5",
    ]
    pinned = [pin(each, pins) for each in found]
    assert len({each.folder.name for each in pinned}) == 4
    assert not any("/" in each.folder.name for each in pinned)
    shutil.rmtree(root / "epoch_1")
    shutil.rmtree(root / "epoch_1%2Fckpt-5")
    again = catalog("*", "*/*").scan().pinned()
    assert {each.checkpoint.key for each in pinned} == again.keys()
    for each in again.values():
        assert verify(each.folder, each.checkpoint.name) == each.checkpoint.digest
        assert Path(f"{restore_path(each, each.folder)}.index").exists()


def test_a_long_path_is_read_back_from_its_pin(root, pins, catalog):
    """The pin's name is cut, so the pin's record says in which folder the checkpoint lay."""
    folder = put(root / ("e" * 120) / ("f" * 120), 5)
    (found,) = catalog("*/*/*").scan().found
    pin(found, pins)
    shutil.rmtree(folder.parent)
    (again,) = catalog("*/*/*").scan().found
    assert again.checkpoint.key == found.checkpoint.key
    assert again.checkpoint.pin is not None


@pytest.mark.parametrize("name", ["..%2F..%2Fckpt-5", "%2Fckpt-5", "a%2F%2Fckpt-5", "%FF%2Fckpt-5"])
def test_a_pin_that_lies_about_its_folder(root, pins, catalog, name):
    """Whoever may write there names pins as they like: no name leads out of the checkpoint directory."""
    put(root, 5)
    (found,) = catalog("*").scan().found
    pinned = pin(found, pins)
    pinned.folder.rename(pinned.folder.with_name(f"{name}@{found.checkpoint.digest[:12]}"))
    scan = catalog("*", "*/*").scan()
    assert names(scan) == ["ckpt-5"]
    assert scan.pinned() == {}


def test_folders_come_and_go(root, catalog, clock):
    """New ones are seen by the sweep, without events; what was in one that is gone is gone, by its own files."""
    seen = catalog("epoch_*/*")
    assert names(seen.scan()) == []
    put(root / "epoch_1", 1)
    clock.seconds += 2
    (found,) = seen.scan(set(), sweep=True).found
    (root / "epoch_2").mkdir()
    clock.seconds += 2
    seen.scan(set(), sweep=True)
    put(root / "epoch_2", 2)
    clock.seconds += 2
    assert names(seen.scan(set(), sweep=True)) == ["epoch_1/ckpt-1", "epoch_2/ckpt-2"]
    assert seen.ask(found).presence is Presence.THERE
    shutil.rmtree(root / "epoch_1")
    assert names(seen.scan()) == ["epoch_2/ckpt-2"]
    assert seen.ask(found).presence is Presence.GONE
    put(root / "epoch_1", 1)
    assert names(seen.scan()) == ["epoch_1/ckpt-1", "epoch_2/ckpt-2"]
    shutil.rmtree(root)
    assert seen.scan().missing


def test_a_hint_leads_into_a_folder(root, catalog):
    """What an event told of is looked at without a sweep."""
    put(root / "epoch_1", 1)
    seen = catalog("epoch_*/*")
    seen.scan()
    put(root / "epoch_1", 3)
    assert names(seen.scan(set(), sweep=False)) == ["epoch_1/ckpt-1"]
    hints = {f"epoch_1/{each.name}" for each in (root / "epoch_1").iterdir()}
    assert names(seen.scan(hints, sweep=False)) == ["epoch_1/ckpt-1", "epoch_1/ckpt-3"]


def test_links_are_not_entered(root, catalog, tmp_path, pins):
    """Neither out of the checkpoint directory nor in it; and a folder that became a link is not read through it."""
    outside = put(tmp_path / "outside", 9)
    put(root / "epoch_1", 1)
    (root / "latest").symlink_to("epoch_1")
    (root / "epoch_2").symlink_to(outside)
    seen = catalog("*/*")
    (found,) = seen.scan().found
    assert found.checkpoint.name == "epoch_1/ckpt-1"
    shutil.rmtree(root / "epoch_1")
    shutil.copytree(outside, tmp_path / "theirs")
    for each in (tmp_path / "theirs").iterdir():
        each.rename(each.with_name(each.name.replace("ckpt-9", "ckpt-1")))
    (root / "epoch_1").symlink_to(tmp_path / "theirs")
    assert names(seen.scan()) == []
    assert seen.ask(found).presence is Presence.GONE
    with pytest.raises((VanishedError, IncompleteError)):
        pin(found, pins)
    assert not any(pins.iterdir())


def test_the_state_is_no_checkpoint(root, new_catalog):
    """Wherever in the checkpoint directory it lies, and whatever the glob says."""
    put(root / "epoch_1", 1)
    state = root / "state"
    patterns = ("*/*", "*/*/*/*")
    (found,) = new_catalog(checkpoint_glob=patterns).scan().found
    pin(found, state / "run" / "pins")
    pin(found, state / "other" / "pins")
    catalog = make_catalog(
        root, state / "run" / "pins", quiet_seconds=3.0, clock=new_catalog()._clock, checkpoint_glob=patterns
    )
    assert names(catalog.scan()) == ["epoch_1/ckpt-1"]


def test_what_is_broken_says_where(root, catalog, clock):
    """In the reasons and in the settlement, with the whole path."""
    put(root / "epoch_1", 1)
    index = root / "epoch_1/ckpt-1.index"
    index.write_bytes(index.read_bytes()[:-10])
    seen = catalog("*/*")
    assert [name for name, _ in seen.scan().waiting] == ["epoch_1/ckpt-1"]
    clock.seconds += 60
    (given_up,) = seen.scan().corrupt
    assert (given_up.name, given_up.verdict, given_up.step) == ("epoch_1/ckpt-1", "corrupt", 1)


def test_one_folder_that_cannot_be_read(root, catalog, monkeypatch):
    """The others go on; what was known of it is unknown, not gone."""
    for number in (1, 2):
        put(root / f"epoch_{number}", number)
    seen = catalog("*/*")
    seen.scan()
    open_, denied = os.open, (root / "epoch_1").stat().st_ino

    def refuse(path, flags, *arguments, dir_fd=None, **settings):
        found = open_(path, flags, *arguments, dir_fd=dir_fd, **settings)
        if os.fstat(found).st_ino == denied:
            os.close(found)
            raise PermissionError(13, "Permission denied", path)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        put(root / "epoch_2", 3)
        scan = seen.scan()
    assert names(scan) == ["epoch_1/ckpt-1", "epoch_2/ckpt-2", "epoch_2/ckpt-3"]
    assert list(scan.unknown) == [each.checkpoint.folder for each in scan.found[:1]]
    assert ("epoch_1", "cannot be read: Permission denied") in scan.waiting
    scan = seen.scan()
    assert (scan.unknown, scan.waiting) == ({}, ())


def test_as_many_as_are_looked_at(root, catalog, clock, monkeypatch):
    """More than that are left out, and it is said; all others are seen in turn, those that change in each sweep."""
    monkeypatch.setattr(subfolders, "MOST_FOLDERS", 30)
    monkeypatch.setattr(subfolders, "_FOLDERS_PER_SWEEP", 4)
    for number in range(31):
        (root / f"epoch_{number}").mkdir()
    seen = catalog("epoch_*/*")
    assert [name for name, why in seen.scan(set()).waiting if "30" in why] == ["."]
    clock.seconds += 300
    seen.scan(set())
    put(root / "epoch_0", 1)
    for _ in range(9):
        clock.seconds += 2
        scan = seen.scan(set())
    assert names(scan) == ["epoch_0/ckpt-1"]
    put(root / "epoch_0", 2)  # it changed last
    clock.seconds += 2
    assert names(seen.scan(set())) == ["epoch_0/ckpt-1", "epoch_0/ckpt-2"]


@pytest.mark.parametrize(
    ("folders", "setting"),
    [
        (["epoch_1", "epoch_2"], '"epoch_*/*"'),
        (["run-7/checkpoints"], '"run-*/checkpoints/*"'),
        (["a[1]", "b"], '"a[[]*]/*,b/*"'),
        (["a", "b", "c", "d"], '"*/*"'),
    ],
)
def test_checkpoints_that_nobody_asked_for(root, new_catalog, folders, setting):
    """Where nothing is found, one sentence says what to set; and that setting finds them."""
    for folder in folders:
        put(root / folder, 1)
    remedy = new_catalog().scan().below
    assert remedy.endswith(f"set checkpoint_glob = {setting}")
    glob = tuple(setting.strip('"').split(","))
    scan = new_catalog(checkpoint_glob=glob).scan()
    assert sorted(names(scan)) == sorted(f"{folder}/ckpt-1" for folder in folders)
    assert scan.below is None


def test_folders_that_look_like_runs_of_their_own(root, new_catalog):
    """Where the same steps occur again, one curve of all would be wrong; epochs in folders of their own are one run."""
    for folder in ("exp1", "exp2"):
        for step in (1, 2):
            put(root / folder, step)
    remedy = new_catalog().scan().below
    assert remedy.startswith("exp1, exp2 look like 2 runs")
    assert f"`sidecar run {root}/exp1`" in remedy
    assert remedy.endswith('if all of it is one run, set checkpoint_glob = "exp*/*"')


@pytest.mark.parametrize(
    "names",
    [
        {"epoch_1": ["ckpt-5"], "epoch_2": ["ckpt-5"]},  # one checkpoint in each
        {"epoch_1": ["netD.pt", "netG.pt"], "epoch_2": ["netD.pt", "netG.pt"]},  # two models in each
        {"part_1": ["ckpt-5", "ckpt-6"], "part_2": ["ckpt-7", "ckpt-8"]},  # the steps go on
    ],
)
def test_folders_of_one_run(names):
    """Nothing in them says that training began again."""
    assert of_several_runs(Path("/runs"), names) is None


def test_a_folder_with_a_similar_name(root):
    """A typo is named before anybody waits for the folder."""
    (root.parent / "ckpts").mkdir(exist_ok=True)
    assert similar_folder(root.parent / "ckpt") == "did you mean ckpts?"
    assert similar_folder(root.parent / "ckpts") == ""
    assert similar_folder(root.parent / "weights") == ""
    assert similar_folder(root / "nowhere" / "ckpts") == ""


def test_sub_folders_are_searched_now_and_then(root, clock):
    """Between two searches, and while one hangs, the result of the last search stays."""
    searches, hangs = [], False

    def calls(key, function):
        searches.append(key)
        if hangs:
            raise HangingError(key, "has not answered")
        return function()

    hint = SubfolderHint(root, None, calls, clock)
    assert hint.remedy(0.0) is None
    put(root / "epoch_1", 1)
    assert (hint.remedy(29.0), len(searches)) == (None, 1)
    assert (remedy := hint.remedy(30.0)) == remedy_below(root)
    hangs = True
    assert (hint.remedy(60.0), len(searches)) == (remedy, 3)


def test_a_slow_search_is_repeated_later(root, clock):
    """100,000 names take a part of a second each time, and nobody waits for the answer."""
    searches = []

    def calls(key, function):
        searches.append(key)
        clock.seconds += 0.2
        return function()

    hint = SubfolderHint(root, None, calls, clock)
    for now in (0.0, 30.0, 199.0, 201.0):
        hint.remedy(now)
    assert len(searches) == 2


def test_a_search_reads_only_names_that_may_be_checkpoints(root, monkeypatch):
    """Other files are not asked for their times."""
    asked = []
    monkeypatch.setattr(files, "_stat", lambda *given, stat=files._stat: asked.append(given[2]) or stat(*given))
    put(root / "epoch_1", 1)
    for number in range(20):
        (root / f"events.out.tfevents.{number}").touch()
    assert remedy_below(root) is not None
    assert not [name for name in asked if name.startswith("events")]


def test_no_remedy_where_there_is_none_to_give(root, new_catalog, clock):
    """Something is found, or there is nothing; a model that is being written is no folder of checkpoints."""
    assert new_catalog().scan().below is None
    put(root / "model" / "variables", 1)
    put(root / "state", 1)
    assert remedy_below(root, "state") is None
    put(root / "epoch_1", 1)
    put(root, 1)
    assert new_catalog().scan().below is None
    (root / "ckpt-1.index").unlink()
    seen = new_catalog()
    shutil.move(root / "epoch_1", root.parent / "epoch_1")
    shutil.rmtree(root / "state")
    assert seen.scan().below is None
    shutil.move(root.parent / "epoch_1", root / "epoch_1")
    clock.seconds += 30
    assert "epoch_*/*" in seen.scan(set()).below


def test_a_path_that_somebody_names(root):
    """It is named by its path from the checkpoint directory; where there is none, what to set is said."""
    put(root / "epoch_1", 5)
    assert inspect_one(root / "epoch_1/ckpt-5", root=root).name == "epoch_1/ckpt-5"
    assert inspect_one(root / "epoch_1/ckpt-5", root=root / "epoch_1").name == "ckpt-5"
    assert inspect_one(root / "epoch_1/ckpt-5", root=root / "other").name == "ckpt-5"
    with pytest.raises(VanishedError, match=r"checkpoint_glob = \"epoch_\*/\*\""):
        inspect_one(root / "ckpt-5", root=root)


def test_events_of_sub_folders(root, catalog):
    """Of a folder that was there before, of one that comes, and of one that comes in such a one."""
    put(root / "run" / "epoch_1", 1)
    changed = threading.Event()
    watch, seen = Watch(root, changed.set, folders=True, depth=2), catalog("run/*/*")

    def until(name):
        deadline = time.monotonic() + BOUND_SECONDS
        while name not in (found := names(seen.scan(watch.changed(), sweep=False))):
            assert changed.wait(deadline - time.monotonic()), f"{name} was not told of, only {found}"
            changed.clear()

    watch.start()
    try:
        watch.follow(seen.scan().folders)
        watch.changed()
        put(root / "run" / "epoch_1", 2)
        until("run/epoch_1/ckpt-2")
        (root / "run" / "epoch_2").mkdir()
        until("run/epoch_1/ckpt-2")
        put(root / "run" / "epoch_2", 3)
        until("run/epoch_2/ckpt-3")
        watch.follow(())
    finally:
        watch.stop()


def test_a_pinned_one_is_known_by_its_whole_name(root, pins, catalog):
    """A folder's name decides: the record in the pin is only what it is cut for."""
    put(root / "epoch_1", 1)
    (found,) = catalog("*/*").scan().found
    pinned = pin(found, pins)
    (pinned.folder / ".checkpoint.json").unlink()
    assert catalog("*/*").scan().pinned().keys() == {found.checkpoint.key}
