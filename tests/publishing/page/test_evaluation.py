"""Show one evaluation with everything that the journal knows."""

from publishing.page.conftest import FILES, Seen
from served_run import value

from sidecar.publishing.evaluation_archive.reader import details_json
from sidecar.publishing.page.evaluation import evaluation_page, matrix_picture, phases_picture


def test_the_page_of_an_evaluation(run):
    """Everything the journal knows, and notes at the top."""
    run.plan("ckpt-1", 100)
    classes = {"test": {"recall": {"cat": value(0.25), "dog": value(0.75)}}}
    run.succeed({"test": {"accuracy": value(0.5)}}, classes=classes, changed=("test",), notes=("read this",))
    details = details_json(run.history.entries[-1]) | {"log": None}
    assert "keep_states" in evaluation_page(details | {"states_removed": True}, "mnist", FILES)
    found = Seen(evaluation_page(details, "mnist", FILES))
    assert "keep_states" not in found.text
    for words in ("read this", "do not compare", "0.25", "dog", "3.20 s", "10.0.0.2:21000", "9" * 64, "tensorflow"):
        assert words in found.text
    assert found.open == []


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
    assert [f'class="phase-{place}"' in bar for place in (3, 4, 0)] == [True, True, False]  # whatever else is there
