"""Text for people: numbers, intervals, and names that may hold anything."""

import pytest

from sidecar.system.plain_text import (
    aligned,
    broken_at_signs,
    interval,
    listed,
    number,
    one_line,
    printable,
    shortened,
    without_password,
)


def test_numbers_have_five_digits_and_texts_stay():
    """A number that is not finite comes as a text."""
    assert (number(0.97123456), number(1e-9), number("nan")) == ("0.97123", "1e-09", "nan")


def test_numbers_of_a_column_have_equally_many_decimals():
    """Texts and missing numbers stay; numbers of very different sizes do, too."""
    assert aligned([0.9068, 0.79597, "nan", None, 12.0]) == ["0.90680", "0.79597", "nan", "", "12.00000"]
    assert aligned([1e-9, 0.5]) == ["1e-09", "0.5"]
    assert aligned([0.00012345, 0.5]) == ["0.00012345", "0.5"]
    assert aligned([3.0, 250.0, float("inf")]) == ["3", "250", "inf"]


def test_an_interval_needs_both_bounds():
    """A metric without an interval has an empty cell."""
    assert (interval(0.5, 0.75), interval(None, 0.75), interval(0.5, None)) == ("0.5 to 0.75", "", "")


def test_control_characters_are_escaped():
    """A message keeps its lines; a name does not, and bytes that are not UTF-8 are shown."""
    assert printable("a\n\tb\x1b[2J") == "a\n\tb\\x1b[2J"
    assert one_line("a\nb\udcff") == "a\\nb\\udcff"


def test_long_values_are_cut():
    """A line of a terminal has room for the rest of the message."""
    assert shortened("x" * 100) == "'" + "x" * 78 + "…"
    assert shortened([1, 2]) == "[1, 2]"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://me:se/cret@host/write", "http://me:se/cret@host/write"),
        ("http://me:secret@host/write?x=a@b", "http://…@host/write?x=a@b"),
        ("'ftp://me:s@e@cret@host'", "'ftp://…@host'"),
        ("http://host/a@b", "http://host/a@b"),
        ("me@host", "me@host"),
    ],
)
def test_passwords_in_urls_are_not_shown(text, shown):
    """Messages go into logs that others read."""
    assert without_password(text) == shown


def test_few_names_are_listed_and_many_counted():
    """The sentence has the first names, and the number of the others."""
    assert listed(["a", "b"], 2) == "a, b"
    assert listed(["a", "b", "c", "d"], 2, separator="; ") == "a; b and 2 more"
    assert listed([]) == ""


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("accuracy", ["accuracy"]),
        ("val_mean_absolute_error", ["val_mean_", "absolute_error"]),
        ("validation/accuracy", ["validation/", "accuracy"]),
        ("MulticlassF1Score_x", ["…classF1Score_", "x"]),
        ("", [""]),
    ],
)
def test_a_long_name_breaks_at_its_signs(name, lines):
    """The end of a part that is too long is shown, so that the column keeps its width."""
    assert broken_at_signs(name, 14) == lines
