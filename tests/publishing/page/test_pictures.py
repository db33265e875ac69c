"""Draw pictures that also say what they show."""

from sidecar.publishing.page.pictures import matrix_picture, phases_picture


def test_pictures_name_what_they_show():
    """For readers that do not see them; a class without examples has a row without shades."""
    found = matrix_picture(["cat", "<dog>"], [[3, 1], [0, 0]])
    assert "3 of 4 are on the diagonal" in found
    assert "actual cat, predicted &lt;dog&gt;: 1 (25.0% of actual cat)" in found
    assert found.count('class="right"') == found.count('class="wrong"') == 1
    bar = phases_picture({"restore": 1.0, "evaluate": 3.0, "save": 0.0})
    assert 'width="750.00"' in bar
    assert "evaluate: 3.000 s" in bar
    assert phases_picture({"restore": 0.0})
