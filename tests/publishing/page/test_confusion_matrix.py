"""Pictures of confusion matrices say in words what they show."""

from sidecar.publishing.page.confusion_matrix import matrix_picture


def test_counts():
    """A class without examples has a row without shades."""
    found = matrix_picture(["cat", "<dog>"], [[3, 1], [0, 0]])
    assert "3 of 4 are on the diagonal" in found
    assert "actual cat, predicted &lt;dog&gt;: 1 (25.0% of actual cat)" in found
    assert found.count('class="right"') == found.count('class="wrong"') == 1


def test_changes():
    """More on the diagonal is good, and more beside it is bad; the largest change has the deepest shade."""
    found = matrix_picture(["cat", "dog", "owl"], [[4.0, -2.0, -2.0], [0.0, -1.0, 1.0], [0.0, 0.0, 0.0]], of="changes")
    assert "Change of the confusion matrix of 3 classes: +3 on the diagonal" in found
    assert "actual cat, predicted cat: +4" in found
    assert "actual dog, predicted dog: -1" in found
    assert (found.count('class="right"'), found.count('class="wrong"')) == (3, 2)
    assert found.count('fill-opacity="1.000"') == 1
    assert "Changes as a table" in found
