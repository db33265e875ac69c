"""Show what an eval set may be made of besides datasets and arrays: `.npz` files, TFRecord files, generators."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from evaluation.data.sources_of_files import COUNTS, contents, record_set

from sidecar import EvalSet
from sidecar.data import npz, tfrecords
from sidecar.errors import TaskError
from sidecar.evaluation.data.opened_files import OpenedFiles

pytestmark = pytest.mark.tensorflow


def test_nothing_heavy_is_imported_before_a_source_is_called():
    """A task file names sources as lightly as it names its task."""
    code = "import sys; from sidecar.data import npz, tfrecords; npz('a', 'x'); tfrecords('b'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"numpy", "tensorflow", "sidecar.data"} & set(done.stdout.split()) == {"sidecar.data"}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_is_what_its_arrays_are(batches, tmp_path, save):
    """The same stream to the last digit, with weights if they are named."""
    x, y, w = np.arange(30, dtype="float32").reshape(10, 3), np.arange(10), np.full(10, 0.5, "float32")
    save(tmp_path / "test.npz", x=x, labels=y, w=w)
    for names, arrays in ((("x", "labels"), (x, y)), (("x", "labels", "w"), (x, y, w))):
        found = batches(npz(tmp_path / "test.npz", *names)).read(lambda: None)
        assert found == batches(lambda arrays=arrays: arrays).read(lambda: None)


def test_npz_that_cannot_be_used(tmp_path):
    """Each mistake in one sentence that names the file, and what is there."""

    def refusal(*names, file="test.npz"):
        with pytest.raises(TaskError) as caught:
            npz(tmp_path / file, *names)()
        return str(caught.value).removeprefix("npz: ")

    path = tmp_path / "test.npz"
    assert refusal("x", "y") == f"there is no file {path}"
    np.save(tmp_path / "test.npy", np.zeros(3))
    assert refusal("x", file="test.npy").startswith(f"{tmp_path / 'test.npy'} is not a complete .npz file")
    texts = np.array(["a", None], dtype=object)
    np.savez(path, x=np.zeros(2), y=np.zeros(3), one=1, texts=texts)
    assert refusal("x", "z", "v") == f"{path} has no array 'z', 'v'; there are x, y, one, texts"
    assert refusal("x", "y") == f"arrays of {path} need equally many examples, found x 2, y 3"
    assert refusal("x", "one") == f"arrays of {path} need equally many examples, found x 2, one no"
    assert refusal("texts").startswith(f"array 'texts' of {path} cannot be read: Object arrays cannot be loaded")
    np.savez(path, x=np.arange(1000))
    whole = path.read_bytes()
    damaged = whole.replace(np.arange(500, 510).tobytes(), b"\x01" * 80)
    assert damaged != whole
    path.write_bytes(damaged)
    assert refusal("x").startswith(f"array 'x' of {path} cannot be read: Bad CRC-32")
    path.write_bytes(whole[:-30])
    assert "is not a complete .npz file" in refusal("x")
    with pytest.raises(TaskError, match=rf"{path}.*name the arrays"):
        npz(path)


@pytest.mark.parametrize(
    ("by", "numbers"),
    [
        ("file", (2, 3)),
        pytest.param("file", (1, 4), marks=pytest.mark.nightly),
        pytest.param("batch", (1, 2, 4), marks=pytest.mark.nightly),
    ],
)
def test_the_same_bits_for_any_number_of_workers(trained, digits, evaluate, digit_files, by, numbers):
    """By file for 1 or 2 workers, by batch for more: one result, that of a plain evaluation."""
    pattern, parse_digit = digit_files
    eval_set = EvalSet(tfrecords(pattern, by=by), parse_digit, examples=digits.HELD_OUT)
    task = digits.make(eval_sets={"test": eval_set})
    found = [evaluate(task, trained.path("model"), ranks=ranks) for ranks in numbers]
    by_file = [by == "file" and ranks <= 2 for ranks in numbers]
    assert [each.streams[0][0].sharding for each in found] == ["files" if each else "batches" for each in by_file]
    for each in found:
        assert each.hexes == found[0].hexes
        assert each.examples == {"test": digits.HELD_OUT}
    expected = trained.expected["model"]
    assert found[0]["accuracy"].value == expected["correct"] / expected["count"]
    assert found[0]["loss"].value == pytest.approx(expected["loss"], rel=1e-6)


def test_an_exact_auc_needs_to_know_how_many_there_are(trained, digits, evaluate, digit_files):
    """By file nobody knows before the end; by batch everybody does."""
    from sidecar.metrics import AUC

    pattern, parse_digit = digit_files

    def run(by):
        sets = {"test": EvalSet(tfrecords(pattern, by=by), parse_digit)}
        return evaluate(digits.make(eval_sets=sets, metrics=lambda: [AUC(positive=3)]), trained.path("model"), ranks=2)

    with pytest.raises(TaskError, match=r"'auc'.*divided by file.*BinnedAUC"):
        run("file")
    assert 0 < run("batch")["roc_auc"].value <= 1


def test_list_of_files_is_compared_not_their_folder(batches, records):
    """The same names and sizes elsewhere are the same; another name or size is not."""
    prints = []
    for folder, counts in (("a", COUNTS), ("b", COUNTS), ("c", (5, 0, 3, 4, 2)), ("d", COUNTS[:4])):
        made = batches(record_set(records(counts, folder), by="file"), batch_size=2)
        prints.append(made.read(lambda: None).fingerprint)
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


def test_files_that_change_between_checkpoints(batches, records):
    """By file the list is looked at before every evaluation."""
    from sidecar.evaluation.failures import EvaluationError

    pattern = records()
    made = batches(record_set(pattern, by="file"), batch_size=2)
    assert made.read(lambda: None) == made.read(lambda: None)
    Path(pattern).with_name("test-1.tfrecord").unlink()
    with pytest.raises(EvaluationError, match=r"'test'.*files have changed"):
        made.read(lambda: None)


def test_files_of_records_that_were_replaced_are_noticed(batches, records):
    """TensorFlow opens them without Python; names and sizes are the same."""
    pattern, files = records(), OpenedFiles()
    files.install()
    with files.reading():
        contents(batches(record_set(pattern)))
    (path,) = Path(pattern).parent.glob("test-2.tfrecord")
    assert files.changed() == []
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)
    assert files.changed() == [str(path)]


@pytest.mark.parametrize("by", ["batch", "file"])
def test_files_that_cannot_be_used(refusal, records, by):
    """None, one twice, nothing in them: one sentence each."""
    pattern = records((0, 0))
    kind, message = refusal(record_set(pattern, by=by))
    assert (kind, message) == ("task_error", "eval set 'test' is empty: it has no example to evaluate")
    nowhere = pattern.replace("test", "no")
    assert refusal(record_set(nowhere, by=by))[1] == f"eval set 'test': tfrecords finds no file {nowhere}"
    first = pattern.replace("*", "0")
    assert refusal(record_set([pattern, first], by=by))[1] == f"eval set 'test': tfrecords is given {first} 2 times"
    assert "yields single examples" in refusal(record_set(pattern, by=by), batch_size=None)[1]
