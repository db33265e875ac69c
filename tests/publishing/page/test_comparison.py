"""The page of a comparison, with what a comparison may lack."""

import pytest
from publishing.page.conftest import Seen

from sidecar.publishing.page.comparison import comparison_page
from sidecar.publishing.page.document import Files

EVIL = '"><script>alert(1)</script>'


def found(**of):
    """A comparison of one number."""
    row = {"plan": 7, "checkpoint": EVIL, "step": None, "step_source": None, "completed_at": "2026-01-01T00:00:00Z"}
    one = {"metric": EVIL, "label": EVIL, "old": 0.5, "new": 0.25, "difference": -0.25, "lower": None, "upper": None}
    one |= {"rule": "value", "verdict": "", "note": "", "fixed": [], "broken": [], "fixed_count": 0, "broken_count": 0}
    one |= {"inputs": {}, "changes_known": False}
    return {
        "new": row,
        "old": row | {"plan": 5},
        "differences": [one | of],
        "confusion": [],
        "directory": "/data/my ckpts",
    }


@pytest.mark.parametrize(
    ("of", "words"),
    [
        ({}, "-0.25noise unknown"),
        ({"lower": -0.5, "upper": 0.125}, "-0.5 to 0.125within noise"),
        ({"lower": -0.5, "upper": -0.125, "verdict": "worse"}, "worse"),
        ({"rule": "none", "difference": None, "note": EVIL}, f"cannot be compared: {EVIL}"),
        ({"new": None, "difference": None}, "0.5not finite"),
        ({"broken": [3, 5], "broken_count": 51}, "51 broken3, 5 …"),
        ({"fixed": [3, 5], "fixed_count": 2, "inputs": {3: {"text": EVIL}}}, f"2 fixed{EVIL}35"),
        ({"broken": [3], "broken_count": 1, "inputs": {3: {"image": EVIL}}}, "1 broken3"),
        ({"label": "", "changes_known": True}, f"No example changed from wrong to right or back: {EVIL}."),
        ({"label": "", "note": "none saved"}, f"not known which examples changed.{EVIL}: none saved"),
        ({"label": "", "rule": "paired"}, f"not known which examples changed.{EVIL}: its saved values"),
    ],
)
def test_a_number_tells_what_is_known(of, words):
    """Hostile names do nothing, and the command to type is whole."""
    seen = Seen(comparison_page(found(**of), "mnist", Files()))
    assert words in seen.text
    assert "'/data/my ckpts'" in seen.text
    assert seen.open == []


def test_the_change_of_a_confusion_matrix():
    """It is below the examples that changed."""
    one = {"set": "test", "metric": EVIL, "classes": ["cat", EVIL], "matrix": [[3.0, -3.0], [0.0, -1.0]]}
    seen = Seen(comparison_page(found() | {"confusion": [one]}, "mnist", Files()))
    assert f"Change of the confusion matrix test/{EVIL}" in seen.text
    assert seen.open == []
