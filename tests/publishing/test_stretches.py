"""Mark where numbers stop being comparable."""

import io
import math

import pytest
from journals import breaks
from rich.console import Console

from sidecar.commands.history_table import best_plans, sparklines, table
from sidecar.protocol.records import Value
from sidecar.publishing.report import rows


def shown(history, width=200):
    console = Console(width=width, no_color=True, file=io.StringIO())
    with console.capture() as capture:
        console.print(table(rows(history), best_plans(history), width, breaks(rows(history)))[0])
    return capture.get()


def measured(number, goal="max"):
    return Value(value=number if math.isfinite(number) else None, hex=number.hex(), goal=goal)


def changing(journal, column=("a", "a", "b", "b"), numbers=(0.9, 0.8, 0.5, 0.6), **how):
    """A run whose data, or whose task, change before the third of four evaluations."""
    for step, (each, accuracy) in enumerate(zip(column, numbers, strict=True), 1):
        kind = {"task": each} if how.get("task") else {"data": each}
        journal.evaluate(f"ckpt-{step}", step, {"accuracy": measured(accuracy)}, **kind)
    return journal.history


@pytest.mark.parametrize(
    ("how", "why"), [({}, "the data of 'test' changed"), ({"task": True}, "the code of the task changed")]
)
def test_a_line_stands_where_numbers_stop_being_comparable(journal, how, why):
    """The best value, and the course below the table, are those of the rows below the line."""
    history = changing(journal, **how)
    lines = shown(history).splitlines()
    (place,) = [number for number, line in enumerate(lines) if "cannot be compared" in line]
    assert lines[place].strip() == f"{why}: numbers above and below cannot be compared"
    assert "ckpt-2" in lines[place - 1]
    assert "ckpt-3" in lines[place + 1]
    assert [line.split()[1] for line in lines if "★" in line] == ["ckpt-4"]
    assert lines[place - 1].index("1003") == lines[place + 1].index("1003")  # the columns go on
    below = sparklines(rows(history), best_plans(history), breaks(rows(history)))
    assert below == ["★ best of the newest data and task"]
