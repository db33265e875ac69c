"""Two evaluations of an ordinary dataset are compared example by example, for any number of workers."""

from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
from journals import closed_by_workers
from tests_torch import torch_evaluator

from sidecar.coordination.storage import PosixStorage
from sidecar.evaluation.npy_table import NpyTable
from sidecar.evaluation.rank_evaluation import _data
from sidecar.evaluation.task import Task
from sidecar.metrics import Accuracy
from sidecar.retention.saves.comparison import confidence_after
from sidecar.retention.saves.comparison_store import ComparisonStore

pytestmark = pytest.mark.torch

EXAMPLES = 407


def closed(root, task, checkpoint, number, ranks):
    """Evaluate a checkpoint on some ranks, with saved predictions, as a worker group of plan `number` does."""
    evaluators, kept, merged = [torch_evaluator(task, rank, ranks) for rank in range(ranks)], [], None
    for evaluator in evaluators:
        (stream,) = evaluator.read(lambda: None)
        evaluator.restore(str(checkpoint))()
        evaluator.digest()
        kept.append([])
        states = evaluator.evaluate(lambda: None, lambda _, rows: kept[-1].append(rows))["test"]
        for name, state in () if merged is None else states.items():
            merged[name].merge(state)
        merged = merged or states
    numbers = evaluators[0].compute({"test": merged})["test"]
    made = closed_by_workers(number, ranks, EXAMPLES, dict(numbers.values), _data(stream))
    for folder, batches in zip(made.outcome.result.saves, kept, strict=True):
        table = NpyTable(Path(root, folder, "predictions", "test"))
        for rows in batches:
            table.add(rows)
        table.finish()
        table.close()
    return made


@pytest.mark.parametrize(("old_ranks", "new_ranks"), [(1, 1), (1, 2), (3, 2)])
def test_an_ordinary_dataset_is_paired(tmp_path, old_ranks, new_ranks):
    """Its contents are compared by sampling, and the interval is that of the pairs."""
    import torch

    random = np.random.default_rng(2)
    x = torch.tensor(random.normal(size=(EXAMPLES, 5)), dtype=torch.float32)
    exact = torch.tensor(random.normal(size=(3, 5)), dtype=torch.float32)
    y = (x @ exact.T).argmax(1)
    task = Task(
        lambda: torch.nn.Linear(5, 3, bias=False),
        {"test": lambda: torch.utils.data.TensorDataset(x, y)},
        metrics=lambda: [Accuracy()],
        batch_size=16,
        predictions=True,
    )
    found, right = [], []
    for number, (noise, ranks) in enumerate(((0.3, old_ranks), (0.1, new_ranks)), 1):
        weight = exact + noise * torch.tensor(random.normal(size=(3, 5)), dtype=torch.float32)
        torch.save({"weight": weight}, tmp_path / f"step-{number}.pt")
        found.append(closed(tmp_path, task, tmp_path / f"step-{number}.pt", number, ranks))
        right.append(((x @ weight.T).argmax(1) == y).numpy().astype(float))
    assert found[0].outcome.result.data["test"].sampled == 8
    compared = ComparisonStore(PosixStorage(tmp_path), tmp_path, "test/accuracy").compare(found[1], found[0])
    assert (compared.rule, compared.examples, compared.note) == ("paired", EXAMPLES, "")
    assert compared.difference == pytest.approx((right[1] - right[0]).mean())
    differing, z = np.count_nonzero(right[1] != right[0]), NormalDist().inv_cdf((1 + confidence_after(1)) / 2)
    assert compared.upper - compared.lower == pytest.approx(2 * z * np.sqrt(differing) / EXAMPLES, rel=0.1)
