"""`sidecar compare` tells in what two evaluations differ."""

import pytest
from typer.testing import CliRunner

from sidecar.commands import cli
from sidecar.errors import SettingsError


def run(*given):
    """Return what the command prints, or raise its error."""
    result = CliRunner().invoke(cli.app, ["compare", *map(str, given)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout


@pytest.mark.parametrize("names", [("ckpt-1", "ckpt-2"), ("1", "2"), ("ckpt-1", "best"), ("1", "newest")])
def test_evaluations_are_named_in_several_ways(compared, names):
    """By name, by step, or by a word."""
    lines = run(compared, *names).splitlines()
    assert lines[0] == "ckpt-2 (step 2) compared with ckpt-1 (step 1)"
    assert lines[1] == "test/accuracy: 0.8 → 0.86, +0.06 (95 % 0.04506 to 0.0747, paired): better"
    assert lines[2].startswith("    60 fixed: 800, 801, ")
    assert lines[2].endswith(", 849 and 10 more (--csv)")
    assert lines[3] == "        801: 'a text\\nof two lines'"
    assert lines[4].endswith("images of them: on the status page, and in the table of --csv")


def test_all_changed_examples_are_a_table(compared):
    """For other programs."""
    lines = run(compared, "2", "1", "--csv").splitlines()
    assert lines[:3] == [
        "metric,example,change,input",
        "test/accuracy,800,broken,",
        r"test/accuracy,801,broken,a text\nof two lines",
    ]
    assert lines[3].startswith('test/accuracy,802,broken,"data:image/png;base64,iVBOR')
    assert len(lines) == 61


def test_the_same_evaluation_twice(compared):
    """It shows what the set could show."""
    assert "within noise" in run(compared, "1", "1")
    assert "in 80 % of all cases; half of it needs 4,000" in run(compared, "1", "1")


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("1", "9"), "'9' was not evaluated"),
        ((), "two checkpoints, found 1"),
        (("1",), "two checkpoints, found 1"),
    ],
)
def test_a_wrong_name_is_told(compared, names, words):
    """With names that exist."""
    with pytest.raises(SettingsError, match=words):
        run(compared, *names)
