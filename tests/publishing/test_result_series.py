"""Name one sample for each number of an evaluation."""

import math

from records import A, make_result

from sidecar.protocol.records import EvalData, Slice, Value
from sidecar.publishing.result_series import FAMILIES, result_samples

HALF = Value(value=0.5, hex=(0.5).hex(), lower=0.25, upper=0.75, goal="max")
NAN = Value(value=None, hex="nan", goal="max")


def test_each_number_is_one_sample():
    """Give each sample the labels of its family."""
    result = make_result(
        examples={"test": 10},
        metrics={"test": {"accuracy": HALF, "loss": NAN}},
        classes={"test": {"accuracy": {"cat": HALF}}},
        data={"test": EvalData("f", 1, "batches")},
        slices={"test": {"night": Slice(examples=3, metrics={"accuracy": HALF})}},
    )
    found = list(result_samples("mnist", A, result))
    assert len({each[:2] for each in found}) == len(found)
    assert all(len(each.labels) == len(FAMILIES[each.family][0]) for each in found)
    values = {(each.family, each.labels[2:]): each.value for each in found}
    loss = values.pop(("sidecar_result", ("loss",)))
    assert math.isnan(loss)
    assert values == {
        ("sidecar_result", ("accuracy",)): 0.5,
        ("sidecar_result_lower", ("accuracy",)): 0.25,
        ("sidecar_result_upper", ("accuracy",)): 0.75,
        ("sidecar_result_class", ("accuracy", "cat")): 0.5,
        ("sidecar_result_slice", ("accuracy", "night")): 0.5,
        ("sidecar_result_examples", ()): 10,
        ("sidecar_result_step", ()): 1,
    }
