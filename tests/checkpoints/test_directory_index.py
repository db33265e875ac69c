"""Show what scans cost, counted in requests to storage, and what they notice although they ask for so little."""

import collections
import contextlib
import os
import shutil
from types import SimpleNamespace

import pytest
from fakes import save

from sidecar.checkpoints import directory_index as folder_module
from sidecar.checkpoints.checkpoint_directory import CheckpointDirectory
from sidecar.checkpoints.directory_index import FileComparison
from sidecar.checkpoints.files import list_files
from sidecar.system.bounded_calls import HangingError

MANY = 600  # more files than a sweep compares at once


def names(scan) -> list[str]:
    return [found.checkpoint.name for found in scan.found]


def put_many(root, count) -> None:
    """Whole checkpoints, two files each, and as many files of nobody."""
    save(root, 0)
    index, data = ((root / f"ckpt-0.{ending}").read_bytes() for ending in ("index", "data-00000-of-00001"))
    for number in range(count // 2):
        (root / f"old-{number}.index").write_bytes(index)
        (root / f"old-{number}.data-00000-of-00001").write_bytes(data)
        (root / f"events.out.tfevents.{number}").touch()


@pytest.fixture
def asked(system_calls):
    """How often storage was asked for what: files opened, their attributes, folders listed."""
    counts = collections.Counter()
    for name in ("stat", "lstat", "open", "scandir"):
        system_calls.observe(name, lambda *_, name=name, **__: counts.update([name]))
    return counts


@pytest.fixture
def settled(root, pins, new_catalog, clock):
    """A catalog that has seen all of many files for a while, and has come to rest."""

    def settle(count, **settings):
        put_many(root, count)
        pins.mkdir(parents=True)
        catalog = new_catalog(**settings)
        for _ in range(5):
            scan = catalog.scan()
            clock.seconds += 2
        assert len(scan.found) == count // 2 + 1
        return catalog

    return settle


@pytest.mark.seconds
def test_an_idle_look_asks_the_same_beside_many_files_as_beside_more(settled, root, asked, clock):
    """Some files are compared in their turn; nothing is listed, and nothing opened but folders and state file."""
    costs = []
    for count in (MANY, 4 * MANY):
        shutil.rmtree(root)
        root.mkdir()
        catalog = settled(count)
        asked.clear()
        catalog.scan()
        costs.append(dict(asked))
        clock.seconds += 2
    assert costs[0] == costs[1]
    assert costs[0]["scandir"] == 1, "of the pins"
    assert costs[0]["open"] == 5, (
        "the checkpoints' folder, once more for comparing, the run's, that of the pins; the state file"
    )
    assert costs[0]["stat"] < 300


def test_a_look_that_events_wake_asks_for_what_they_told_of(settled, root, asked):
    """A new checkpoint beside many costs what it costs alone."""
    catalog = settled(MANY)
    save(root, 7, keep=[0])
    asked.clear()
    scan = catalog.scan({"ckpt-7.index", "ckpt-7.data-00000-of-00001", "checkpoint", "gone", ""}, sweep=False)
    assert names(scan)[-1] == "ckpt-7"
    assert asked["scandir"] == 1, "of the pins"
    assert asked["stat"] < 20
    assert asked["open"] < 10


def test_nothing_new_is_the_same_look(settled, clock):
    """A directory in which nothing changed is not parsed again."""
    catalog = settled(MANY)
    before = catalog.scan()
    clock.seconds += 2
    after = catalog.scan()
    assert after.by_key is before.by_key
    assert after == before


def test_a_new_checkpoint_is_seen_by_the_next_sweep(settled, root):
    """Without events: the directory's times changed."""
    catalog = settled(MANY)
    save(root, 7, keep=[0])
    assert names(catalog.scan())[-1] == "ckpt-7"


def test_what_changes_within_the_coarseness_of_times_is_seen(settled, root, clock, monkeypatch):
    """A second change may leave the same times, so a directory that just changed is listed again."""
    catalog = settled(MANY)
    (root / "one").touch()
    catalog.scan()
    times = root.stat()
    save(root, 7, keep=[0])
    real = os.fstat

    def coarse(descriptor):
        found = real(descriptor)
        if found.st_ino != times.st_ino:
            return found
        return times

    monkeypatch.setattr(folder_module.os, "fstat", coarse)
    clock.seconds += 2
    assert names(catalog.scan())[-1] == "ckpt-7"


def test_one_replaced_by_a_rename_is_seen_at_once(settled, root):
    """Under its old name, between many: the inode is another."""
    catalog = settled(MANY)
    for ending in ("index", "data-00000-of-00001"):
        (root / "new").write_bytes((root / f"old-7.{ending}").read_bytes())
        (root / "new").rename(root / f"old-7.{ending}")
    assert "old-7" not in names(catalog.scan()), "it settles anew"
    assert [name for name, _ in catalog.scan().waiting] == ["old-7"]


def test_one_rewritten_in_place_is_seen_within_a_full_sweep(settled, root, clock):
    """Neither the directory nor a listing tells of it: it has its turn."""
    catalog = settled(MANY, full_sweep_seconds=60.0)
    index = root / "old-7.index"
    index.write_bytes(index.read_bytes()[:-1])
    waited = 0
    while "old-7" in names(catalog.scan()):
        clock.seconds += 2
        waited += 2
        assert waited <= 60
    assert waited > 0, "this test is about files that have to wait for their turn"


def test_one_rewritten_in_place_is_seen_at_once_by_its_event(settled, root):
    """However many lie there."""
    catalog = settled(MANY)
    index = root / "old-7.index"
    index.write_bytes(index.read_bytes()[:-1])
    assert "old-7" not in names(catalog.scan({"old-7.index"}, sweep=False))


@pytest.mark.parametrize("hints", [None, frozenset({"old-7.index", "old-7.data-00000-of-00001"})])
def test_one_deleted_is_gone(settled, root, hints):
    """A deleted checkpoint is missing in the next scan, and is found again when its files return."""
    catalog = settled(MANY)
    files = {path.name: path.read_bytes() for path in root.glob("old-7.*")}
    for name in files:
        (root / name).unlink()
    assert "old-7" not in names(catalog.scan(hints))
    for name, content in files.items():
        (root / name).write_bytes(content)
    assert [name for name, _ in catalog.scan(hints).waiting] == ["old-7"]


def test_events_that_were_lost_lose_nothing(settled, root, clock):
    """The kernel drops them when there are too many: a sweep finds out."""
    catalog = settled(MANY)
    save(root, 7, keep=[0])
    assert "ckpt-7" not in names(catalog.scan(frozenset(), sweep=False))
    clock.seconds += 2
    assert "ckpt-7" in names(catalog.scan(frozenset(), sweep=True))


def test_what_events_tell_of_waits_for_no_listing_that_can_wait(settled, root, asked, clock, system_calls):
    """Where listing takes long it is left to a scan that nothing woke, but not for ever."""
    catalog = settled(MANY)

    def slow(path):
        asked["scandir"] += 1
        clock.seconds += 0.1 * isinstance(path, int)

    system_calls.observe("scandir", slow)

    def listings(step, hints, after):
        save(root, step, keep=range(step))
        clock.seconds += after
        asked.clear()
        catalog.scan({f"ckpt-{step}.index"} if hints else set())
        return asked["scandir"] - 1  # of the pins

    assert listings(1, hints=False, after=0) == 1
    assert listings(2, hints=True, after=150) == 0
    assert listings(3, hints=False, after=0) == 1
    assert listings(4, hints=False, after=50) == 0, "the thousandth part of the time, at most"
    assert listings(5, hints=True, after=200) == 1


def test_another_directory_under_the_same_name(settled, root, tmp_path):
    """With other checkpoints under the same names, and no event that tells of it."""
    catalog = settled(MANY)
    (tmp_path / "other").mkdir()
    save(tmp_path / "other", 0)
    root.rename(tmp_path / "away")
    (tmp_path / "other").rename(root)
    assert names(catalog.scan(frozenset(), sweep=False)) == ["ckpt-0"]


def test_a_file_where_a_folder_was(root, new_catalog):
    """And the other way round: the same name is looked at as what it is."""
    catalog = new_catalog()
    (root / "x.keras").mkdir()
    assert catalog.scan().waiting == ()
    (root / "x.keras").rmdir()
    (root / "x.keras").write_bytes(b"torn")
    assert [name for name, _ in catalog.scan().waiting] == ["x.keras"]
    (root / "x.keras").unlink()
    (root / "x.keras").mkdir()
    assert catalog.scan().waiting == ()


def test_storage_that_fails_in_between_loses_nothing(settled, root, monkeypatch):
    """Files that an event named while storage failed are scanned as soon as storage works again."""
    catalog = settled(MANY)
    save(root, 7, keep=[0])

    def fail(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(CheckpointDirectory, "_update", fail)
    with pytest.raises(Exception, match="Input/output error"):
        catalog.scan({"ckpt-7.index", "ckpt-7.data-00000-of-00001"}, sweep=False)
    monkeypatch.undo()
    assert "ckpt-7" in names(catalog.scan(frozenset(), sweep=False))


class HangingCalls:
    """Calls that hang if they concern a file of `hanging`."""

    def __init__(self):
        self.hanging, self.waiting = False, set()

    def __call__(self, key, function):
        """Make the call. One that hangs has got as far as its first group."""
        if self.hanging and (key in self.waiting or not self.waiting):
            self.waiting.add(key)
            with contextlib.suppress(StopIteration):
                function()
            raise HangingError(key, "has not answered")
        self.waiting.discard(key)
        return function()


@pytest.fixture
def calls():
    return HangingCalls()


@pytest.fixture
def comparison(root, calls):
    """The comparison of the files in `root`."""

    @contextlib.contextmanager
    def opened():
        descriptor = os.open(root, os.O_RDONLY)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    return FileComparison(opened, "", calls)


@pytest.fixture
def read(root):
    """Two groups of one file each, as they were read."""
    for name in ("a", "b"):
        (root / name).write_text(name)
    files = list_files(root).files
    return {
        name: [SimpleNamespace(is_over=True, given_up=False, format=SimpleNamespace(endings=()), files=(files[name],))]
        for name in ("a", "b")
    }


def test_files_that_stay_are_not_read_again(comparison, read):
    """A file is the same as long as its size, its times and its inode are."""
    assert comparison.changed(read) == set()


@pytest.mark.parametrize("change", [lambda path: path.write_text("longer"), lambda path: path.unlink()])
def test_a_file_that_changed_or_went_is_read_again(root, comparison, read, change):
    """No file event is needed to notice that."""
    change(root / "a")
    assert comparison.changed(read) == {"a"}


def test_what_is_not_finished_is_read_in_any_case(comparison, read):
    """Nothing was read of a group, or one of its candidates still waits."""
    read["a"][0].is_over = False
    assert comparison.changed({**read, "c": None}) == {"a", "c"}


def test_a_group_whose_comparison_hangs_is_left_out_until_it_ends(root, comparison, calls, read):
    """The other groups are compared meanwhile."""
    calls.hanging = True
    comparison.changed(read)  # the last group that it came to is taken for the one that hangs
    for name in ("a", "b"):
        (root / name).write_text("longer")
    assert comparison.changed(read) == {"a"}
    calls.hanging = False
    assert comparison.changed(read) == {"a", "b"}
