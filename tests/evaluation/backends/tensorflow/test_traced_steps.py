"""Trace a step once for all checkpoints and every remainder."""

import pytest

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize(
    ("examples", "batch", "is_compiled", "numbers"),
    [
        (65, 64, False, (1, 3)),
        (65, 64, True, (1, 3)),
        *(
            pytest.param(*each, (1, 2, 3, 4), marks=pytest.mark.nightly)
            for each in (
                *((65, 64, False), (397, 32, False), (397, 500, False), (96, 32, False), (9, 1, False)),
                *((65, 64, True), (397, 32, True)),
            )
        ),
    ],
)
@pytest.mark.drawn(1)
def test_every_remainder_gives_the_same_bits(trained, digits, evaluate, examples, batch, is_compiled, numbers):
    """1 to 4 ranks, whatever is left over, also where a rank has no batch at all: the same bits."""
    what = {"metrics": None, "loss": None} if is_compiled else {}
    build = digits.compiled if is_compiled else digits.conv
    task = digits.make(build, {"test": lambda: digits.held_out().take(examples)}, batch_size=batch, **what)
    found = [evaluate(task, trained.path("model"), ranks=ranks) for ranks in numbers]
    assert all(each.hexes == found[0].hexes for each in found)
    assert all(each.examples == {"test": examples} for each in found)
    assert len(found[0]["loss"].hex) > 4


@pytest.mark.parametrize("is_compiled", [False, True])
def test_one_trace_for_all_checkpoints(trained, digits, evaluate, is_compiled):
    """Later checkpoints and the short last batch need no second trace, and find other numbers."""
    what = {"metrics": None, "loss": None} if is_compiled else {}
    task = digits.make(digits.compiled if is_compiled else digits.conv, **what)
    first, later, again = evaluate(task, *(trained.path(kind) for kind in ("model", "later", "model")), ranks=2)
    assert first.traces == later.traces == again.traces == [1, 1]
    assert first.hexes == again.hexes != later.hexes


def test_sets_of_different_kinds(trained, digits, evaluate):
    """One set with weights and one without: each kind is measured and traced by itself."""
    task = digits.make(eval_sets={"test": digits.held_out, "weighted": digits.weighted})
    found = evaluate(task, trained.path("model"), ranks=2)
    check_of = trained.expected["model"]
    assert found["loss"].value == pytest.approx(check_of["loss"], rel=1e-6)
    assert found.values["weighted"]["loss"].value == pytest.approx(check_of["loss_weighted"], rel=1e-6)
    assert found.traces == [2, 2]


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.drawn(1)
def test_a_set_with_its_own_metrics_and_loss(trained, digits, evaluate, is_compiled):
    """It has none of the task's and a trace of its own, also next to a compiled model: each as if it were alone."""
    import keras

    from sidecar import EvalSet

    what = {"metrics": None, "loss": None} if is_compiled else {}
    build = digits.compiled if is_compiled else digits.conv
    own = {"metrics": lambda: [keras.metrics.SparseTopKCategoricalAccuracy(2, name="of_two")]}
    sets = {"test": digits.held_out, "own": EvalSet(digits.held_out, **own)}
    path = trained.path("model")
    found = evaluate(digits.make(build, sets, **what), path, ranks=2)
    alone = evaluate(digits.make(build, **what), path)
    assert found.values["test"] == alone.values["test"]
    assert found.values["own"] == evaluate(digits.make(build, loss=None, **own), path).values["test"]
    assert list(found.values["own"]) == ["of_two"]
    assert found.traces == [2, 2]
