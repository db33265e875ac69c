"""Write lists of arrays as bytes and read them back, without any code in them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.evaluation.states.array_bytes import decode, encode

LISTS = [[np.arange(6, dtype="int8").reshape(2, 3), np.array(True)], [], [np.array([np.nan, -0.0]), np.zeros((0, 4))]]


def test_lists_come_back_with_types_shapes_and_bits():
    """Keep empty lists and empty arrays as well."""
    found = decode(encode(LISTS))
    assert [[(each.dtype, each.shape, each.tobytes()) for each in arrays] for arrays in found] == [
        [(each.dtype, each.shape, each.tobytes()) for each in arrays] for arrays in LISTS
    ]


@pytest.mark.parametrize("array", [np.array(["text"]), np.array([object()]), np.array(["2026-01-01"], "datetime64[D]")])
def test_only_numbers_are_written(array):
    """The error about an array without numbers names its dtype."""
    with pytest.raises(TypeError, match=str(array.dtype).partition("[")[0]):
        encode([[array]])


@given(st.data())
def test_damaged_bytes_are_an_error(data):
    """Raise ValueError or return arrays, whatever the bytes are."""
    content = encode(LISTS).copy()
    cut = data.draw(st.integers(0, len(content)))
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 7))
    try:
        decode(content[:cut])
    except ValueError:
        return


def test_bytes_behind_the_arrays_are_an_error():
    """Say how many there are."""
    content = np.append(encode(LISTS), np.uint8(0))
    with pytest.raises(ValueError, match=str(len(content))):
        decode(content)
