"""Save states as JSON with every bit, and refuse what is no saved state."""

import json

import pytest
from evaluation.states.ranks import extremes, one_by_one
from hypothesis import given
from hypothesis import strategies as st

from sidecar.errors import RecordError
from sidecar.evaluation.states import MinMax, PerExampleValues

FLOATS = st.floats(width=64)  # NaN, infinities and subnormals included


@given(st.lists(FLOATS, max_size=6))
def test_json_keeps_every_bit(values):
    """Extremes and values of examples survive strict JSON; before the all-reduce, as workers save them."""
    for reduction in ("max", "min"):
        state = extremes(reduction, [values])[0]
        back = MinMax.from_json(json.loads(json.dumps(state.to_json(), allow_nan=False)))
        assert back.pack().tolist() == state.pack().tolist()
    state = one_by_one([values])[0]
    back = PerExampleValues.from_json(json.loads(json.dumps(state.to_json(), allow_nan=False)))
    assert back.pack().tolist() == state.pack().tolist()


@pytest.mark.parametrize(
    ("kind", "parsed"),
    [
        (MinMax, {"reduction": "sum", "shape": [], "dtype": "float32", "bits": [0]}),
        (MinMax, {"reduction": "max", "shape": [], "dtype": "float32", "bits": [0.5]}),
        (MinMax, {"reduction": "max", "shape": [2], "dtype": "float32", "bits": [0]}),
        (MinMax, {"reduction": "max"}),
        (MinMax, []),
        (PerExampleValues, {"examples": 2, "places": [2], "bits": [1]}),
        (PerExampleValues, {"examples": 2, "places": [-1], "bits": [1]}),
        (PerExampleValues, {"examples": -2, "places": [], "bits": []}),
        (PerExampleValues, {"places": [0], "bits": [1]}),
    ],
)
def test_what_is_no_saved_state_is_refused(kind, parsed):
    """Files of workers are read by others, so nothing in them is believed."""
    with pytest.raises(RecordError, match="not the saved state"):
        kind.from_json(parsed)
