"""Results of a run as plain records, without a daemon."""

import pytest
from commands import conftest

from sidecar import results
from sidecar.errors import SettingsError

compared = conftest.compared


def test_history_has_the_columns_of_the_export(compared):
    """Every number of every evaluation, oldest first; the state may lie elsewhere."""
    found = results.history(compared)
    assert [(one["checkpoint"], one["metric"], one["value"]) for one in found] == [
        ("ckpt-1", "accuracy", 0.8),
        ("ckpt-2", "accuracy", 0.86),
    ]
    assert results.history("elsewhere", "ckpts", state_dir=compared / ".sidecar") == found
    pandas = pytest.importorskip("pandas")
    assert pandas.DataFrame(found)["examples"].tolist() == [1000, 1000]


@pytest.mark.parametrize("names", [("ckpt-1", "ckpt-2"), (1, 2), ("1", "best"), ("1", "newest")])
def test_two_evaluations_are_compared(compared, names):
    """By name, step or word, with what `sidecar compare` prints."""
    (found,) = results.compare(compared, *names, best_metric="test/accuracy")
    assert (found["metric"], found["rule"], found["verdict"]) == ("test/accuracy", "paired", "better")
    assert found["difference"] == pytest.approx(0.06)
    assert (len(found["fixed"]), found["broken"]) == (60, [])
    assert found["inputs"][801] == {"text": "a text\nof two lines"}
    assert found["inputs"][802]["image"].startswith("data:image/png;base64,")


def test_what_is_not_there_is_told(compared, tmp_path):
    """A run, and an evaluation."""
    with pytest.raises(SettingsError, match="no run"):
        results.history(tmp_path)
    with pytest.raises(SettingsError, match="'9' was not evaluated"):
        results.compare(compared, "1", "9")
