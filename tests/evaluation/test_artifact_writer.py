"""A worker's folder: complete and on disk under its name, or not there."""

import contextlib
import errno
import json
import os
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from users import MALLORY, VICTIM, acting_as, is_untouched, only_root, private_folder, shared_folder

from sidecar.evaluation.artifact_writer import ArtifactWriter
from sidecar.evaluation.backend import Rows
from sidecar.evaluation.failures import EvaluationError, as_failed
from sidecar.evaluation.states import ExactSum


def save(folder, states=None, save_weights=None, rows=(), root=None):
    with ArtifactWriter(folder, root, in_parallel=ThreadPoolExecutor(1)) as saves:
        saves.begin(save_weights)
        for eval_set, each in rows:
            saves.keep(eval_set, each)
        saves.finish(states or {}, "v")


def rows(first, *numbers):
    return Rows(first, len(numbers), {"predictions": np.array(numbers)})


def test_interrupted_save_is_replaced(tmp_path):
    """Folders that attempts left behind under the same name, finished or not, are made anew."""
    folder = tmp_path / "worker-0-of-1"
    for left in (folder, tmp_path / ".worker-0-of-1.part"):
        left.mkdir()
        (left / "left over").touch()
    save(folder)
    assert [path.name for path in folder.iterdir()] == ["states.json"]
    assert list(tmp_path.iterdir()) == [folder]


def test_save_below_folders_that_do_not_exist(tmp_path, monkeypatch):
    """All folders are made and synced, also when the path is short."""
    monkeypatch.chdir(tmp_path)
    save(Path("worker"), save_weights=lambda folder: (folder / "weights").touch())
    assert sorted(path.name for path in Path("worker").iterdir()) == ["states.json", "weights"]
    save(tmp_path / "a" / "b" / "c" / "d" / "e")


def test_everything_is_on_disk_before_the_folder_has_its_name(tmp_path, system_calls):
    """Every file and folder is synced first, states.json after all other files; the name is synced afterwards."""
    folder, synced = tmp_path / "evaluations" / "c" / "plan-1" / "worker-0-of-1", []
    system_calls.observe("fsync", lambda file: synced.append(str(Path(f"/proc/self/fd/{file}").readlink())))
    save(folder, save_weights=lambda part: (part / "weights").touch(), rows=[("test", rows(0, 1.0))], root=tmp_path)
    part = f"{folder.parent}/.worker-0-of-1.part"
    assert synced[:3] == [str(path) for path in (tmp_path, *list(folder.parents)[2:0:-1])]  # each has its name first
    synced = synced[3:]
    named = synced.index(str(folder.parent))
    states = synced.index(f"{part}/states.json")
    before = {"weights", "predictions/test/place.npy", "predictions/test/predictions.npy"}
    assert {f"{part}/{name}" for name in before} <= set(synced[:states])  # folders may be, too, with the weights
    assert set(synced[states:named]) == {
        f"{part}/{name}" for name in ("states.json", "predictions", "predictions/test")
    } | {part}
    assert synced[named:] == [str(path) for path in list(folder.parents)[:3]]


def test_weights_are_written_while_the_evaluation_runs(tmp_path):
    """They do not change meanwhile; what waits for the evaluation to end would be a deadlock here."""
    evaluated, written = threading.Event(), threading.Event()

    def save_weights(folder):
        assert evaluated.wait(20)
        (folder / "weights").touch()
        written.set()

    folder = tmp_path / "worker-0-of-1"
    with ArtifactWriter(folder, in_parallel=ThreadPoolExecutor(1)) as saves:
        saves.begin(save_weights)
        saves.keep("test", rows(0, 1.0))
        evaluated.set()
        assert written.wait(20)
        saves.finish({}, "v")
    assert (folder / "weights").exists()


def test_predictions_are_columns_that_numpy_reads(tmp_path):
    """Write columns of any batches, and no pickle."""
    folder = tmp_path / "worker-0-of-1"
    save(folder, rows=[("test", rows(0, 0.1, 0.2)), ("few", rows(None, 1, 2)), ("test", rows(4, 0.3))])
    load = lambda name: np.load(folder / "predictions" / name, allow_pickle=False, mmap_mode="r")  # noqa: E731
    assert load("test/predictions.npy").tolist() == [0.1, 0.2, 0.3]
    assert load("test/place.npy").tolist() == [0, 1, 4]
    assert load("few/predictions.npy").tolist() == [1, 2]
    assert not (folder / "predictions" / "few" / "place.npy").exists()
    assert json.loads((folder / "states.json").read_text())["predictions"] == {
        "test": {"rows": 3, "columns": ["place", "predictions"], "inputs_bytes": 0},
        "few": {"rows": 2, "columns": ["predictions"], "inputs_bytes": 0},
    }


