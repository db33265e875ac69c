"""Every number of every evaluation reaches other programs, with its bits and its time."""

import csv
import io
import json
import math
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_server import PrometheusServer

from sidecar.coordination.journal_state import JournalState
from sidecar.protocol.records import Slice, Value
from sidecar.publishing.export import as_csv, as_json_lines, as_openmetrics

BEGIN = datetime(2026, 1, 31, 12, tzinfo=UTC)
PATIENCE_SECONDS = 240


def value(number, **more):
    return Value(value=number if math.isfinite(number) else None, hex=number.hex(), **more)


def text(view, history, *more):
    """The whole document of a history."""
    return "".join(view(history.entries, *more))


def seconds_after(seconds):
    """The time of a record."""
    moment = BEGIN + timedelta(seconds=seconds)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def test_the_place_where_data_changed_is_a_column(journal):
    """True in the first evaluation of which numbers cannot be compared with those before."""
    for step, data in enumerate("aabb", 1):
        journal.evaluate(f"ckpt-{step}", step, {"loss": value(0.5, goal="min")}, data=data)
    rows = list(csv.DictReader(io.StringIO(text(as_csv, journal.history))))
    assert [row["data_changed"] for row in rows] == ["False", "False", "True", "False"]
    lines = [json.loads(line)["data_changed"] for line in text(as_json_lines, journal.history).splitlines()]
    assert lines == [False, False, True, False]


def test_an_unknown_number_of_examples_is_empty(journal):
    """A function of the task measured, and did not return it."""
    journal.plan()
    journal.succeed({"acc": value(0.5)}, examples=0)
    (row,) = csv.DictReader(io.StringIO(text(as_csv, journal.history)))
    assert row["examples"] == ""
    assert json.loads(text(as_json_lines, journal.history))["examples"] is None
    assert "sidecar_result_examples{" not in text(as_openmetrics, journal.history, "r")


@pytest.fixture
def evaluations(journal):
    """Write evaluations with these numbers, each 0.4 s long; return the history."""

    def write(numbers, seconds=0.4):
        for index, number in enumerate(numbers):
            step = 100 * (index + 1)
            journal.evaluate(f"ckpt-{step}", step, {"loss": value(number, goal="min")})
        return timed(journal.history, [index * seconds for index in range(len(numbers))])

    return write


def timed(history, seconds):
    """The same history, whose evaluations ended at other times."""
    result = JournalState()
    for entry, moment in zip(history.entries, seconds, strict=True):
        result.apply(entry.plan)
        result.apply(replace(entry.outcome, completed_at=seconds_after(moment)))
    return result


def samples(text):
    """All samples of an OpenMetrics document, by family and labels without the run's."""
    found = {}
    for family in text_string_to_metric_families(text):
        for each in family.samples:
            labels = tuple(text for name, text in each.labels.items() if name != "run")
            found.setdefault((each.name, *labels), []).append((float(each.timestamp), each.value))
    return found


def test_each_number_is_a_row(journal):
    """Show whole sets and single classes; failed attempts have no numbers."""
    journal.plan("ckpt-3", step=300)
    journal.fail()
    journal.plan("ckpt-5", step=500)
    classes = {"recall": {"cat": value(0.25), 'a, "dog"\n': value(math.nan)}}
    interval = {"accuracy": value(0.1 + 0.2, lower=0.25, upper=0.35)}
    slices = {"country=de": Slice(examples=41, metrics={"accuracy": value(0.5)})}
    journal.succeed(interval, classes=classes, slices=slices)
    read = list(csv.DictReader(io.StringIO(text(as_csv, journal.history))))
    assert [(row["metric"], row["class_label"], row["slice"]) for row in read] == [
        ("accuracy", "", ""),
        ("recall", "cat", ""),
        ("recall", 'a, "dog"\\n', ""),
        ("accuracy", "", "country=de"),
    ]
    first, _, dog, of_slice = read
    assert (of_slice["value"], of_slice["examples"]) == ("0.5", "41")
    assert (first["plan"], first["checkpoint"], first["step"], first["eval_set"]) == ("2", "ckpt-5", "500", "test")
    assert (first["lower"], first["upper"], first["examples"], first["workers"]) == ("0.25", "0.35", "1003", "2")
    assert float(first["value"]) == float.fromhex(first["hex"]) == 0.1 + 0.2
    assert (dog["value"], dog["lower"]) == ("nan", "")
    lines = [json.loads(line) for line in text(as_json_lines, journal.history).splitlines()]
    assert [{key: "" if each is None else str(each) for key, each in line.items()} for line in lines] == read


def test_without_a_result(journal):
    """A program that reads it finds no row, and no error."""
    assert list(csv.DictReader(io.StringIO(text(as_csv, journal.history)))) == []
    assert text(as_json_lines, journal.history) == ""
    assert samples(text(as_openmetrics, journal.history, "mnist")) == {}


def test_openmetrics_has_every_result_at_its_time(evaluations):
    """Bits, step and time, as prometheus_client's own parser reads them."""
    numbers = [0.1 + 0.2, 1e-300, -0.0, 1e22, 123456789.125, math.pi]
    read = samples(text(as_openmetrics, evaluations(numbers), "mnist"))
    losses = read["sidecar_result", "test", "loss"]
    assert [number.hex() for _, number in losses] == [number.hex() for number in numbers]
    assert [moment for moment, _ in losses] == [BEGIN.timestamp() + index * 0.4 for index in range(len(numbers))]
    steps = read["sidecar_result_step", "test"]
    assert steps == [(moment, 100 * (index + 1)) for index, (moment, _) in enumerate(losses)]


