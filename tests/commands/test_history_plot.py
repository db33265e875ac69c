"""Plot results in a terminal."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journals import Journal

from sidecar.commands.history_plot import PLOTS_SHOWN, _without_gaps, plots, series_of
from sidecar.commands.history_table import best_plans
from sidecar.protocol.records import Value

BRAILLE = {chr(code) for code in range(0x2800, 0x2900)}


def measured(number, goal="max", spread=0.0):
    finite = math.isfinite(number)
    return Value(
        value=number if finite else None,
        hex=number.hex(),
        lower=number - spread if finite and spread else None,
        upper=number + spread if finite and spread else None,
        goal=goal,
    )


def plotted(history, width=80, *, colors=False):
    return list(plots(series_of(history.entries), best_plans(history), width=width, colors=colors))


def test_a_metric_over_the_step(journal):
    """Title, both axes with round numbers, a star at the best value; no line is wider than the terminal."""
    for step in range(100, 1100, 100):
        journal.evaluate(f"ckpt-{step}", step, {"accuracy": measured(1 - 100 / step, spread=0.05)})
    (text,) = plotted(journal.history)
    lines = text.splitlines()
    assert lines[0] == "test/accuracy over step  ★ best 0.9 at step 1000"
    assert text.count("★") == 2
    assert "0         200       400       600       800       1000" in text
    assert "      0.6 |" in text
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 18
    assert BRAILLE & set(text)
    assert "\x1b" not in text


def test_the_ends_of_intervals_are_lighter(journal, monkeypatch):
    """In another color; the value is a line."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    for step in range(1, 4):
        journal.evaluate(f"ckpt-{step}", step, {"accuracy": measured(step / 10, spread=0.3)})
    (text,) = plotted(journal.history, colors=True)
    assert "\x1b[36m" in text
    assert "\x1b[32m" in text


def test_a_curve_is_broken_where_numbers_stop_being_comparable(journal):
    """With a sentence that names the step; the star is at the best value after it."""
    for step, (data, accuracy) in enumerate([("a", 0.9), ("a", 0.95), ("b", 0.5), ("b", 0.6)], 1):
        journal.evaluate(f"ckpt-{step}", step, {"accuracy": measured(accuracy)}, data=data)
    (text,) = plotted(journal.history)
    assert text.splitlines()[0].endswith("★ best 0.6 at step 4")
    assert "data or task changed at step 3: numbers on both sides cannot be compared" in text
    (series,) = series_of(journal.history.entries)
    assert [[point.x for point in run] for run in _without_gaps(series.points())] == [[1, 2], [3, 4]]


def test_what_is_not_finite_is_a_gap(journal):
    """With a sentence that names the step."""
    for step, loss in ((1, 1.0), (2, 0.9), (3, math.nan), (4, math.inf), (5, 0.7), (6, 1e308)):
        journal.evaluate(f"ckpt-{step}", step, {"loss": measured(loss, "min")})
    (text,) = plotted(journal.history)
    assert "gaps: nan at step 3, inf at step 4, 1e+308 at step 6: not finite, or too large to draw" in text


def test_nothing_finite_is_no_plot(journal):
    """Only the title and the reason."""
    journal.evaluate("ckpt-1", 1, {"loss": measured(math.nan)})
    (text,) = plotted(journal.history)
    assert text.splitlines()[0] == "test/loss over step"
    assert "gaps: nan at step 1" in text
    assert plotted(Journal().history) == ["no evaluation has numbers to plot"]


def test_steps_that_are_unknown(journal):
    """Evaluations count in their order, and the best is named by its checkpoint."""
    journal.evaluate("b\x1b[31m.keras", None, {"accuracy": measured(0.5)})
    journal.evaluate("a.keras", 7, {"accuracy": measured(0.25)})
    (text,) = plotted(journal.history)
    assert text.splitlines()[0] == "test/accuracy over order  ★ best 0.5 at b\\x1b[31m.keras"


def test_a_checkpoint_that_was_evaluated_again_is_one_point(journal):
    """Its newest numbers count."""
    for accuracy in (0.25, 0.5):
        journal.evaluate("ckpt-5", 5, {"accuracy": measured(accuracy)})
    (series,) = series_of(journal.history.entries)
    assert [point.number for point in series.points()] == [0.5]


def test_many_metrics_are_not_all_plotted(journal):
    """The options that choose are named, with a name that cannot control the terminal."""
    journal.evaluate("ckpt-5", 5, {f"m{number}\x1b": measured(0.5) for number in range(PLOTS_SHOWN + 2)})
    *shown, last = plotted(journal.history)
    assert len(shown) == PLOTS_SHOWN
    assert last.startswith(f"{PLOTS_SHOWN} of {PLOTS_SHOWN + 2} metrics are plotted: choose others with --metric and")
    assert "\x1b" not in "".join([*shown, last])


@pytest.mark.seconds
def test_ten_thousand_evaluations_are_drawn_at_once(journal):
    """They are thinned to what can be seen, and the outlier among them can."""
    for step in range(10_000):
        journal.evaluate(
            f"ckpt-{step}", step, {"loss": measured(50.0 if step == 4321 else math.sin(step / 900), "min")}
        )
    (text,) = plotted(journal.history)
    assert "        50 |" in text


@settings(max_examples=2 * settings().max_examples)
@given(
    numbers=st.lists(st.floats(), min_size=1, max_size=6),
    steps=st.lists(st.integers(0, 2**63), min_size=6, max_size=6, unique=True),
    spread=st.floats(0, 1e308),
    width=st.integers(1, 200),
)
def test_no_numbers_break_it(numbers, steps, spread, width):
    """Journals come from other programs: any float, any step, any width of a terminal."""
    journal = Journal()
    for step, number in zip(steps, numbers, strict=False):
        journal.evaluate(f"ckpt-{step}", step, {"loss": measured(number, "min", spread)})
    (text,) = plotted(journal.history, width)
    assert text.startswith("test/loss over step")
