"""Answers of all workers, in the order of the data; without the harness."""

import types

import numpy as np
import pytest

from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.metrics.metric import EvalBatch, EvalSetInfo
from sidecar.lm.answers import HarnessNumbers


def mean(values):
    return sum(values) / len(values)


RESULTS = {
    "results": {"set": {"alias": "set", "sample_len": 4, "acc,none": 0.5, "acc,strict": 1.0, "acc_stderr,none": "N/A"}},
    "samples": {"set": [{"filter": "none", "acc": each} for each in (1, 0, True, 0.0)]},
    "higher_is_better": {"set": {"acc": True}},
    "n-samples": {"set": {"original": 4, "effective": 4}},
    "tasks": {"set": types.SimpleNamespace(aggregation=lambda: {"acc": mean})},
    "version": "0",
    "estimates": {"set": {"pass@1": [0.0, 1.0, 1.0, 0.0]}},
}
"""As the harness returns them, for four documents."""


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_answers_of_all_ranks_stand_in_the_order_of_the_data(ranks):
    """Numbers to the bit, and texts, whatever rank had which batch."""
    numbers = np.array([[-1.5, 1], [-np.inf, 0], [0.1, 0], [-0.0, 1], [3e-320, 0]])
    texts = np.array(['"b"', '"a"', '["-0x1.8p+0", "0x1.0p+0"]', '["", true]', '"é"'], object)
    for rows, has_texts in ((numbers, False), (texts, True)):
        seen, begun = [], []
        aggregated = lambda answers, seen=seen: seen.append(answers) or RESULTS  # noqa: E731
        metric = HarnessNumbers("set", begun.append, aggregated, has_texts=has_texts)
        merged = None
        for rank in range(ranks):
            states = metric.states(EvalSetInfo(5, Shard(rank, ranks)))
            for first in range(5):
                if first % ranks == rank:
                    metric.add(states, EvalBatch(np.arange(1), rows[first : first + 1], None, first))
            if merged is None:
                merged = states
            else:
                for name, state in states.items():
                    merged[name].merge(state)
        values = metric.compute(merged).values
        expected = (
            ["b", "a", (-1.5, True), ("", True), "é"] if has_texts else [(a, bool(b)) for a, b in numbers.tolist()]
        )
        assert seen == [expected]
        assert begun == [5] * ranks
        assert values["acc"].value == 0.5
        assert values["acc"].goal == "max"
        assert (values["acc"].lower, values["acc"].upper) == pytest.approx((0.15, 0.85), abs=0.001)
        assert values["acc,strict"].lower is None
        assert (values["pass@1"].value, values["pass@1"].goal) == (0.5, "max")
        assert values["pass@1"].lower < 0.5 < values["pass@1"].upper
