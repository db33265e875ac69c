"""Every metric class of the installed Keras works with several workers, or is refused by name with the reason."""

import pytest
from every_metric import CASES, TABLE, attempt, cases, table

pytestmark = [pytest.mark.tensorflow, pytest.mark.nightly]

COUNTS = {"Accuracy", "FalseNegatives", "FalsePositives", "TrueNegatives", "TruePositives"}
REFUSED = {
    "Mean": "takes values and their weights",
    "Sum": "takes values and their weights",
    "MeanTensor": "takes values and their weights",
}
OF_BATCHES = {"PearsonCorrelation(axis=None)", "ConcordanceCorrelation(axis=None)"}


@pytest.fixture(scope="module")
def tried():
    import keras
    import tf_keras

    libraries = {"Keras 3": keras, "tf_keras": tf_keras}
    return {title: {name: attempt(library, name) for name in cases(library)} for title, library in libraries.items()}


@pytest.mark.parametrize("title", ["Keras 3", "tf_keras"])
@pytest.mark.parametrize("name", CASES)
def test_a_metric_says_what_it_says_alone(tried, title, name):
    """Three ranks with uneven batches come to its own single-process value: to the bit where it counts examples."""
    one = tried[title].get(name)
    if one is None:
        pytest.skip(f"{title} has no {name}")
    if name in REFUSED:
        assert not one.works
        assert REFUSED[name] in one.refusal
        return
    assert one.works, one.refusal
    assert one.is_of_batches == (name in OF_BATCHES)
    exact = name in COUNTS or name.endswith("Accuracy")
    # Counted in float64 here and divided there in float32: one rounding apart.
    assert one.ours == pytest.approx(one.keras, rel=6e-8 if exact else 2e-6)


def test_the_table_of_the_docs_is_what_was_found(tried):
    """After a change of Keras or of ours: python tests/evaluation/backends/tensorflow/every_metric.py."""
    assert TABLE.read_text() == table(tried)
