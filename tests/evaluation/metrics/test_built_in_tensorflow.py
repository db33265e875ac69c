"""Use built-in metrics next to those of Keras."""

import pytest

pytestmark = pytest.mark.tensorflow


@pytest.mark.nightly
def test_built_in_metrics_beside_those_of_keras(trained, digits, evaluate):
    """In one task, of the same logits: the same numbers, and to the bit for any number of ranks."""
    from sidecar.metrics import AUC, Accuracy, ConfusionMatrix, LogLoss, TopK

    def metrics():
        built_in = [Accuracy(name="own"), TopK(2), LogLoss(from_logits=True), ConfusionMatrix(10), AUC(3)]
        return [*digits.accuracy(), *built_in]

    task = digits.make(eval_sets={"test": digits.held_out, "weighted": digits.weighted}, metrics=metrics)
    one, three = (evaluate(task, trained.path("model"), ranks=ranks) for ranks in (1, 3))
    assert one.hexes == three.hexes
    expected = trained.expected["model"]
    plain, weighted = one.values["test"], one.values["weighted"]
    assert plain["own"].hex == plain["accuracy"].hex == (expected["correct"] / expected["count"]).hex()
    assert (plain["own"].lower, plain["own"].upper) == (plain["accuracy"].lower, plain["accuracy"].upper)
    assert plain["precision_micro"].value == plain["accuracy"].value
    assert plain["accuracy"].value < plain["top_2_accuracy"].value < 1
    assert 0.9 < plain["roc_auc"].value <= 1
    assert weighted["own"].hex == weighted["accuracy"].hex
    assert weighted["own"].lower < weighted["own"].value < weighted["own"].upper
    regularised = expected["loss"] - plain["log_loss"].value
    assert regularised > 0
    assert weighted["log_loss"].value + regularised == pytest.approx(expected["loss_weighted_mean"], rel=1e-6)
