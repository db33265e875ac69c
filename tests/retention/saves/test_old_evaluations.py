"""The folders of old evaluations go whole, a few at a time; nothing is removed behind a link, and no error stops it."""

import shutil

import pytest
from fakes import FakeClock

from sidecar.protocol.records import FINISHED_SETS
from sidecar.retention.saves.cleanup import ArtifactCleanup
from sidecar.retention.saves.old_evaluations import OldEvaluations
from sidecar.retention.saves.retention import CleanupRequest, RetainedStates

HOUR = 3600.0


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def root(tmp_path):
    """A state directory with the saves of plans 1 to 50, each of its own checkpoint."""
    root = tmp_path / "run"
    for number in range(1, 51):
        saved(root, number)
    return root


def saved(root, number, name=None):
    checkpoint = root / "evaluations" / (name or f"ckpt-{number}@0")
    for rank in range(2):
        worker = checkpoint / f"plan-{number}" / f"worker-{rank}-of-2"
        worker.mkdir(parents=True)
        (worker / "states.json").write_bytes(b"{}")
    (checkpoint / "result.json").write_bytes(b"{}")
    return checkpoint


def left(root):
    return sorted(int(path.name.rpartition("-")[2]) for path in root.glob("evaluations/*/plan-*"))


def retained(before, *checkpoints, every=None):
    return RetainedStates(before, frozenset(checkpoints), every)


def remove_all(old, states, calls=10):
    """Call it as a daemon does, again and again; return how many were removed, and what was said."""
    found = [old.remove(states) for _ in range(calls)]
    return sum(removed for removed, _ in found), [why for _, why in found if why is not None]


def test_finished_sets_of_old_checkpoints_go(root, clock):
    """Those of a checkpoint that was given up; a checkpoint that is retained keeps what it has."""
    for name in ("ckpt-1@0", "ckpt-50@0"):
        (root / "evaluations" / name / FINISHED_SETS / "test" / "worker-0-of-1").mkdir(parents=True)
    assert remove_all(OldEvaluations(root, clock.now), retained(40, "ckpt-50@0")) == (39, [])
    assert [path.parent.name for path in root.glob(f"evaluations/*/{FINISHED_SETS}")] == ["ckpt-50@0"]


def test_the_newest_the_best_and_every_kth_one_stay(root, clock):
    """All else goes with its folder and its view: not one inode of it is left."""
    states = retained(40, "ckpt-7@0", *(f"ckpt-{number}@0" for number in range(40, 51)), every=10)
    assert remove_all(OldEvaluations(root, clock.now), states) == (39 - 1 - 3, [])
    assert left(root) == [7, 10, 20, 30, *range(40, 51)]
    assert len(list((root / "evaluations").iterdir())) == 15


def test_a_call_visits_a_few_and_all_are_listed_once_an_hour(root, clock):
    """Heartbeats wait for nothing; what becomes old is removed after the next listing."""
    old = OldEvaluations(root, clock.now)
    assert old.remove(retained(51)) == (0, None)
    assert len(left(root)) == 30
    assert remove_all(old, retained(51)) == (50, [])
    saved(root, 51)
    assert remove_all(old, retained(51)) == (0, [])
    clock.seconds += HOUR
    assert remove_all(old, retained(52)) == (1, [])
    assert left(root) == []


def test_a_removal_that_was_killed_is_finished_by_any_node(root, clock):
    """Half of a plan, a view without a plan, and an empty folder are left; two nodes remove at the same time."""
    (root / "evaluations/ckpt-1@0/plan-1/worker-0-of-2/states.json").unlink()
    for number, names in ((2, ("plan-2",)), (3, ("plan-3", "result.json"))):
        for name in names:
            path = root / f"evaluations/ckpt-{number}@0/{name}"
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    one, other = OldEvaluations(root, clock.now), OldEvaluations(root, clock.now)
    for _ in range(10):
        assert [one.remove(retained(51))[1], other.remove(retained(51))[1]] == [None, None]
    assert left(root) == []
    assert list((root / "evaluations").iterdir()) == []


def test_what_people_saved_and_another_attempt_stay(root, clock):
    """`sidecar eval` saves beside the plans, and a checkpoint that was requeued has a newer plan."""
    (root / "evaluations/ckpt-1@0/eval-20260101").mkdir()
    saved(root, 60, "ckpt-2@0")
    (root / "evaluations/ckpt-3@0/plan-0x").mkdir()
    assert remove_all(OldEvaluations(root, clock.now), retained(50)) == (49, [])
    names = {path.name: sorted(each.name for each in path.iterdir()) for path in (root / "evaluations").iterdir()}
    assert names == {
        "ckpt-1@0": ["eval-20260101", "result.json"],
        "ckpt-2@0": ["plan-60", "result.json"],
        "ckpt-3@0": ["plan-0x", "result.json"],
        "ckpt-50@0": ["plan-50", "result.json"],
    }


@pytest.mark.parametrize("link", ["evaluations", "evaluations/ckpt-5@0", "evaluations/ckpt-5@0/plan-5"])
def test_a_link_is_followed_nowhere_and_reported(root, tmp_path, clock, link):
    """Somebody moved a folder to another disk, or wants this daemon to delete what it points to."""
    at, away = root / link, tmp_path / "other disk"
    at.rename(away)
    at.symlink_to(away)
    before = len(list(away.rglob("*")))
    saves = ArtifactCleanup(root, old=OldEvaluations(root, clock.now))
    found = [saves.tidy(CleanupRequest(retained=retained(51))) for _ in range(10)]
    assert any("links are not followed here" in (each.old_failed or "") for each in found)
    assert len(list(away.rglob("*"))) == before
    assert at.is_symlink()
    if link != "evaluations":
        assert len(list((root / "evaluations").iterdir())) == 1
