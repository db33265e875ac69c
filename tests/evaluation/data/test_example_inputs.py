"""Inputs of examples that a task shows: which ones, in which forms, and how many."""

import io

import numpy as np
import pytest
from evaluation.backends.python.tasks import X, Y, run, task

from sidecar import EvalSet
from sidecar.evaluation.data.example_inputs import ExampleInputs, thumbnail
from sidecar.protocol.example_inputs import image_type, read_line

WRONG = [int(place) for place in np.flatnonzero((X @ np.ones((5, 3)).cumsum(0)).argmax(1) != Y)]


@pytest.fixture
def checkpoint(tmp_path):
    path = tmp_path / "model.npy"
    np.save(path, np.ones((5, 3)).cumsum(0))
    return path


def saved(folder):
    """The inputs that all workers saved."""
    paths = folder.glob("worker-*/predictions/test/inputs.jsonl")
    lines = [line for path in paths for line in path.read_bytes().splitlines()]
    return dict(sorted(map(read_line, lines)))


@pytest.mark.parametrize("ranks", [1, 2])
def test_inputs_of_wrong_examples_are_saved(checkpoint, tmp_path, ranks):
    """By the worker that evaluated them, under their numbers in the whole set."""
    given = task(predictions=True, show=lambda x, y: f"{x[0]:.3f} is {y}")
    assert run(given, checkpoint, tmp_path, ranks)[0].result.examples == {"test": 103}
    assert saved(tmp_path) == {place: f"{X[place][0]:.3f} is {Y[place]}" for place in WRONG}


def test_without_labels_and_predictions_all_examples_may_be_wrong(checkpoint, tmp_path):
    """A set may have a function of its own, and `None` is nothing."""
    data = EvalSet(lambda: ({"a": X, "name": np.array([b"x\xc3\xa9"] * 103)}, Y), show=lambda x, _: x["name"])
    given = task(
        data,
        predictions=lambda *given: {"loss": given[2][:, 0]},
        predict=lambda model, x: x["a"] @ model,
        show=lambda *_: None,
    )
    run(given, checkpoint, tmp_path)
    assert saved(tmp_path) == dict.fromkeys(range(103), "xé")


@pytest.mark.parametrize(("most", "most_bytes", "count"), [(5, 1 << 20, 5), (99, 3 * (100 + 6 * 2000), 3)])
def test_a_worker_saves_so_many(most, most_bytes, count):
    """Examples or bytes, over all batches; a text is cut."""
    inputs = ExampleInputs("test", lambda *_: "é" * 5000, most, most_bytes)
    columns = {"y": np.zeros(4), "predictions": np.ones(4)}
    found = [inputs.of((X[:4], Y[:4]), first, 4, columns) for first in (0, 4, 8)]
    assert [place for batch in found for place in batch] == list(range(count))
    assert {shown for batch in found for shown in batch.values()} == {"é" * 1999 + "…"}
    assert inputs.of((X[:4], Y[:4]), None, 4, columns) == {}


@pytest.mark.parametrize(
    ("show", "words"),
    [
        (lambda *_: 3.5, f"a float for example {WRONG[0]}: return a text"),
        (lambda *_: b"\xff" * 9, "9 bytes"),
        (lambda x, _: x, "an array of float64 (5,)"),
        (lambda *_: thumbnail(np.zeros((8, 8))) + bytes(1 << 16), "at most 1024 pixels a side and 65536 bytes"),
        (lambda x: x, "does not match"),
    ],
)
def test_what_cannot_be_shown_is_refused(checkpoint, tmp_path, show, words):
    """With the remedy."""
    error = run(task(predictions=True, show=show), checkpoint, tmp_path)[0]
    assert words in str(error)


@pytest.mark.parametrize(
    ("shape", "dtype", "size", "mode"),
    [
        ((8, 6), "uint8", (6, 8), "L"),
        ((8, 6, 1), "float32", (6, 8), "L"),
        ((3, 8, 6), "float16", (6, 8), "RGB"),
        ((8, 6, 4), "uint8", (6, 8), "RGBA"),
        ((8, 6, 7), "int64", (6, 8), "L"),
        ((200, 300, 3), "uint8", (75, 50), "RGB"),
    ],
)
def test_pixels_are_an_image(shape, dtype, size, mode):
    """As a library of images reads it."""
    image = pytest.importorskip("PIL.Image")
    pixels = (np.arange(np.prod(shape)).reshape(shape) % 200).astype(dtype)
    data = thumbnail(pixels)
    assert image_type(data) == "image/png"
    with image.open(io.BytesIO(data)) as read:
        assert (read.size, read.mode) == (size, mode)
        if dtype == "uint8" and max(shape) < 96:
            assert np.array_equal(np.asarray(read), pixels)


def test_numbers_are_scaled_to_grey():
    """From 0 to 1 as they are; others from their smallest to their largest; what is not finite does not matter."""
    image = pytest.importorskip("PIL.Image")
    for pixels, grey in (
        ([[0.0, 0.5]], [0, 128]),
        ([[-1.0, 1.0]], [0, 255]),
        ([[0.0, 16.0]], [0, 255]),
        ([[np.nan, 1]], [0, 255]),
    ):
        with image.open(io.BytesIO(thumbnail(np.array(pixels)))) as read:
            assert np.asarray(read).tolist() == [grey]
