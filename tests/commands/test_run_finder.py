"""Find the directories of runs, and prepare runs, though some storage hangs."""

import threading

import pytest
from fakes import FakeClock

from sidecar.commands.run_finder import Delayed, Found, Prepared, RunFinder
from sidecar.errors import SettingsError
from sidecar.settings import load_shared


@pytest.fixture
def gate():
    """Return what a hanging call waits for; opened at the end, so that no thread is left."""
    opened = threading.Event()
    yield opened
    opened.set()


@pytest.fixture
def posted():
    """Hold the reports."""
    return []


@pytest.fixture
def finder(tmp_path, gate, posted):
    """A finder of three runs, of which one hangs and one is a bug."""
    for name in ("good", "hangs", "bug"):
        (tmp_path / name).mkdir()
    (tmp_path / "wrong").mkdir()
    (tmp_path / "wrong" / "sidecar.toml").write_text("replicas = 0")

    def make(settings, _):
        if settings.run == "hangs":
            gate.wait(60)
        if settings.run == "bug":
            raise RuntimeError("a bug")
        return settings.run

    shared = load_shared({}, environ={"SIDECAR_RUNS": f"{tmp_path}/*"})
    return RunFinder(shared=shared, make=make, post=posted.append, clock=FakeClock())


def test_one_run_that_hangs_or_cannot_be_made_holds_no_other_up(finder, gate, posted):
    """Each has its own answer; the one that hangs has it when its storage answers."""
    finder.scan()
    (found,) = posted
    assert isinstance(found, Found)
    places = {place.name: place for place in found.places}
    assert places.keys() == {"good", "hangs", "bug", "wrong"}
    for place in found.places:
        finder.prepare(place)
    finder.scan()
    reports = {each.place.name: each for each in posted[1:]}
    assert reports["good"] == Prepared(places["good"], "good")
    assert isinstance(reports["hangs"], Delayed)
    assert "a bug" in str(reports["bug"].run)
    assert isinstance(reports["wrong"].run, SettingsError)

    gate.set()
    while posted[-1].place.name != "hangs" or isinstance(posted[-1], Delayed):
        finder.scan()
    assert posted[-1] == Prepared(places["hangs"], "hangs")


def test_the_directories_are_listed_again_after_an_interval(finder, posted):
    """Not at each look."""
    for _ in range(3):
        finder.scan()
    assert len(posted) == 1
    finder.clock.seconds += 10
    finder.scan()
    assert len(posted) == 2
