"""List older evaluations on a page of their own."""

from publishing.page.conftest import FILES

from sidecar.publishing.page.evaluation import evaluations_page


def test_older_evaluations_without_any():
    """The page says so."""
    assert "no older ones" in evaluations_page([], "mnist", FILES)
