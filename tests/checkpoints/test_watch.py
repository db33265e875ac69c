"""Wait for file events, and notice where there are none."""

import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from watchdog.observers import Observer

from sidecar.checkpoints.watch import Watch

BOUND_SECONDS = 240


@pytest.fixture
def woken():
    return threading.Event()


class Observers(list):
    """The observers that a watch has made, in their order."""

    def new(self):
        """Make one more."""
        self.append(Observer())
        return self[-1]


@pytest.fixture
def observers():
    return Observers()


@pytest.fixture
def watch(root, woken, observers):
    watch = Watch(root, woken.set, observer=observers.new)
    yield watch
    watch.stop()


def wait_for(condition) -> None:
    deadline = time.monotonic() + BOUND_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not become true"
        time.sleep(0.01)


def wakes_for_a_rename_into(root, woken) -> None:
    woken.clear()
    (root.parent / "new").write_text("x")
    (root.parent / "new").rename(root / "checkpoint")
    assert woken.wait(BOUND_SECONDS)


def test_a_file_wakes(watch, root, woken):
    """Created, renamed into place, deleted: each wakes within a bound."""
    watch.start()
    assert watch.problem is None
    wakes_for_a_rename_into(root, woken)
    woken.clear()
    (root / "checkpoint").unlink()
    assert woken.wait(BOUND_SECONDS)


def test_reading_does_not_wake(watch, root, woken):
    """This program reads in the directory itself: the kernel is not even asked for such events, but for all changes."""
    (root / "checkpoint").write_text("x")
    watch.start()
    entries = [each.read_text() for each in Path("/proc/self/fdinfo").iterdir() if each.exists()]
    watched = re.compile(rf" ino:{root.stat().st_ino:x} .*? mask:(\w+)")
    (mask,) = (int(found[1], 16) for each in entries for found in watched.finditer(each))
    modify, attrib, close_write, close_nowrite, open_, moved, create, delete = 2, 4, 8, 0x10, 0x20, 0xC0, 0x100, 0x200
    assert not mask & (open_ | close_nowrite)
    assert mask & (wanted := modify | attrib | close_write | moved | create | delete) == wanted
    list(root.iterdir())
    (root / "checkpoint").read_text()
    assert not woken.is_set()
    wakes_for_a_rename_into(root, woken)


def test_a_missing_directory(watch, root, woken):
    """It is watched from the first sweep that finds it."""
    root.rmdir()
    watch.start()
    assert "No such file" in watch.problem
    root.mkdir()
    watch.ensure()
    assert watch.problem is None
    wakes_for_a_rename_into(root, woken)


def test_the_directory_vanishes_and_comes_back(watch, root, woken):
    """Deleted and made anew under the same name, even with the same inode: the new one is watched."""
    watch.start()
    root.rmdir()
    watch.ensure()
    assert watch.problem is not None
    root.mkdir()
    watch.ensure()
    wakes_for_a_rename_into(root, woken)


def test_the_directory_is_replaced_between_sweeps(watch, root, woken):
    """The watch follows the folder that was renamed away, so it must be set again on the name."""
    watch.start()
    root.rename(root.with_name("old"))
    root.mkdir()
    watch.ensure()
    wakes_for_a_rename_into(root, woken)


def test_deleted_and_made_anew_between_sweeps(watch, root, woken, observers):
    """A sweep that sees only the new directory notices that the watch of the old one has ended."""
    watch.start()
    root.rmdir()
    root.mkdir()
    wait_for(lambda: watch.ensure() or len(observers) > 1)
    wakes_for_a_rename_into(root, woken)


def test_threads_end(watch):
    """The threads are daemons, and none is left after stop; stopping twice is no error."""
    before = set(threading.enumerate())
    watch.start()
    started = set(threading.enumerate()) - before
    assert started
    assert all(thread.daemon for thread in started)
    watch.stop()
    wait_for(lambda: not any(thread.is_alive() for thread in started))
    watch.stop()
    assert watch.problem == "stopped"


def test_ensure_keeps_a_good_watch(watch, observers):
    """Sweeps do not start a thread each."""
    watch.start()
    watch.ensure()
    assert len(observers) == 1


def test_without_inotify(root, woken):
    """A kernel limit is a line of text; later sweeps try again."""

    def refused():
        raise OSError(24, "inotify instance limit reached")

    watch = Watch(root, woken.set, observer=refused)
    watch.start()
    assert "only sweeps" in watch.problem
    assert "inotify instance limit reached" in watch.problem
    watch.ensure()
    watch.stop()


def test_a_limit_met_while_scheduling(root, woken):
    """A half-started observer is ended, its threads too."""
    before = set(threading.enumerate())

    def limited():
        observer = Observer()
        observer.schedule = refuse
        return observer

    def refuse(*_, **__):
        raise OSError(28, "inotify watch limit reached")

    watch = Watch(root, woken.set, observer=limited)
    watch.start()
    assert "inotify watch limit reached" in watch.problem
    wait_for(lambda: set(threading.enumerate()) <= before)


