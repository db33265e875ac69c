"""Show a history as a table that fits a terminal."""

import io
import math
import time
from dataclasses import replace

import pytest
from journals import breaks, settlement
from rich.console import Console

from sidecar.commands.history_table import best_plans, left_out_line, sparklines, table, winners
from sidecar.coordination.journal_state import Closed
from sidecar.protocol.records import Value
from sidecar.publishing.report import rows
from sidecar.system.clock import local_time
from sidecar.system.plain_text import number


def shown(history, width=200):
    console = Console(width=width, no_color=True, file=io.StringIO())
    with console.capture() as capture:
        console.print(table(rows(history), best_plans(history), width, breaks(rows(history)))[0])
    return capture.get()


def measured(number, goal="max"):
    return Value(value=number if math.isfinite(number) else None, hex=number.hex(), goal=goal)


def test_table(journal, settle):
    """People get one line per row, a column per metric of any row, and the kind of each failure."""
    journal.evaluate("ckpt-4", 400, {"loss": Value(value=None, hex="nan")})
    journal.evaluate("ckpt-5", 500)
    journal.plan("ckpt-6", step=600)
    journal.fail()
    journal.plan(None, settles=[settle("ckpt-7", "vanished", step=None)])
    text = shown(journal.history)
    lines = [line for line in text.splitlines() if "ckpt-" in line]
    assert [word for word in text.split() if word in ("loss", "accuracy")] == ["loss", "accuracy"]
    assert "nan" in lines[0]
    assert "0.97" in lines[1]
    assert "1003" in lines[1]
    assert " 1.5 " in lines[1]  # seconds that it took
    assert "failed: stalled" in lines[2]
    assert "vanished" in lines[3]


def test_the_lag_is_told_apart(journal):
    """An evaluation of a second may be published minutes after the save; settlements took no time."""
    journal.plan()
    journal.succeed(lag=299.36)
    journal.plan(None, settles=[settlement("ckpt-7", "vanished", step=None)])
    evaluated, settled = shown(journal.history).splitlines()[-2:]
    assert evaluated.split()[-4:] == ["1.5", "299.4", "01-31", "12:00"]
    assert settled.split() == ["ckpt-7", "vanished", "01-31", "12:00"]


def test_it_fits_a_terminal(journal):
    """Two metrics, each with its best marked, and everything beside them are readable in 80 columns."""
    for accuracy, loss in ((0.9, 0.0123456789), (0.987654321, 0.5)):
        journal.evaluate("ckpt-10", 12345, {"accuracy": measured(accuracy), "loss": measured(loss, "min")})
    text = shown(journal.history, 80)
    for part in ("12345", "ckpt-10", " ok ", "0.98765 ★", "0.012346 ★", "1003", "01-31 12:00", "0.90000"):
        assert part in text


@pytest.mark.parametrize(
    "name", ["epoch-03.keras", "ckpt-12000", "model.ckpt-12000", "checkpoint-12000", "model-3.joblib"]
)
def test_no_usual_name_folds(journal, name):
    """In 80 columns, with two metrics, an evaluation of minutes and a failure: the workers are left out."""
    phases = dict.fromkeys(("restore", "evaluate"), 123.4567)
    journal.plan(name, step=12000)
    journal.fail("task_error")
    journal.plan(name, step=12000)
    metrics = {"loss": measured(0.0123456, "min"), "accuracy": measured(0.91234)}
    closed = journal.succeed(metrics)
    result = replace(closed.outcome.result, examples={"test": 10000}, phases=phases)
    journal.history.entries[-1] = Closed(closed.plan, replace(closed.outcome, result=result))
    lines = shown(journal.history, 80).splitlines()
    (line,) = [line for line in lines if name in line and " ok " in line]
    assert line.split()[:7] == ["12000", name, "ok", "0.012346", "★", "0.91234", "★"]
    assert line.split()[-2:] == ["01-31", "12:00"]
    assert max(map(len, lines)) <= 80
    _, left_out = table(rows(journal.history), {}, 80)
    assert left_out[:1] == ["workers"]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 400])
def test_numbers_are_whole_or_left_out(journal, width):
    """With twenty metrics, those that have no room are named below, and no digit is cut."""
    metrics = {f"metric_{place}": measured(0.123456 + place) for place in range(20)}
    journal.evaluate("checkpoint-12000", 12000, metrics)
    text, (_, left_out) = shown(journal.history, width), table(rows(journal.history), {}, width)
    printed = [word for word in text.split() if word in {number(value.value) for value in metrics.values()}]
    assert len(printed) == 20 - sum(name.startswith("test/") for name in left_out) > 0
    assert "…" not in text
    assert "checkpoint-12000" in text
    assert not left_out or left_out_line(left_out).startswith(f"no room for: {left_out[0]}")


