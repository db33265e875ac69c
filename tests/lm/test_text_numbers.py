"""The numbers of texts from the losses of their windows, and their intervals; without a model."""

import math

import numpy as np
import pytest

from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.intervals import clustered
from sidecar.evaluation.metrics.metric import EvalBatch, EvalSetInfo
from sidecar.lm.text_numbers import TextNumbers
from sidecar.lm.token_windows import Documents, Window

SIZES = (3, 1, 2)
WINDOWS = [Window(2, -1, 0, 2), Window(0, -1, 0, 2), Window(1, -1, 0, 1), Window(0, 1, 2, 3)]


def computed(documents, losses, ranks=1):
    metric, merged = TextNumbers(documents, WINDOWS), None
    for rank in range(ranks):
        states = metric.states(EvalSetInfo(4, Shard(rank, ranks)))
        for first in range(rank, 4, ranks):
            metric.add(states, EvalBatch(np.arange(1), np.array(losses[first : first + 1]), None, first))
        if merged is None:
            merged = states
        else:
            merged["losses"].merge(states["losses"])
    return metric.compute(merged)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_losses_are_divided_by_tokens_bytes_and_words(ranks):
    """Numbers are those of all documents and of each slice; the interval is that of a ratio over documents."""
    tokens = [np.arange(size) for size in SIZES]
    documents = Documents(tokens, words=(2, 1, 1), sizes=(9, 2, 5), slices=("web", "code", "web"), prefix=0)
    found = computed(documents, [1.5, 2.0, 0.25, 0.75], ranks)
    assert found.values["loss"].value == 4.5 / 6
    assert found.values["perplexity"].value == math.exp(0.75)
    assert found.values["bits_per_byte"].value == pytest.approx(4.5 / 16 / math.log(2), rel=1e-15)
    assert found.values["byte_perplexity"].value == math.exp(4.5 / 16)
    assert found.values["word_perplexity"].value == math.exp(4.5 / 4)
    assert {each.goal for each in found.values.values()} == {"min"}
    lower, upper = clustered((2.75, 0.25, 1.5), SIZES)
    assert found.values["loss"].lower == lower < 0.75
    assert found.values["perplexity"].upper == pytest.approx(math.exp(upper))
    assert {name: each.value for name, each in found.classes["loss"].items()} == {"code": 0.25, "web": 4.25 / 5}
    assert found.classes["loss"]["code"].lower is None
    assert "3 documents with 6 predicted tokens" in found.notes[0]


def test_packed_tokens_have_neither_bytes_nor_slices():
    """An infinite loss is a number, and has no interval."""
    found = computed(Documents([np.arange(size) for size in SIZES]), [1.0, math.inf, 1.0, 1.0])
    assert list(found.values) == ["loss", "perplexity"]
    assert found.classes == {}
    assert found.values["loss"].hex == "inf"
    assert found.values["loss"].lower is None
    assert computed(Documents([np.arange(size) for size in SIZES]), [3000.0] * 4).values["perplexity"].hex == "inf"