def test_light():
    """The catalog needs no watchdog, and nothing here needs a framework or numpy."""
    script = (
        "import sys, sidecar.checkpoints.catalog, sidecar.retention.pins.pin\n"
        "assert 'watchdog' not in sys.modules\n"
        "import sidecar.checkpoints.watch\n"
        "assert not {'numpy', 'tensorflow', 'keras', 'torch'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=240)


def test_temporary_names_of_the_journal_wake_nobody(root, woken):
    """A record is written under one, fsynced, and linked to its own: one wake-up is enough."""
    watch = Watch(root, woken.set, unless=".tmp-")
    watch.start()
    try:
        (root / ".tmp-1").write_text("x")
        assert not woken.wait(0.5)
        (root / "000000000001.json").hardlink_to(root / ".tmp-1")
        assert woken.wait(BOUND_SECONDS)
    finally:
        watch.stop()


def test_watches_beside_begin_and_end_with_it(root, woken):
    """Their folders may come later; that they are not there yet is no problem to tell of."""
    heard = threading.Event()
    plans = root.parent / "plans"
    both = Watch(root, woken.set, also=[Watch(plans, heard.set)])
    both.start()
    assert both.problem is None
    plans.mkdir()
    both.ensure()
    (plans / "1").touch()
    assert heard.wait(BOUND_SECONDS)
    assert not woken.is_set()
    threads = threading.active_count()
    both.stop()
    wait_for(lambda: threading.active_count() <= threads - 4)


def test_events_say_which_names_changed(watch, root, woken):
    """Each once; before anybody asked it is not known what was missed."""
    watch.start()
    assert watch.changed() is None
    (root / "a").write_text("x")
    (root.parent / "b").write_text("x")
    (root.parent / "b").rename(root / "b")
    (root / "a").rename(root / "c")
    told = set()
    wait_for(lambda: told.update(watch.changed()) or {"a", "b", "c"} <= told)
    assert told == {"a", "b", "c"}
    assert watch.changed() == frozenset()
    assert woken.is_set()


def test_after_a_break_events_say_nothing(watch, root):
    """Changes that happened while the directory was not watched are unknown, so a full scan has to find them."""
    watch.start()
    watch.changed()
    root.rename(root.with_name("old"))
    root.mkdir()
    watch.ensure()
    assert watch.changed() is None
    assert watch.changed() == frozenset()
    root.rmdir()
    watch.ensure()
    assert watch.changed() is None
    assert watch.changed() is None


def test_too_many_names_are_as_good_as_none(root):
    """They must not fill the memory of a daemon whose storage hangs."""
    wakes = []
    watch = Watch(root, lambda: wakes.append(1), most_names=3)
    watch.start()
    watch.changed()
    for number in range(20):
        (root / str(number)).touch()
    wait_for(lambda: len(wakes) >= 20)  # four events at most are of one name
    assert watch.changed() is None
    watch.stop()


def test_a_directory_whose_events_do_not_tell_all_is_not_watched(root, woken):
    """It is asked again only if there is another directory under the name."""
    asked = []

    def why_not(path):
        asked.append(path)
        return "on nfs4: a sweep scans"

    watch = Watch(root, woken.set, why_not=why_not)
    watch.start()
    watch.ensure()
    assert watch.problem == "on nfs4: a sweep scans"
    assert watch.changed() is None
    assert asked == [root]
    (root / "a").touch()
    assert not woken.wait(0.3)


@pytest.mark.parametrize("rename", [False, True])
def test_the_marker_inside_a_new_folder_wakes(root, woken, observers, rename):
    """A SavedModel is written into a folder that just came, its marker last; the folder's name is told."""
    watch = Watch(root, woken.set, folders=True, observer=observers.new)
    watch.start()
    watch.changed()
    try:
        folder = root / "model"
        if rename:
            (root.parent / "made").mkdir()
            (root.parent / "made").rename(folder)
        else:
            folder.mkdir()
        assert woken.wait(BOUND_SECONDS)
        wait_for(lambda: len(observers[-1].emitters) == 2)
        watch.changed()
        woken.clear()
        (folder / "saved_model.pb").write_bytes(b"x")
        assert woken.wait(BOUND_SECONDS)
        assert watch.changed() == {"model"}
    finally:
        watch.stop()


def test_only_the_newest_folders_are_watched(root, woken, observers):
    """And one that is deleted ends no watch but its own."""
    watch = Watch(root, woken.set, folders=True, observer=observers.new)
    watch.start()
    try:
        for number in range(7):
            (root / f"model-{number}").mkdir()
        (root / "x_temp").mkdir()
        wait_for(lambda: any(each.watch.path.endswith("model-6") for each in observers[-1].emitters))
        (observer,) = observers
        assert len(observer.emitters) <= 5
        (root / "model-6").rmdir()
        wait_for(lambda: not all(each.is_alive() for each in observer.emitters))
        watch.ensure()
        assert observers == [observer]
        wakes_for_a_rename_into(root, woken)
    finally:
        watch.stop()
