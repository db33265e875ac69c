"""Details of one evaluation, and comparisons of two, as far as storage has them."""

import json
from dataclasses import replace

import numpy as np
import pytest
from served_run import ServedRun, value

from sidecar.evaluation.backend import Rows
from sidecar.evaluation.npy_table import NpyTable
from sidecar.evaluation.states import ExactSum
from sidecar.publishing.evaluation_archive.details import DetailsReader, Other


@pytest.fixture
def run(tmp_path):
    """A run with two evaluations and a failure."""
    run = ServedRun(tmp_path)
    for number in (1, 2):
        run.plan(f"ckpt-{number}", 10 * number)
        run.succeed({"test": {"accuracy": value(number / 10), "loss": value(float("nan"), "min")}})
    run.plan("ckpt-3", 30)
    run.fail()
    return run


@pytest.fixture
def reader(run, tmp_path):
    return DetailsReader(run.storage, tmp_path)


def test_saves_that_retention_removed_are_named_as_such(run, reader, tmp_path):
    """The page of an old evaluation shows its numbers, and says that its saves are gone."""
    (tmp_path / run.history.entries[0].plan.folder / "worker-0-of-2").mkdir(parents=True)
    assert reader.details(2, run.run_id)["states_removed"]
    assert not reader.details(1, run.run_id)["states_removed"]


def test_a_link_among_the_saves_is_not_followed(run, reader, tmp_path):
    """The states of a rank are read only below the state directory: there is no picture then."""
    secret = tmp_path.parent / "secret.json"
    secret.write_text("{}")
    plan = run.plan("ckpt-6", 60)
    for rank in range(2):
        folder = tmp_path / plan.folder / f"worker-{rank}-of-2"
        folder.mkdir(parents=True)
        (folder / "states.json").symlink_to(secret)
    run.succeed({"test": {"accuracy": value(0.5)}}, classes={"test": {"recall": {"a": value(0.5), "b": value(0.5)}}})
    assert reader.details(plan.plan, run.run_id)["confusion"] == []


def test_the_change_of_a_confusion_matrix(run, reader, tmp_path):
    """It is the difference of what the ranks saved, if the data are the same ones."""

    def evaluated(cats, data="9"):
        plan = run.plan(f"cats-{cats}-{data}", 100 + cats)
        for rank in range(2):
            counts, weights = ExactSum((2, 2), "int64"), ExactSum((2, 2), "float32")
            counts.add([[cats, 5 - cats], [rank, 1]])
            states = {"m/counts": counts.to_json(), "m/weights": weights.to_json()}
            folder = tmp_path / plan.folder / f"worker-{rank}-of-2"
            folder.mkdir(parents=True)
            (folder / "states.json").write_text(json.dumps({"schema": 1, "states": {"test": states}}))
        classes = {"test": {"recall": {"cat": value(0.5), "dog": value(0.5)}}}
        run.succeed({"test": {"accuracy": value(0.5)}}, classes=classes, data=data)
        return plan.plan

    old, new, other = evaluated(2), evaluated(5), evaluated(4, data="8")
    (found,) = reader.comparison(new, old, run.run_id)["confusion"]
    assert (found["set"], found["metric"], found["classes"]) == ("test", "m", ["cat", "dog"])
    assert found["matrix"] == [[6.0, -6.0], [0.0, 0.0]]
    assert reader.comparison(other, old, run.run_id)["confusion"] == []


def test_distances_are_paired_where_predictions_were_saved(run, reader, tmp_path):
    """Within a bound of examples; an evaluation that is not there has none, and other data are not compared."""
    labels = np.zeros(100, np.int64)
    for wrong in (20, 10):
        plan = run.plan(f"wrong-{wrong}", 100 - wrong, members=1)
        table = NpyTable(tmp_path / plan.folder / "worker-0-of-1" / "predictions" / "test")
        table.add(
            Rows(0, 100, {"y": labels, "predictions": np.eye(2, dtype=np.float32)[[1] * wrong + [0] * (100 - wrong)]})
        )
        table.finish()
        table.close()
        run.succeed({"test": {"accuracy": value(1 - wrong / 100), "loss": value(0.5, "min")}}, examples={"test": 100})
    old, new = plan.plan - 1, plan.plan
    paired, loss, other_data = (
        Other("test", "accuracy", old),
        Other("test", "loss", old),
        Other("test", "accuracy", 1),
    )
    asked = (paired, loss, other_data, Other("test", "accuracy", 3), Other("test", "accuracy", 99))
    found = reader.distances(new, asked, run.run_id)
    assert list(found) == [paired, loss, other_data]
    assert (found[paired]["rule"], found[paired]["verdict"]) == ("paired", "better")
    assert found[paired]["difference"] == pytest.approx(0.1)
    assert 0 < found[paired]["lower"] < 0.1 < found[paired]["upper"] < 0.25
    assert (found[loss]["rule"], found[loss]["lower"]) == ("value", None)
    assert "no column 'loss'" in found[loss]["note"]
    assert found[other_data]["rule"] == "none"
    found = replace(reader, most_paired=99).distances(new, asked, run.run_id)
    assert (found[paired]["rule"], found[other_data]["rule"]) == ("value", "none")
    assert "the comparison pairs them" in found[paired]["note"]
    assert reader.distances(99, asked, run.run_id) == {}


def test_numbers_that_are_not_finite_are_none(run, reader):
    """JSON has no others."""
    found = reader.comparison(2, 1, run.run_id)
    assert [(one["metric"], one["old"], one["new"]) for one in found["differences"]] == [
        ("test/accuracy", 0.1, 0.2),
        ("test/loss", None, None),
    ]
    assert (found["new"]["checkpoint"], found["old"]["checkpoint"]) == ("ckpt-2", "ckpt-1")


@pytest.mark.parametrize(("new", "old"), [(2, 3), (3, 1), (2, 9), (9, 2)])
def test_what_has_no_numbers_is_not_compared(run, reader, new, old):
    """A failure, or a plan that does not exist."""
    assert reader.comparison(new, old, run.run_id) is None
    assert reader.comparison(2, 1, "another run") is None
