"""Note metrics that take some batches for probabilities and others for logits."""

import pytest
from evaluation.backends.torch.batch_models import (
    EXAMPLES,
    dataset,
    task,
)

from sidecar import EvalSet
from sidecar.evaluation.failures import EvaluationError

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("name", ["BinaryAccuracy", "MultilabelF1Score", "MulticlassAUROC", "MulticlassAccuracy"])
@pytest.mark.parametrize("scale", ["both", "logits", "probabilities"])
@pytest.mark.drawn(4)
def test_a_torchmetric_that_reads_batches_in_two_ways_is_noted(evaluate, name, scale):
    """All logits of a batch may lie from 0 to 1 by chance: torchmetrics then takes them for probabilities."""
    import torch
    from torch.utils.data import Subset
    from torchmetrics import classification

    def predict(model, x):
        logits = torch.clamp(model(x), -1, 1)
        if scale == "probabilities":
            return logits.softmax(1)
        return torch.where(x[:, :1] > 1.3, logits - 2, logits.abs()) if scale == "both" else logits - 2

    def step(model, batch):
        x, y = batch
        predictions = predict(model, x)
        if name.startswith("Binary"):
            return y, predictions[:, 0]
        return (y if name.startswith("Multiclass") else torch.stack([y, 1 - y], 1)), predictions

    def divided(shard):
        return Subset(dataset(), range(shard.rank, EXAMPLES, shard.world_size))

    metric = getattr(classification, name)
    sizes = [] if name.startswith("Binary") else [2]
    given = {"step": step, "loss": None, "metrics": lambda: [metric(*sizes)]}
    notes = evaluate(task(**given)).notes
    if scale == "both" and name != "MulticlassAccuracy":
        assert any(note.startswith(f"{name.lower()} takes a batch for probabilities") for note in notes)
        with pytest.raises(EvaluationError, match="from 0 to 1"):
            evaluate(task(**given, eval_sets={"test": EvalSet(divided)}), ranks=(2,))
    else:
        assert notes == ()
        evaluate(task(**given, eval_sets={"test": EvalSet(divided)}), ranks=(2,))
