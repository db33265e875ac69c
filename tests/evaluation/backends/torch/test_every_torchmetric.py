"""Every public class of torchmetrics gives its own number with several workers, or is refused with the reason."""

import pytest
from every_torchmetric import TABLE, every, table

pytestmark = [pytest.mark.torch, pytest.mark.nightly, pytest.mark.timeout(900)]

REFUSED = {
    **dict.fromkeys(("MetricTracker", "MinMaxMetric"), "several evaluations"),
    **dict.fromkeys(("CatMetric",), "more numbers"),
}
CURVES = ("ROC", "PrecisionRecallCurve")


@pytest.fixture(scope="module")
def tried():
    return every()


def test_a_class_is_right_or_refused(tried):
    """Equal bits for 1 to 4 ranks, and the number of torchmetrics in one process; nothing else is published."""
    wrong = {name: one.reason for name, one in tried.items() if one.kind == "wrong"}
    assert wrong == {}
    refused = {name: one.reason for name, one in tried.items() if one.kind == "refused"}
    expected = {name: reason for name, reason in REFUSED.items() if name in tried}
    expected |= {name: "numbers" for name in tried if name.endswith(CURVES) and "AUROC" not in name}
    assert refused.keys() == expected.keys()
    assert [name for name, reason in expected.items() if reason not in refused[name]] == []


def test_the_table_of_the_docs_is_what_was_found(tried):
    """After a change of torchmetrics or of ours: python tests/evaluation/backends/torch/every_torchmetric.py."""
    assert TABLE.read_text() == table(tried)
