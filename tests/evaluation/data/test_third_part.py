"""Weights of examples and the numbers of examples, told apart by their values."""

import numpy as np
import pytest

from sidecar.errors import TaskError
from sidecar.evaluation.data.third_part import NOTE, ThirdPart, naming_weights
from sidecar.evaluation.failures import EvaluationError

REMEDY = "return (x, y)"
GENERATOR = np.random.default_rng(5)


def looked_at(values, size=8, known=True, only=None):
    """A third part that was looked at in batches; of `only`, if given."""
    part = ThirdPart("val", REMEDY)
    for number, start in enumerate(range(0, len(values), size)):
        if only is None or number in only:
            part.look_at(values[start : start + size], start if known else None)
    return part


@pytest.mark.parametrize("size", [1, 3, 8, 64])
@pytest.mark.parametrize(
    "values",
    [
        np.arange(40),
        np.arange(40) + 1,
        np.arange(40)[::-1],
        np.arange(40, dtype=np.uint8)[:, None],
        np.arange(40) * 3 + 100_000,
        np.sort(GENERATOR.choice(600_000, 40, replace=False)),
        GENERATOR.permutation(40),
        GENERATOR.choice(600_000, 40, replace=False),
        np.arange(2**63, 2**63 + 40, dtype=np.uint64),
        list(range(40)),
    ],
    ids=["0", "1", "falling", "column", "steps", "ids", "permuted", "random ids", "uint64", "list"],
)
def test_numbers_of_examples_are_refused(values, size):
    """Integers that are counted, or all different, are no weights; the message has the first ones and the remedy."""
    with pytest.raises(EvaluationError, match=r"'val'.*return \(x, y\)") as caught:
        looked_at(values, size).require_weights()
    assert str(np.ravel(values)[0]) in str(caught.value)


@pytest.mark.parametrize("known", [True, False])
def test_a_few_batches_show_it(known):
    """Look at some batches of a long set, which are not neighbours."""
    with pytest.raises(EvaluationError, match="val"):
        looked_at(np.arange(1000), 8, known, only=(0, 3, 99)).require_weights()
    with pytest.raises(EvaluationError, match="val"):
        looked_at(np.arange(1000), 1, known=True, only=(0, 3, 99, 100, 500)).require_weights()


@pytest.mark.parametrize("first", [0, 1])
def test_numbers_within_each_batch_are_refused(first):
    """A collate function may count from 0 in each batch; the last one is short."""
    with pytest.raises(EvaluationError, match="val"):
        looked_at(np.arange(42) % 8 + first).require_weights()


@pytest.mark.parametrize("size", [1, 3, 8, 64])
@pytest.mark.parametrize(
    "values",
    [
        np.arange(40) % 2,
        np.ones(40, np.int64),
        np.zeros(40, np.int64),
        np.arange(40) // 20,
        np.sort(np.arange(40) % 3),
        GENERATOR.integers(1, 10, 40),
        np.array([1, 7])[GENERATOR.integers(0, 2, 40)],
        GENERATOR.poisson(3, 40),
        np.arange(40).astype(np.float32),
        np.arange(40) % 2 == 0,
        np.arange(40).reshape(8, 5),
        np.array([1, 2, 4, 3]),
        np.array([5, 4]),
        np.zeros(0, np.int64),
    ],
    ids=[
        *("mask", "ones", "zeros", "halves", "sorted classes", "counts", "class weights", "poisson"),
        *("floats", "bool", "positions", "four", "two", "none"),
    ],
)
def test_weights_stay_weights(values, size):
    """Masks, counts, weights of classes and floats are weights, and a note names them."""
    part = looked_at(values, size)
    part.require_weights()
    assert part.notes == ((NOTE,) if len(values) else ())


def test_weights_by_output_are_not_looked_at():
    """A dict of weights is no number of an example."""
    part = ThirdPart("val", REMEDY)
    part.look_at({"kind": np.arange(40)}, 0)
    part.require_weights()
    assert part.notes == (NOTE,)


def test_an_error_about_shapes_names_the_third_part():
    """A label taken for a weight gives an error about shapes elsewhere, to which the remedy is added."""
    for error in (TaskError("(5,) and (5, 2)"), EvaluationError("task_error", "(5,) and (5, 2)"), ValueError("(5,)")):
        with (
            pytest.raises((TaskError, EvaluationError), match=r"\(5,\).*return \(x, y\)"),
            naming_weights(lambda: REMEDY),
        ):
            raise error
    for error, remedy in ((TaskError("(5,)"), ""), (EvaluationError("vanished", "(5,)"), REMEDY)):
        with pytest.raises(type(error)) as caught, naming_weights(lambda remedy=remedy: remedy):
            raise error
        assert caught.value is error


def test_a_second_reading_begins_anew():
    """Numbers that are seen a second time would not all be different."""
    part = looked_at(np.arange(40))
    part.begin()
    for start in range(0, 40, 8):
        part.look_at(np.arange(start, start + 8), start)
    with pytest.raises(EvaluationError, match="val"):
        part.require_weights()
