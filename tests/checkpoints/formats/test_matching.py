"""Checkpoints by the user's own pattern: files and folders of any format, none of which is ever loaded."""

import os
import pickle

import pytest

from sidecar.checkpoints.discovery_rules import DiscoveryRules
from sidecar.checkpoints.formats import FORMATS, file_group, looked_for, matching
from sidecar.checkpoints.inspect import inspect_one, verify
from sidecar.checkpoints.subfolder_hint import remedy_below
from sidecar.errors import CheckpointError, CorruptError, IncompleteError, VanishedError
from sidecar.retention.pins.pin import pin


class Bomb:
    """A pickle that runs code when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.fixture
def looked(new_catalog, clock):
    """Names that a catalog finds once all has been quiet, each with its checkpoint."""

    def look(pattern="model-*", **settings):
        catalog = new_catalog(checkpoint_pattern=pattern, **settings)
        catalog.scan()
        clock.seconds += 5
        return {each.checkpoint.name: each for each in catalog.scan().found}

    return look


def test_files_and_folders_that_match_are_found(looked, root):
    """Find all that match, leave out unfinished ones and others, and read steps from the names."""
    (root / "model-10.joblib").write_bytes(b"anything")
    (root / "model-20").mkdir()
    (root / "model-20" / "deep").mkdir()
    (root / "model-20" / "deep" / "array").write_bytes(b"weights")
    (root / ".model-30.joblib").write_bytes(b"unfinished")
    (root / "model-40.tmp1").write_bytes(b"unfinished")
    (root / "notes.txt").write_bytes(b"no checkpoint")
    (root / "model-50.joblib").write_bytes(b"")
    (root / "weights.h5").write_bytes(b"no longer looked for")
    found = looked()
    assert {name: (each.checkpoint.step, each.checkpoint.format) for name, each in found.items()} == {
        "model-10.joblib": (10, "matching_file"),
        "model-20": (20, "matching_folder"),
    }
    assert {file.name for file in found["model-20"].files} == {"model-20/deep/array"}


def test_the_users_own_step_pattern(looked, root):
    (root / "run7-model-a12.joblib").write_bytes(b"anything")
    (each,) = looked("run7-model-*", step_pattern=r"a(\d+)").values()
    assert (each.checkpoint.step, each.checkpoint.step_source) == (12, "step_pattern")


def test_a_file_that_grows_is_not_complete(new_catalog, clock, root):
    """Only time tells, and each change begins it anew."""
    catalog = new_catalog(checkpoint_pattern="*.joblib")
    for size in range(1, 4):
        (root / "m.joblib").write_bytes(b"x" * size)
        assert not catalog.scan().found
        clock.seconds += 2
    catalog.scan()
    clock.seconds += 5
    assert [each.checkpoint.name for each in catalog.scan().found] == ["m.joblib"]


def test_the_users_marker(new_catalog, clock, root):
    """Without it nothing is complete."""
    catalog = new_catalog(checkpoint_pattern="*.joblib", complete_marker="{name}.done")
    (root / "m.joblib").write_bytes(b"x")
    catalog.scan()
    clock.seconds += 5
    assert not catalog.scan().found
    (root / "m.joblib.done").touch()
    catalog.scan()
    clock.seconds += 5
    assert [each.checkpoint.name for each in catalog.scan().found] == ["m.joblib"]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_pin_is_a_copy_that_is_found_again(looked, root, pins, kind):
    """Since writers may write to the same file again; the pin outlives what training deletes."""
    path = root / "model-1" if kind == "file" else root / "model-1" / "part"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"first")
    pinned = pin(looked()["model-1"], pins)
    path.write_bytes(b"other")
    assert verify(pinned.folder, "model-1", f"matching_{kind}") == pinned.checkpoint.digest
    path.unlink()
    again = looked()
    assert again["model-1"].checkpoint == pinned.checkpoint


def test_content_decides_which_checkpoint_it_is(looked, root):
    """Include the names in a folder."""
    (root / "model-1").write_bytes(b"one")
    (root / "model-2").mkdir()
    (root / "model-2" / "a").write_bytes(b"one")
    before = {name: each.checkpoint.digest for name, each in looked().items()}
    (root / "model-1").write_bytes(b"two")
    (root / "model-2" / "a").rename(root / "model-2" / "b")
    after = {name: each.checkpoint.digest for name, each in looked().items()}
    assert all(before[name] != after[name] for name in before)


def test_links_are_not_followed(looked, root, tmp_path):
    """Neither out of the directory, nor anywhere within a folder."""
    (tmp_path / "secret").write_bytes(b"secret")
    (root / "model-1").symlink_to(tmp_path / "secret")
    (root / "model-2").mkdir()
    (root / "model-2" / "link").symlink_to(tmp_path / "secret")
    assert looked() == {}
    with pytest.raises(CheckpointError):
        FORMATS["matching_folder"].inspect(root, "model-2")


def test_a_pickle_is_never_loaded(looked, root, pins, tmp_path):
    """It stays bytes for the daemon, whatever it would do."""
    (root / "model-1.pkl").write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    found = looked()["model-1.pkl"]
    pin(found, pins, check=True)
    inspect_one(root / "model-1.pkl", rules=DiscoveryRules(checkpoint_pattern="model-*"))
    assert not (tmp_path / "ran").exists()


def test_without_a_pattern_nothing_of_it_is_looked_for(root):
    """Other files are nobody's, as before."""
    (root / "anything").write_bytes(b"x")
    (root / "folder").mkdir()
    assert file_group("anything") is None
    assert {"matching_file", "matching_folder"}.isdisjoint(each.name for each in looked_for())
    with pytest.raises(VanishedError):
        inspect_one(root / "anything")
    with pytest.raises(VanishedError):
        inspect_one(root / "anything", rules=DiscoveryRules(checkpoint_pattern="model-*"))


