"""Tokens are drawn for each row by a generator of its own; without the harness."""

import pytest

from sidecar.evaluation.failures import EvaluationError
from sidecar.lm.sampling import drawing, seed

pytestmark = pytest.mark.torch


def drawn(seeds, scores, tokens=1):
    """So many tokens for each row, from the same scores."""
    draw = drawing(seeds)
    chosen = []
    for _ in range(tokens):
        left = draw(None, scores)
        assert left.isfinite().sum(-1).tolist() == [1] * len(seeds)
        chosen.append(left.argmax(-1))
    return [[int(each[row]) for each in chosen] for row in range(len(seeds))]


def test_rows_do_not_depend_on_their_neighbours():
    """A row alone, among others, and at another place has the same tokens; no generator of torch is touched."""
    import torch

    scores = torch.randn(5, 50, generator=torch.Generator().manual_seed(1))
    before = torch.get_rng_state()
    all_rows = drawn([3, 4, 5, 6, 7], scores, 20)
    assert drawn([5], scores[2:3], 20) == all_rows[2:3]
    assert drawn([7, 3], scores[[4, 0]], 20) == [all_rows[4], all_rows[0]]
    assert drawn([8], scores[2:3], 20) != all_rows[2:3]
    assert torch.equal(torch.get_rng_state(), before)


def test_tokens_have_the_probabilities_of_their_scores():
    """4,000 rows are drawn; a token that was filtered out never comes, also at either end."""
    import torch

    probabilities = torch.tensor([0.0, 0.1, 0.6, 0.3, 0.0])
    rows = drawn([seed("weights", "task", number, 0) for number in range(4000)], probabilities.log().expand(4000, 5))
    counts = torch.bincount(torch.tensor(rows)[:, 0], minlength=5) / 4000
    assert counts.tolist() == pytest.approx(probabilities.tolist(), abs=0.03)  # four standard deviations
    assert counts[0] == counts[4] == 0


def test_seeds_are_those_of_the_weights_the_document_and_the_answer():
    """Each of them gives another one."""
    given = [
        ("a", "t", 1, 0),
        ("b", "t", 1, 0),
        ("a", "u", 1, 0),
        ("a", "t", 2, 0),
        ("a", "t", 1, 1),
        ("a", "t", 11, 0),
    ]
    assert len({seed(*each) for each in given}) == len(given)
    assert seed(*given[0]) == seed(*given[0]) < 2**64


def test_scores_that_are_no_numbers_are_refused():
    """A token must not be drawn from them."""
    import torch

    with pytest.raises(EvaluationError, match="NaN or infinite"):
        drawing([1])(None, torch.tensor([[0.0, float("nan")]]))