def test_numbers_that_are_not_finite(evaluations):
    """They are samples like any others."""
    read = samples(text(as_openmetrics, evaluations([math.nan, math.inf, -math.inf]), "mnist"))
    assert [str(number) for _, number in read["sidecar_result", "test", "loss"]] == ["nan", "inf", "-inf"]


def test_clocks_that_differ(evaluations, journal):
    """Samples are in order of time, and two never have the same one; a time that is none follows the one before."""
    evaluations([1.0, 2.0, 3.0])
    history = timed(journal.history, [5.0, 0.0, 5.0])
    read = samples(text(as_openmetrics, history, "mnist"))["sidecar_result", "test", "loss"]
    assert [(round(moment - BEGIN.timestamp(), 3), number) for moment, number in read] == [
        (0.0, 2.0),
        (5.0, 1.0),
        (5.001, 3.0),
    ]
    odd = JournalState()
    for entry, completed in zip(
        journal.history.entries, (seconds_after(1), "yesterday", seconds_after(2)), strict=True
    ):
        odd.apply(entry.plan)
        odd.apply(replace(entry.outcome, completed_at=completed))
    read = samples(text(as_openmetrics, odd, "mnist"))["sidecar_result", "test", "loss"]
    assert [(round(moment - BEGIN.timestamp(), 3), number) for moment, number in read] == [
        (1.0, 1.0),
        (1.001, 2.0),
        (2.0, 3.0),
    ]


def test_names_of_all_kinds(journal):
    """For any name of a metric, the document stays well-formed."""
    odd = 'odd "name"\\ of\nall'
    journal.evaluate("ckpt-5", 500, {odd: value(0.5)})
    assert samples(text(as_openmetrics, journal.history, "mnist"))["sidecar_result", "test", odd][0][1] == 0.5


def test_a_real_prometheus_has_all_of_them(needs, evaluations, tmp_path):
    """Forty results in sixteen seconds, of which a scrape every fifteen seconds would have seen two."""
    prometheus, promtool = needs("prometheus"), needs("promtool")
    numbers = [math.sin(index) for index in range(40)]
    past = tmp_path / "past.txt"
    past.write_text(text(as_openmetrics, evaluations(numbers), "mnist"))
    made = [promtool, "tsdb", "create-blocks-from", "openmetrics", past, tmp_path / "data"]
    done = subprocess.run(made, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr
    with PrometheusServer(prometheus, tmp_path) as server:
        found = server.samples('sidecar_result{run="mnist",metric="loss"}[1h]', BEGIN.timestamp() + 60)
    assert [number.hex() for _, number in found] == [number.hex() for number in numbers]
    assert [moment for moment, _ in found] == pytest.approx([BEGIN.timestamp() + 0.4 * index for index in range(40)])


def test_names_that_are_no_utf_8(journal):
    """They are escaped, as in the names of files, so that every format can be written to a file."""
    journal.evaluate("ckpt-\udce9", 400, {"loss\udce9": value(0.5)}, eval_sets=("caf\udce9",))
    (row,) = csv.DictReader(io.StringIO(text(as_csv, journal.history).encode().decode()))
    assert (row["eval_set"], row["metric"]) == (r"caf\udce9", r"loss\udce9")
    assert json.loads(text(as_json_lines, journal.history))["eval_set"] == r"caf\udce9"
    families = list(text_string_to_metric_families(text(as_openmetrics, journal.history, "mnist").encode().decode()))
    assert {sample.labels["eval_set"] for family in families for sample in family.samples} == {r"caf\udce9"}


@pytest.mark.parametrize("sign", "=+-@")
def test_a_name_is_not_a_formula(journal, sign):
    """A spreadsheet would calculate what a name says, such as a link. Numbers below zero stay numbers."""
    name = f'{sign}HYPERLINK("http://x")'
    journal.evaluate(name, 400, {name: value(-0.5)}, eval_sets=(name,))
    (row,) = csv.DictReader(io.StringIO(text(as_csv, journal.history)))
    assert [row[column] for column in ("checkpoint", "eval_set", "metric")] == [f"'{name}"] * 3
    assert (float(row["value"]), float.fromhex(row["hex"])) == (-0.5, -0.5)


def test_metrics_of_an_eval_set_without_examples(journal):
    """Only a forged record has them. They are left out, and the other numbers stay."""
    closed = journal.evaluate("ckpt-4", 400, {"loss": value(0.5)}, eval_sets=("test",))
    del closed
    result = journal.history.entries[-1].outcome.result
    result.metrics["other"] = {"loss": value(0.25)}
    result.classes["other"] = {"loss": {"a": value(0.25)}}
    assert [row["eval_set"] for row in csv.DictReader(io.StringIO(text(as_csv, journal.history)))] == ["test"]
    assert len(text(as_json_lines, journal.history).splitlines()) == 1
    assert "other" not in text(as_openmetrics, journal.history, "mnist")


def test_a_name_cannot_begin_a_row(journal):
    """A carriage return ends a line for every reader of CSV."""
    forged = "loss\r7,2026-01-31T12:00:00Z,ckpt-7,d,7,name,test,loss,,0.1"
    journal.evaluate("ckpt-4\r", 400, {forged: value(0.5)}, eval_sets=('a\nb,"c"',))
    (row,) = csv.DictReader(io.StringIO(text(as_csv, journal.history)))
    assert (row["eval_set"], row["metric"]) == ('a\\nb,"c"', forged.replace("\r", "\\r"))
    assert row["hex"] == (0.5).hex()