def test_file_of_an_unknown_suffix(tmp_path):
    """The line that makes it a checkpoint is given, with its suffix or its whole name."""
    for name, pattern in (("dqn.model_of_mine", "*.model_of_mine"), ("weights", "weights")):
        (tmp_path / name).write_bytes(b"1")
        with pytest.raises(VanishedError) as caught:
            inspect_one(tmp_path / name)
        assert str(caught.value).endswith(f'write checkpoint_pattern = "{pattern}" into sidecar.toml')


def test_first_format_of_tensorflow_1_is_named_with_its_pattern(tmp_path):
    """A saver of TensorFlow 1 may write one file, and `.meta` beside it; the pattern fits all such files."""
    for step in (20, 40):
        (tmp_path / f"model.ckpt-{step}").write_bytes(b"table")
        (tmp_path / f"model.ckpt-{step}.meta").write_bytes(b"graph")
    line = 'write checkpoint_pattern = "model.ckpt-*[0-9]" into sidecar.toml'
    assert line in remedy_below(tmp_path)
    with pytest.raises(VanishedError, match=r"model\.ckpt-40") as caught:
        inspect_one(tmp_path / "model.ckpt-40")
    assert line in str(caught.value)
    assert (
        inspect_one(tmp_path / "model.ckpt-40", rules=DiscoveryRules(checkpoint_pattern="model.ckpt-*[0-9]")).step == 40
    )
    (tmp_path / "model.ckpt-20.index").write_bytes(b"")
    assert "model.ckpt-40" in remedy_below(tmp_path)


def test_a_folder_beyond_all_bounds_is_corrupt_and_ends_nothing(looked, new_catalog, root, clock, monkeypatch):
    """Anybody may make one next to checkpoints: too deep, or with too many files."""
    monkeypatch.setattr(matching, "_MOST_FILES", 50)
    (root / "model-1").write_bytes(b"fine")
    (root / "model-2").joinpath(*["d"] * 40).mkdir(parents=True)
    (root / "model-3").mkdir()
    for number in range(60):
        (root / "model-3" / f"file-{number}").write_bytes(b"x")
    assert list(looked()) == ["model-1"]
    catalog = new_catalog(checkpoint_pattern="model-*", corrupt_after_seconds=2)
    catalog.scan()
    clock.seconds += 5
    assert {each.name for each in catalog.scan().corrupt} == {"model-2", "model-3"}
    for name, words in (("model-2", "folders deep"), ("model-3", "more than 50")):
        with pytest.raises(CorruptError) as caught:
            FORMATS["matching_folder"].inspect(root, name)
        assert words in str(caught.value)


def test_a_format_that_fails_ends_nothing(new_catalog, root, monkeypatch):
    """It is said of this entry, and the others are found."""
    catalog = new_catalog(checkpoint_pattern="model-*")
    (root / "model-1").mkdir()
    monkeypatch.setattr(matching, "_contents_of", lambda *_: 1 / 0)
    assert any("ZeroDivisionError" in reason for _, reason in catalog.scan().waiting)


def test_one_that_somebody_names_may_be_a_folder(root, looked):
    """As `sidecar eval` names it."""
    (root / "model-1").mkdir()
    (root / "model-1" / "weights").write_bytes(b"w")
    named = inspect_one(root / "model-1", rules=DiscoveryRules(checkpoint_pattern="model-*"))
    assert named == looked("model-*")["model-1"].checkpoint


def test_an_empty_folder_is_not_complete(root):
    (root / "model-1").mkdir()
    with pytest.raises(IncompleteError):
        FORMATS["matching_folder"].inspect(root, "model-1")
