"""Tidy saves entry by entry: nothing is removed behind a link, and no error stops the rest."""

import errno
import os
import stat

import pytest
from users import MALLORY, VICTIM, acting_as, is_untouched, only_root, private_folder, shared_folder

from sidecar.retention.saves.cleanup import ArtifactCleanup
from sidecar.retention.saves.retention import CleanupRequest, CleanupResult

PLAN = "evaluations/ckpt-5@0/plan-1"


@pytest.fixture
def root(tmp_path):
    """A state directory with the saves of a plan."""
    root = tmp_path / "run"
    saved(root)
    return root


def saved(root, plan=PLAN, worker="worker-0-of-1"):
    folder = root / plan / worker
    (folder / "predictions" / "test").mkdir(parents=True)
    (folder / "predictions" / "test" / "y.npy").write_bytes(b"y" * 10)
    (folder / "weights.index").write_bytes(b"w" * 5)
    (folder / "states.json").write_bytes(b"{}")
    return folder


def below(root):
    return sorted(path.name for path in (root / PLAN).rglob("*") if path.is_file())


@pytest.mark.parametrize(
    "tidying", [CleanupRequest(thin=(PLAN,)), CleanupRequest(drop=(PLAN,)), CleanupRequest(measure=(PLAN,))]
)
@pytest.mark.parametrize("link", ["evaluations", "evaluations/ckpt-5@0", PLAN, f"{PLAN}/worker-0-of-1"])
def test_a_link_is_followed_nowhere_and_reported(root, tmp_path, link, tidying):
    """Somebody moved a folder to another disk, or wants this daemon to delete what it points to."""
    at, away = root / link, tmp_path / "other disk"
    at.rename(away)
    at.symlink_to(away)
    tidied = ArtifactCleanup(root).tidy(tidying)
    assert sorted(path.name for path in away.rglob("*") if path.is_file()) == ["states.json", "weights.index", "y.npy"]
    if tidying.drop and link.endswith("of-1"):  # all of the plan goes, and with it the link itself
        assert (tidied, at.is_symlink()) == (CleanupResult(), False)
        return
    assert at.is_symlink()
    (sentence,) = (*tidied.failed.values(), *tidied.unmeasured)
    assert f"{root / PLAN}: " in sentence
    assert f"links are not followed here: '{at}'" in sentence


@pytest.mark.parametrize("odd", ["a file", "a FIFO"])
def test_what_is_no_folder_of_a_worker_is_left_alone_and_reported(root, odd):
    """The others are tidied all the same."""
    at = root / PLAN / "worker-1-of-2"
    at.write_bytes(b"") if odd == "a file" else os.mkfifo(at)
    tidied = ArtifactCleanup(root).tidy(CleanupRequest(thin=(PLAN,), measure=(PLAN,)))
    assert "worker-1-of-2" in tidied.failed[PLAN]
    assert at.exists()
    assert below(root)[0] == "states.json"
    assert tidied.sizes == {PLAN: 2}


def test_one_file_that_cannot_be_asked_about_stops_nothing(root, system_calls):
    """A disk with a bad block says so of one file; the others are measured and removed."""
    saved(root, "evaluations/ckpt-6@0/plan-2")
    system_calls.refuse("stat", errno.EIO, lambda path, **_: path == "weights.index")
    both = ("evaluations/ckpt-6@0/plan-2", PLAN)
    tidied = ArtifactCleanup(root).tidy(CleanupRequest(drop=both[:1], measure=both))
    assert tidied.sizes == {PLAN: 12, both[0]: 0}
    assert [f"{root / PLAN}/worker-0-of-1/weights.index" in each for each in tidied.unmeasured] == [True]
    assert tidied.failed == {}
    assert not (root / both[0]).exists()


@pytest.mark.parametrize("path", ["evaluations/../../x/plan-1", "/etc/plan-1", "evaluations//plan-1", "..", "a\0/b"])
def test_a_record_that_leaves_the_state_directory_is_reported(root, path):
    """Plans are read from files that others write."""
    tidied = ArtifactCleanup(root).tidy(CleanupRequest((path,), (path,), (path,)))
    assert (list(tidied.failed), tidied.sizes, len(tidied.unmeasured)) == ([path], {path: 0}, 1)


def test_what_is_gone_is_tidied(root):
    """Another node does the same."""
    gone = ("evaluations/ckpt-5@0/plan-7", "evaluations/ckpt-6@0/plan-8")
    assert ArtifactCleanup(root).tidy(CleanupRequest(gone, gone, gone)) == CleanupResult(sizes=dict.fromkeys(gone, 0))
    assert ArtifactCleanup(root / "nowhere").tidy(CleanupRequest((PLAN,), (PLAN,))) == CleanupResult()


@only_root
@pytest.mark.parametrize("owns_only_the_parent", [False, True])
def test_nobody_makes_this_daemon_remove_what_is_its_users_own(owns_only_the_parent):
    """A member of the group swaps a worker's folder, or all of the state directory, for one with a link in it."""
    with shared_folder() as shared:
        private, state = private_folder(shared), shared / ".sidecar"
        umask = 0o022 if owns_only_the_parent else 0o002
        if owns_only_the_parent:
            os.chown(shared, MALLORY, -1)
        with acting_as(VICTIM, umask):
            saved(state / "run", worker="worker-0-of-2")
            saved(state / "run", worker="worker-1-of-2")
        with acting_as(MALLORY, umask):
            if owns_only_the_parent:
                with pytest.raises(PermissionError):
                    (state / "run" / "x").touch()
                state.rename(shared / "gone")
                saved(state / "run", worker="worker-1-of-2")
            else:
                (state / "run" / PLAN / "worker-0-of-2").rename(state / "run" / PLAN / "old")
            (state / "run" / PLAN / "worker-0-of-2").symlink_to(private)
            for path in state.rglob("*"):
                if path.is_dir() and not path.is_symlink() and path.stat().st_uid == MALLORY:
                    path.chmod(0o2777)
        for tidying in (CleanupRequest(thin=(PLAN,)), CleanupRequest(measure=(PLAN,)), CleanupRequest(drop=(PLAN,))):
            with acting_as(VICTIM):
                tidied = ArtifactCleanup(state / "run").tidy(tidying)
            assert is_untouched(private)
            if tidying.thin:
                assert "links are not followed" in tidied.failed[PLAN]
                assert [path.name for path in (state / "run" / PLAN / "worker-1-of-2").iterdir()] == ["states.json"]
        assert stat.S_IMODE(private.stat().st_mode) & 0o077 == 0


@only_root
def test_saves_of_other_users_go_where_the_group_may_write_and_stay_elsewhere():
    """Workers of several users save into one run; what must not be removed is named."""
    with shared_folder() as shared:
        root = shared / "run"
        with acting_as(VICTIM):
            (root / PLAN).mkdir(parents=True)
        with acting_as(MALLORY):
            saved(root, worker="worker-0-of-2")
        with acting_as(MALLORY, 0o022):
            saved(root, worker="worker-1-of-2")
        with acting_as(VICTIM):
            tidied = ArtifactCleanup(root).tidy(CleanupRequest(thin=(PLAN,)))
        assert "Permission denied" in tidied.failed[PLAN]
        assert below(root) == ["states.json", "states.json", "weights.index", "y.npy"]
