"""Tell labels from predictions by the names of parameters."""

import pytest

from sidecar.evaluation.metrics.argument_names import first_kind, labels_first


@pytest.mark.parametrize(
    ("parameters", "first"),
    [
        ("y_true, y_pred", 0),
        ("y, p", 0),
        ("preds, target", 1),
        ("input, target, weight=None", 1),
        ("out, y", 1),
        ("obs, sim", 0),  # hydrology
        ("forecast, observed", 1),
        ("gold, estimate", 0),
        ("a, b", None),
        ("y, t", None),  # some books call the output y, and the target t
        ("probs, true_probs", None),
        ("y_true, *, y_pred", None),
        ("batch", None),
    ],
)
def test_both_names_must_say_it(parameters, first):
    """One name alone may mean anything."""
    function = eval(f"lambda {parameters}: 0")
    assert first_kind(function) == first
    assert (labels_first(function) is function) == (first != 1)


def test_methods_and_modules_are_looked_at():
    """`self` is no argument, and a module is called by its `forward`."""

    class Loss:
        def forward(self, preds, target):
            return preds, target

        __call__ = forward

    assert first_kind(Loss()) == first_kind(Loss().forward) == 1
    assert labels_first(Loss())("labels", "predictions") == ("predictions", "labels")
