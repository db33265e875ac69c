"""Add up the states of metrics of torchmetrics, or find that they are no sums."""

import pytest
from evaluation.backends.torch.torchmetrics_tasks import (
    BATCH,
    EXAMPLES,
    add_a_variance,
    alone,
    keep_the_last,
    listed,
    number,
    own,
    scores,
    task,
    tensors,
)
from tests_torch import result_of_ranks

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:Metric .* will save all:UserWarning"),
]


@pytest.fixture
def checkpoint(tmp_path):
    import torch
    from torch import nn

    torch.save(nn.Sequential(nn.Identity(), nn.Linear(1, 1)).state_dict(), tmp_path / "step-1.pt")
    return tmp_path / "step-1.pt"


IN_TURN = {
    "a window": (lambda m: m.aggregation.RunningMean(), "window"),
    "a reduction of its own": (lambda _: own(reduction=lambda x: x.sum(0)), "reduction"),
    "a mean over ranks": (lambda _: own(add_a_variance, reduction="mean"), "'total'"),
    "not from zero": (lambda _: own(first=1.0), "zero"),
    "the last batch": (lambda _: own(keep_the_last), "merged"),
    "a number of each batch": (lambda _: own(add_a_variance), "divided into batches"),
    "lists of texts": (lambda _: listed(), "add_state"),
    "a formula that merges wrong": (lambda m: m.NormalizedRootMeanSquaredError(), "merged"),
}


@pytest.mark.parametrize("case", IN_TURN)
def test_a_metric_that_cannot_be_merged_is_updated_in_turn(checkpoint, case):
    """Worker 0 has all batches of the set, in order: the number is that of torchmetrics, and a note says so."""
    import torchmetrics

    make, reason = IN_TURN[case]
    data = {"predict": scores, "labels": lambda _y, x: x[:, 0] + x[:, 1] if case != "a window" else 0 * x[:, 0] + 1}
    results = [
        result_of_ranks(task(lambda: [make(torchmetrics)], **data), checkpoint, ranks)["test"] for ranks in (1, 2, 3)
    ]
    assert results[0] == results[1] == results[2]
    metric = make(torchmetrics)
    if case == "a window":
        for of_x in tensors()[0].split(BATCH):
            metric.update(scores(of_x))
        expected = metric.compute()
    else:
        expected = alone(metric, **data)
    (found,) = results[0].values.values()
    assert number(found) == float(expected)
    (note,) = results[0].notes
    assert reason in note
    assert "worker 0 evaluates this set alone" in note


def test_states_that_prove_to_be_no_sums(checkpoint):
    """A state that is equal on the first batch and its parts, and differs later: the evaluation begins again."""
    import torch

    def update(self, preds, _target):
        self.total = torch.tensor(float(len(preds) < BATCH // _PARTS))

    from sidecar.evaluation.backends.torch.torchmetrics_metric import _PARTS

    results = [
        result_of_ranks(task(lambda: [own(update, reduction="mean")], predict=scores), checkpoint, ranks)["test"]
        for ranks in (1, 2, 3)
    ]
    assert results[0] == results[1] == results[2]
    assert number(results[0].values["own"]) == float(EXAMPLES % BATCH < BATCH // _PARTS)
