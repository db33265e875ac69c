"""To which checkpoint directory a run belongs, and what its absence means, on real folders."""

import json
import os
import re
import shutil
from types import SimpleNamespace

import pytest
from catalogs import make_catalog
from fakes import FakeClock

from sidecar.checkpoints.formats import file_group
from sidecar.coordination.run import Run
from sidecar.coordination.state_directory import StateDirectory
from sidecar.errors import RunReplacedError, SettingsError, StateUnavailableError
from sidecar.system.bucket_folder import BucketFolder, BucketState

RUN = Run(run="r1", nonce="n")


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def inside(tmp_path, clock):
    """The usual place: the state lies below the checkpoints."""
    place = StateDirectory(tmp_path / "ckpts", tmp_path / "ckpts" / ".sidecar" / "ckpts", 10.0, clock)
    place.run_dir.mkdir(parents=True)
    place.join(RUN)
    return place


@pytest.fixture
def elsewhere(tmp_path, clock):
    place = StateDirectory(tmp_path / "ckpts", tmp_path / "state" / "ckpts", 10.0, clock)
    for folder in (place.checkpoint_dir, place.run_dir):
        folder.mkdir(parents=True)
    return place


def test_a_state_inside_leaves_no_marker(inside):
    """It cannot be away while the checkpoints are there, whatever its path is on another node."""
    assert sorted(path.name for path in inside.checkpoint_dir.iterdir()) == [".sidecar"]
    inside.check_beginning()
    inside.check(Run(run="r2", nonce="n", created_at=None, checkpoint_dir="/elsewhere"))


def test_a_state_elsewhere_leaves_a_marker_once(elsewhere):
    """Whole, and not written again by the next daemon."""
    elsewhere.join(RUN)
    before = elsewhere.marker.stat().st_ino
    assert json.loads(elsewhere.marker.read_text()) == {
        "run": "r1",
        "state_dir": str(elsewhere.run_dir.parent),
        "schema": 1,
    }
    elsewhere.join(RUN)
    assert elsewhere.marker.stat().st_ino == before
    assert [path.name for path in elsewhere.checkpoint_dir.iterdir()] == [elsewhere.marker.name]
    with pytest.raises(StateUnavailableError, match=rf"{elsewhere.marker}.*{elsewhere.run_dir.parent}\b"):
        elsewhere.check_beginning()


def test_another_state_directory_is_named_if_it_is_there(elsewhere, tmp_path):
    """With the option to give; one that is not there has to be mounted."""
    elsewhere.join(RUN)
    wrong = StateDirectory(elsewhere.checkpoint_dir, tmp_path / "wrong" / "ckpts")
    with pytest.raises(StateUnavailableError, match="Mount it again"):
        wrong.check_beginning()
    (elsewhere.run_dir / "run.json").write_text("{}")
    option = f"ive --state-dir {elsewhere.run_dir.parent}"
    with pytest.raises(StateUnavailableError, match=re.escape(option)):
        wrong.check_beginning()
    with pytest.raises(SettingsError, match=re.escape(option)):
        wrong.check(Run(run="r2", nonce="n", created_at=None, checkpoint_dir=str(elsewhere.checkpoint_dir)))


@pytest.mark.parametrize("odd", ["torn", "a FIFO", "a link"])
def test_an_odd_marker_hangs_nobody_and_begins_no_run(elsewhere, odd):
    """It stands there: a run that is away is waited for; one that is there is judged by its path."""
    marker = elsewhere.marker
    if odd == "torn":
        marker.write_text('{"run"')
    elif odd == "a FIFO":
        os.mkfifo(marker)
    else:
        marker.symlink_to("/etc/passwd")
    with pytest.raises(StateUnavailableError):
        elsewhere.check_beginning()
    with pytest.raises(SettingsError):
        elsewhere.check(Run(run="r1", nonce="n", created_at=None, checkpoint_dir="/elsewhere"))
    elsewhere.join(Run(run="r1", nonce="n", created_at=None, checkpoint_dir=str(elsewhere.checkpoint_dir)))


def test_a_directory_by_another_path_is_the_same(elsewhere, tmp_path):
    """A link to it, as one node may name it."""
    (tmp_path / "link").symlink_to(elsewhere.checkpoint_dir)
    elsewhere.check(Run(run="r1", nonce="n", created_at=None, checkpoint_dir=str(tmp_path / "link")))


