"""Find rows of tensors that hold only finite numbers."""

import numpy as np
import pytest


@pytest.mark.tensorflow
def test_rows_of_all_kinds_of_tensors(digits):
    """Nested, ragged and sparse ones have a row for each example; what holds no floats has nothing to look at."""
    import tensorflow as tf

    from sidecar.evaluation.backends.tensorflow.finite import finite_rows

    del digits
    nan = np.nan
    ragged = tf.RaggedTensor.from_row_lengths([[1.0, nan], [0.0, 1.0], [nan, nan]], [1, 0, 2])
    deeper = tf.RaggedTensor.from_row_lengths(ragged, [1, 0, 2])
    sparse = tf.SparseTensor([[1, 0], [1, 3]], [nan, 1.0], [3, 4])
    structure = {"a": (ragged, deeper), "b": [sparse, None, tf.constant(["x"] * 3), tf.constant(nan)]}
    found = tf.function(lambda: finite_rows(structure))()
    assert [each.numpy().tolist() for each in found] == [
        [False, True, False],
        [False, True, False],
        [True, False, True],
    ]
