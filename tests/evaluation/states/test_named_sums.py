"""Sum numbers whose names the first batch tells."""

import numpy as np
import pytest
from evaluation.backends.python.tasks import (
    run,
    task,
)

from sidecar.metrics import Accuracy, Sums


def test_named_sums_go_through_the_saves_of_ranks(checkpoint, tmp_path):
    """Ranks of this framework meet in their saves, where such sums are read from a text."""
    sums = Sums(
        lambda y, predictions: {"hits": (predictions.argmax(1) == y).sum(), "all": len(y)},
        lambda totals: totals["hits"] / totals["all"],
        name="share",
    )
    ends = run(task(metrics=lambda: [sums, Accuracy()]), checkpoint, tmp_path / "a", ranks=2)
    for end in ends:
        values = end.result.metrics["test"]
        assert values["share"].hex == values["accuracy"].hex


@pytest.mark.parametrize("ranks", [1, 2, pytest.param(3, marks=pytest.mark.nightly)])
def test_large_sums_are_told_with_the_remedy(checkpoint, tmp_path, ranks):
    """Whether one worker passes the limit or all together do."""
    for large in (np.int64(2**61), 2**70):
        metrics = [Sums(lambda *_, large=large: {"sum": large}, lambda totals: totals["sum"])]
        ends = run(task(metrics=lambda metrics=metrics: metrics), checkpoint, tmp_path / str(large), ranks)
        told = [str(end) for end in ends if end is not None]
        assert told
        assert all("float(total)" in text for text in told)
