"""`sidecar compare` tells in what two evaluations differ."""

from dataclasses import replace

import pytest
from retention.saves.conftest import LABELS, closed, save, scores
from typer.testing import CliRunner

from sidecar.commands import cli
from sidecar.coordination.journal import outcome_path, plan_path
from sidecar.coordination.run import open_run
from sidecar.coordination.storage import PosixStorage
from sidecar.errors import SettingsError
from sidecar.protocol.codec import dumps
from sidecar.protocol.records import group_id


@pytest.fixture
def folder(tmp_path):
    """A directory of checkpoints with two evaluations, of which the second answers 60 more right."""
    root = tmp_path / "ckpts" / ".sidecar" / "ckpts"
    root.mkdir(parents=True)
    storage = PosixStorage(root)
    run = open_run(storage, 0.0)
    for number, right in ((1, 800), (2, 860)):
        one = closed(number, right)
        result = replace(one.outcome.result, group=group_id(one.plan.members))
        outcome = replace(one.outcome, run=run, result=result)
        one = replace(one, plan=replace(one.plan, run=run, evaluated=number - 1), outcome=outcome)
        save(root, one, {"y": LABELS, "predictions": scores(right)})
        storage.create(plan_path(number), dumps(one.plan))
        storage.create(outcome_path(number), dumps(one.outcome))
    return tmp_path / "ckpts"


def run(*given):
    """Return what the command prints, or raise its error."""
    result = CliRunner().invoke(cli.app, ["compare", *map(str, given)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout


@pytest.mark.parametrize("names", [("ckpt-1", "ckpt-2"), ("1", "2"), ("ckpt-1", "best"), ("1", "newest")])
def test_evaluations_are_named_in_several_ways(folder, names):
    """By name, by step, or by a word."""
    lines = run(folder, *names).splitlines()
    assert lines[0] == "ckpt-2 (step 2) compared with ckpt-1 (step 1)"
    assert lines[1] == "test/accuracy: 0.8 → 0.86, +0.06 (95 % 0.04506 to 0.0747, paired): better"
    assert lines[2].startswith("    60 fixed: 800, 801, ")
    assert lines[2].endswith(", 849 and 10 more (--csv)")


def test_all_changed_examples_are_a_table(folder):
    """For other programs."""
    lines = run(folder, "2", "1", "--csv").splitlines()
    assert lines[:2] == ["metric,example,change", "test/accuracy,800,broken"]
    assert len(lines) == 61


def test_the_same_evaluation_twice(folder):
    """It shows what the set could show."""
    assert "within noise" in run(folder, "1", "1")
    assert "in 80 % of all cases; half of it needs 4,000" in run(folder, "1", "1")


@pytest.mark.parametrize(("names", "words"), [(("1", "9"), "'9' was not evaluated"), ((), "two checkpoints, found 1")])
def test_a_wrong_name_is_told(folder, names, words):
    """With names that exist."""
    with pytest.raises(SettingsError, match=words):
        run(folder, *names)
