"""A few sums stand for all predictions: any difference that matters shows in them, and rounding does not."""

import numpy as np
import pytest

from sidecar.evaluation.output_comparison import differing_outputs, no_outputs, summary

MADE = np.random.default_rng(4)
SCORES = MADE.normal(size=(64, 1000)).astype(np.float32)


def groups(*predictions):
    rows = []
    for arrays in predictions:
        rows.append(no_outputs())
        rows[-1][2] = summary(arrays)
    return list(differing_outputs(rows))


@pytest.mark.parametrize(
    "other",
    [
        [SCORES * 1.01],
        [SCORES[:, ::-1]],
        [SCORES[::-1]],
        [SCORES[:32]],
        [SCORES + np.where(np.arange(1000) == 3, 0.5, 0).astype(np.float32)],
        [np.where(SCORES > 3, np.nan, SCORES)],
        [SCORES, SCORES[:, 0]],
    ],
)
def test_what_differs_is_found(other):
    assert groups([SCORES], other, [SCORES]) == [(2, [[0, 2], [1]])]


@pytest.mark.parametrize(
    "other",
    [
        [SCORES * np.float32(1 + 1e-6)],
        [SCORES + MADE.normal(scale=1e-6, size=SCORES.shape).astype(np.float32)],
        [SCORES, np.array(["texts"], object), np.zeros(8, np.uint8)],
    ],
)
def test_rounding_texts_and_digests_do_not_matter(other):
    assert groups([SCORES], other) == []
    assert groups([np.full(3, np.nan)], [np.full(3, np.nan)]) == []


def test_numbers_of_16_bits_round_more():
    half = SCORES.astype(np.float16)
    assert groups([half], [half * np.float16(1.001)]) == []
    assert groups([half], [half * np.float16(1.1)]) != []
    assert groups([SCORES + 1j * SCORES], [SCORES - 1j * SCORES]) != []
