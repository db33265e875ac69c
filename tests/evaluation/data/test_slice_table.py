"""The slices of each example, from functions, columns and keys."""

import re
from pathlib import Path

import numpy as np
import pytest
from evaluation.backends.python.tasks import X, Y, run, task

from sidecar import EvalSet
from sidecar.metrics import AUC, Accuracy, InTurn, by_length, by_size

COUNTRIES = np.array(["de", "fr", "it"])[np.arange(len(Y)) * 7 % 3]


def balanced(y_true, y_pred):
    return float((y_true == y_pred.argmax(1)).mean())


@pytest.mark.parametrize(
    ("slices", "changes", "words"),
    [
        ({"a": [1, 2]}, {}, "each of 103 examples, found 2"),
        ({"a": lambda x, _: x}, {}, "one bool, text or number for each"),
        ({"a": lambda x, _: x[:, 0]}, {}, "np.digitize"),
        ({"a": lambda x: x}, {}, "does not match"),
        ({"a": "country"}, {}, "EvalSet(slices={'a': keys})"),
        ({"a": ("b", "c")}, {}, "no other slice"),
        ({"a": Y}, {"metrics": lambda: [AUC(1)]}, "give some of sidecar.metrics"),
        ({"a": Y}, {"metrics": lambda: [InTurn(balanced, name="one")]}, "give some of sidecar.metrics"),
    ],
)
def test_slices_that_cannot_be_are_refused(checkpoint, tmp_path, slices, changes, words):
    """With the remedy."""
    error = run(task(EvalSet(lambda: (X, Y), slices=slices), **changes), checkpoint, tmp_path)[0]
    assert words in str(error)


def test_columns_and_words(checkpoint, tmp_path):
    """The name of a column of x, and a word for the length of texts or the size of images."""
    texts = np.array([[1] * (number % 9 + 1) + [0] * (9 - number % 9) for number in range(103)])
    data = EvalSet(lambda: ({"x": X, "country": COUNTRIES, "input_ids": texts}, Y))
    given = task(
        data,
        predict=lambda model, x: x["x"] @ model,
        metrics=lambda: [Accuracy()],
        slices={"land": "country", "length": by_length},
    )
    found = run(given, checkpoint, tmp_path)[0].result.slices["test"]
    assert found.keys() == {"land=de", "land=fr", "land=it", "length=1", "length=2-3", "length=4-7", "length=8-15"}
    assert by_size([np.zeros((3, 32, 40)), np.zeros((32, 32))], None) == ["1024-2047", "1024-2047"]
    assert by_length(["", "abc"], None) == ["0", "2-3"]


def test_the_block_of_the_page(checkpoint, tmp_path):
    """Each kind of slices, as the page writes them."""
    page = (Path(__file__).parents[3] / "docs/how-to/metrics.md").read_text()
    names = {}
    exec(re.search(r"<!-- slices.py -->\n```python\n(.*?)```", page, re.DOTALL)[1], names)
    x = {"x": X, "hour": np.arange(103) % 24, "country": COUNTRIES}
    data = EvalSet(lambda: (x, Y), slices={"length": np.full(103, "1")})
    given = task(data, predict=lambda model, x: x["x"] @ model, slices=names["slices"])
    assert {"night", "country=de", "length=1", "night & country=fr"} <= run(given, checkpoint, tmp_path)[
        0
    ].result.slices["test"].keys()