def test_before_the_directory_is_there_nobody_can_tell(elsewhere):
    """Another path may be the same one: that is waited for, and refused once it turns out not to be."""
    run = Run(run="r1", nonce="n", created_at=None, checkpoint_dir="/elsewhere")
    shutil.rmtree(elsewhere.checkpoint_dir)
    with pytest.raises(StateUnavailableError, match="is unknown whether"):
        elsewhere.join(run)
    elsewhere.checkpoint_dir.mkdir()
    with pytest.raises(SettingsError, match=r'/elsewhere\b.*/ckpts\b.*--run\b.*{"run":"r1"}'):
        elsewhere.join(run)
    elsewhere.marker.write_text('{"run":"r1"}')
    elsewhere.join(run)


def test_a_run_that_was_deleted_is_given_up_after_a_lease(inside, clock):
    """A run that comes back within a lease was only unavailable; a longer absence means that it was replaced."""
    shutil.rmtree(inside.run_dir)
    assert isinstance(inside.lost("r1", None), StateUnavailableError)
    clock.seconds += 9.5
    assert isinstance(inside.lost("r1", None), StateUnavailableError)
    inside.note_present()
    assert isinstance(inside.lost("r1", None), StateUnavailableError)
    clock.seconds += 10
    assert isinstance(inside.lost("r1", None), RunReplacedError)


def test_a_run_that_may_come_back_is_never_given_up(elsewhere, inside, clock):
    """Its storage may be mounted again: elsewhere, or where records of it still lie."""
    elsewhere.join(RUN)
    (inside.run_dir / "plans").mkdir()
    (inside.run_dir / "plans" / "000000000001.json").touch()
    for place in (elsewhere, inside):
        for _ in range(3):
            assert isinstance(place.lost("r1", None), StateUnavailableError)
            clock.seconds += 1000


def test_another_run_is_joined_after_a_lease_unless_the_marker_says_that_it_is_none_of_ours(elsewhere, inside, clock):
    """A mount point shows what lies below it, while the mount is away."""
    elsewhere.join(RUN)
    for _ in range(2):
        errors = [place.lost("r1", "r2") for place in (inside, elsewhere)]
        clock.seconds += 10
    assert [type(error) for error in errors] == [RunReplacedError, StateUnavailableError]


@pytest.mark.parametrize("name", ["ckpts", "x.weights", "x.h5", "x.keras"])
def test_a_marker_is_no_checkpoint(elsewhere, clock, name):
    """Take no marker for a checkpoint, also where names of sharded weights end alike."""
    place = StateDirectory(elsewhere.checkpoint_dir, elsewhere.run_dir.with_name(name), 10.0, clock)
    place.run_dir.mkdir(exist_ok=True)
    place.join(RUN)
    assert file_group(place.marker.name) is None
    catalog = make_catalog(place.checkpoint_dir, place.run_dir / "pins", quiet_seconds=0.0, clock=clock)
    clock.seconds += 1000
    look = catalog.scan()
    assert (look.found, look.waiting, look.corrupt) == ((), (), ())


def test_the_run_of_a_bucket_is_no_other_directorys(tmp_path):
    """The state belongs to the URL that it was begun for, so digests by etags and by content never come together."""
    run_dir = tmp_path / "state" / "run"
    run_dir.mkdir(parents=True)
    run = Run(run="a", nonce="b", created_at="2026-01-01T00:00:00Z", checkpoint_dir="s3://bucket/run")
    StateDirectory(BucketFolder.of("s3://bucket/run"), run_dir).join(run)
    assert list(tmp_path.rglob(".sidecar-run-*")) == []
    with pytest.raises(SettingsError, match="s3://bucket/other"):
        StateDirectory(BucketFolder.of("s3://bucket/other"), run_dir).join(run)
    (tmp_path / "ckpts").mkdir()
    with pytest.raises(SettingsError):
        StateDirectory(tmp_path / "ckpts", run_dir).join(run)


def test_a_run_in_a_bucket_is_deleted_only_with_its_records(clock):
    """A bucket is not mounted, so that a run without records was deleted; with some of them, a person must look."""
    names = {"plans": ["000000000001.json"]}
    records = SimpleNamespace(names=lambda folder: names.get(folder, []))
    run_dir = BucketState.of("s3://b/state") / "a"
    place = StateDirectory(BucketFolder.of("s3://b/ckpts"), run_dir, 10.0, clock, records)
    place.join(Run(run="r1", nonce="n", checkpoint_dir="s3://b/ckpts"))
    with pytest.raises(SettingsError, match="s3://b/others"):
        place.check(Run(run="r1", nonce="n", checkpoint_dir="s3://b/others"))
    for _ in range(2):
        error = place.lost("r1", None)
        assert (type(error), "s3://b/state/a/run.json" in str(error)) == (StateUnavailableError, True)
        clock.seconds += 20
    names.clear()
    assert isinstance(place.lost("r1", None), StateUnavailableError)
    clock.seconds += 11
    assert isinstance(place.lost("r1", None), RunReplacedError)