def test_long_names_of_metrics_break_at_their_signs(journal):
    """In 80 columns; of a part that is still too long the end is shown, which tells similar metrics apart."""
    values = {name: measured(0.5) for name in ("val_mean_absolute_error", "multiclassf1score", "multiclassfbetascore")}
    for step in range(3):
        journal.evaluate("ckpt-10", step, values | {f"other_{place}": measured(0.123456) for place in range(3)})
    heading = shown(journal.history, 80).partition("─")[0]
    assert [word for word in heading.split() if word[0] in "ve…"] == [
        "val_mean_absolute_",
        *("error", "…lassf1score", "…sfbetascore"),
    ]


def test_times_are_local(journal, monkeypatch):
    """With the zone as the heading; where summer time begins in between, each row has its own."""
    journal.evaluate("ckpt-1", 1)
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    assert "UTC+01:00" in shown(journal.history)
    assert "01-31 13:00" in shown(journal.history)
    entry = journal.evaluate("ckpt-2", 2)
    journal.history.entries[-1] = replace(entry, outcome=replace(entry.outcome, completed_at="2026-07-31T12:00:00Z"))
    text = shown(journal.history)
    assert "01-31 13:00 UTC+01:00" in text
    assert "07-31 14:00 UTC+02:00" in text
    assert local_time("nonsense") == ("", "")


def test_long_names_fold(journal):
    """They get the room that is left, and lose no character."""
    name = "a-checkpoint-of-a-training-run-whose-name-has-all-its-settings-lr-0.001-batch-64.keras"
    journal.evaluate(name, 100, {"loss": measured(0.5, "min")})
    lines = shown(journal.history, 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert name in "".join(line[5:].split(" ")[0] for line in lines[3:])


def test_names_cannot_control_the_terminal(journal):
    """Neither rich markup nor terminal codes in a name have any effect."""
    journal.evaluate("[red]ckpt\x1b[31m", 1, {"[b]acc\n": Value(value=1.0, hex="0x1p0")})
    text = shown(journal.history)
    assert "[red]ckpt\\x1b[31m" in text
    assert "[b]acc\\n" in text


def test_an_ordinal_is_marked(journal):
    """`#2`: the second checkpoint without a step, in order of writing."""
    journal.evaluate("best", None)
    journal.evaluate("last", None)
    assert "#2" in shown(journal.history)


def test_the_best_is_that_of_the_run(journal):
    """Also if only some evaluations are shown: the mark does not move, and its meaning is told where it is shown."""
    for step, accuracy in ((100, 0.5), (200, 0.75), (300, 0.625)):
        journal.evaluate(f"ckpt-{step}", step, {"accuracy": measured(accuracy)})
    everything, best = rows(journal.history), best_plans(journal.history)
    assert best == {("test", "accuracy"): 2}
    assert sparklines(everything, best) == ["★ best of the run", "▁█▅  test/accuracy  0.5 to 0.75"]
    assert sparklines(everything[-1:], best) == []


def test_the_best_number_is_told_with_those_around_it(journal):
    """Which have less luck. Three numbers say nothing, and other data nothing about these."""
    for step, accuracy in enumerate((0.5, 0.52, 0.51, 0.6, 0.55, 0.56, 0.56)):
        journal.evaluate(f"ckpt-{step}", step, {"accuracy": measured(accuracy)})
    everything, best = rows(journal.history), best_plans(journal.history)
    assert winners(everything, best) == [
        "★ test/accuracy: 0.6 is the best of 7 numbers, and partly luck; those around it say 0.53333"
    ]
    assert winners(everything[2:5], best) == []
    assert winners(everything, best, {4: {"test": "other data"}}) == []


def test_courses_have_gaps(journal):
    """A number that is not finite has no level, and a metric without any finite one says so."""
    for step in (1, 2, 3):
        odd = {"loss": measured(math.nan if step == 2 else float(step), "none"), "o\x1b": measured(math.inf, "none")}
        journal.evaluate(f"ckpt-{step}", step, odd)
    assert sparklines(rows(journal.history), {}) == ["▁ █  test/loss  1 to 3", "     test/o\\x1b  no finite number"]