def test_states_are_what_they_were(tmp_path):
    """To the bit, through a file."""
    state = ExactSum((2,), "float64")
    state.add(np.array([0.1, 1e300]))
    save(tmp_path / "worker", {"test": {"sum": state}})
    saved = json.loads((tmp_path / "worker" / "states.json").read_text())
    assert ExactSum.from_json(saved["states"]["test"]["sum"]).round().tolist() == [0.1, 1e300]


def no_space(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("when", ["weights", "predictions", "states", "fsync", "rename"])
def test_a_full_disk_is_a_failure_of_storage_that_leaves_nothing(tmp_path, monkeypatch, system_calls, when):
    """Wherever it is noticed: kind, place and remedy are told, and no folder is there."""
    writers = {"predictions": (np.lib.format, "write_array_header_1_0"), "states": (json, "dumps")}
    if when in writers:
        monkeypatch.setattr(*writers[when], no_space)
    if when in {"fsync", "rename"}:
        system_calls.refuse(when, errno.ENOSPC)
    folder = tmp_path / "plan-1" / "worker-0-of-1"
    folder.parent.mkdir()
    with pytest.raises(EvaluationError) as caught:
        save(folder, save_weights=no_space if when == "weights" else None, rows=[("test", rows(0, 1.0))])
    failed = as_failed(caught.value, phase="evaluate", plan=1, rank=0)
    assert failed.kind == "storage"
    assert failed.message.startswith(f"cannot save to {folder}: OSError: [Errno 28] No space left on device")
    assert failed.message.endswith("; free some space there, or keep less: keep_saves, saves_max_bytes, save_weights")
    assert "/proc/" not in failed.message
    assert list(folder.parent.iterdir()) == []


def test_a_disk_that_fills_up_under_the_predictions(tmp_path):
    """With a real device that is full: what the kernel says when a buffer reaches it."""

    def fill():
        with (
            ArtifactWriter(tmp_path / "worker-0-of-1", in_parallel=ThreadPoolExecutor(1)) as saves,
            Path("/dev/full").open("wb") as full,
        ):
            saves.begin(None)
            saves.keep("test", rows(0, 1.0))
            column = saves._tables["test"]._columns["predictions"]
            column.file.close()
            column.file = full
            for batch in range(1, 10):
                saves.keep("test", rows(batch * 1000, *np.ones(1000)))

    with pytest.raises(EvaluationError, match="No space left on device") as caught:
        fill()
    assert caught.value.kind == "storage"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_must_not_be_written(tmp_path):
    """It is told before anything is evaluated."""
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(EvaluationError, match=r"plan-1.*write there") as caught:
            save(tmp_path / "plan-1" / "worker-0-of-1")
    finally:
        tmp_path.chmod(0o700)
    assert caught.value.kind == "storage"


def test_a_file_in_the_way_is_a_failure_of_storage(tmp_path):
    """Also for root, who may write everywhere."""
    (tmp_path / "plan-1").touch()
    with pytest.raises(EvaluationError, match=r"plan-1/worker-0-of-1: NotADirectoryError") as caught:
        save(tmp_path / "plan-1" / "worker-0-of-1", root=tmp_path)
    assert caught.value.kind == "storage"


def test_an_evaluation_that_fails_leaves_nothing(tmp_path):
    """Neither a half-written folder nor a thread that still writes one: it is waited for."""
    written = []

    def save_weights(folder):
        time.sleep(0.2)
        (folder / "weights").touch()
        written.append(folder)

    def evaluate():
        with ArtifactWriter(tmp_path / "worker-0-of-1", in_parallel=ThreadPoolExecutor(1)) as saves:
            saves.begin(save_weights)
            saves.keep("test", rows(0, 1.0))
            raise ValueError("of the task")

    with pytest.raises(ValueError, match="task"):
        evaluate()
    assert list(tmp_path.iterdir()) == []
    assert len(written) == 1


PLACE = "evaluations/ckpt-5@0/plan-1/worker-0-of-2"


@pytest.mark.parametrize("link", ["evaluations", "evaluations/ckpt-5@0", "evaluations/ckpt-5@0/plan-1"])
def test_a_link_in_the_place_of_a_folder_leads_nowhere(tmp_path, link):
    """Nothing is saved behind it, and the reason names it."""
    outside, root = tmp_path / "outside", tmp_path / "run"
    outside.mkdir()
    (root / link).parent.mkdir(parents=True)
    (root / link).symlink_to(outside)
    with pytest.raises(EvaluationError, match=r"links .*not followed") as caught:
        save(root / PLACE, save_weights=lambda folder: (folder / "weights").touch(), root=root)
    assert caught.value.kind == "storage"
    assert f"'{root / link}'" in str(caught.value)
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("name", ["worker-0-of-2", ".worker-0-of-2.part"])
def test_a_link_in_the_place_of_the_own_folder_is_replaced(tmp_path, name):
    """It is not what an interrupted attempt left, and what it points to stays."""
    outside = tmp_path / "outside"
    (outside / "below").mkdir(parents=True)
    place = tmp_path / PLACE
    place.parent.mkdir(parents=True)
    (place.parent / name).symlink_to(outside)
    save(place, save_weights=lambda folder: (folder / "weights").touch(), rows=[("test", rows(0, 1.0))], root=tmp_path)
    assert sorted(path.name for path in place.iterdir()) == ["predictions", "states.json", "weights"]
    assert [path.name for path in place.parent.iterdir()] == ["worker-0-of-2"]
    assert [path.name for path in outside.rglob("*")] == ["below"]


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_who_writes_by_path_cannot_be_led_elsewhere_by_renaming(tmp_path, level):
    """A folder above is swapped for a link while weights and predictions are written: they go where they were to."""
    root, outside = tmp_path / "run", tmp_path / "outside"
    place = root / PLACE
    hidden = place.with_name(f".{place.name}.part")
    swapped = [hidden, *hidden.parents][level]
    (outside / hidden.relative_to(swapped)).mkdir(parents=True)

    def save_weights(folder):
        swapped.rename(root / "moved")
        swapped.symlink_to(outside)
        (folder / "weights").write_bytes(b"w")

    expected = pytest.raises(EvaluationError, match="another user") if level == 0 else contextlib.nullcontext()
    with expected:  # what was put there in its place is not taken for it
        save(place, save_weights=save_weights, rows=[("test", rows(0, 1.0))], root=root)
    assert [path for path in outside.rglob("*") if path.is_file()] == []


@only_root
def test_another_user_of_the_group_can_put_nothing_into_a_folder_that_is_filled():
    """A link under a name that is to be written would be followed by writers that take paths."""
    with shared_folder() as shared:
        private, place = private_folder(shared), shared / PLACE
        tried = []

        def save_weights(folder):
            os.seteuid(0)
            with acting_as(MALLORY):
                for path in (folder, place.with_name(f".{place.name}.part")):
                    with pytest.raises(PermissionError):
                        (path / "weights").symlink_to(private / "states")
                    tried.append(path)
            os.setegid(54320)
            os.seteuid(VICTIM)
            (folder / "weights").write_text("ours")

        with acting_as(VICTIM):
            save(place, save_weights=save_weights, root=shared)
        assert len(tried) == 2
        assert is_untouched(private)
        assert (place / "weights").read_text() == "ours"
        assert stat.S_IMODE(place.stat().st_mode) == 0o2775  # from then on as the umask has it


@only_root
def test_what_another_user_prepared_is_not_filled():
    """A folder of theirs under the hidden name goes first, and the new one is the own user's."""
    with shared_folder() as shared:
        place = shared / PLACE
        private = private_folder(shared)
        with acting_as(MALLORY):
            hidden = place.with_name(f".{place.name}.part")
            hidden.mkdir(parents=True)
            (hidden / "weights").symlink_to(private / "states")
        with acting_as(VICTIM):
            save(place, save_weights=lambda folder: (folder / "weights").write_text("ours"), root=shared)
        assert is_untouched(private)
        assert (place / "weights").read_text() == "ours"
        assert place.stat().st_uid == VICTIM
