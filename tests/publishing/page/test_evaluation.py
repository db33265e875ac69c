"""Show one evaluation with everything that the journal knows."""

from publishing.page.conftest import FILES, Seen
from served_run import value

from sidecar.publishing.evaluation_archive.reader import details_json
from sidecar.publishing.page.evaluation import evaluation_page


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
