"""Show names that were read from files, and say which file an error is about."""

import pytest

from sidecar.checkpoints.formats.format import about, shown
from sidecar.errors import CorruptError


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("layer/kernel", "layer/kernel"),
        (b"layer/kernel", "layer/kernel"),
        ("\x1b[31mred", "'\\x1b[31mred'"),
        (b"\xff\xfe", "\\xff\\xfe"),
        ("a\nb", "'a\\nb'"),
    ],
)
def test_a_name_from_a_file_controls_no_terminal(name, text):
    """Escape what is not printable."""
    assert shown(name) == text


def test_a_long_name_is_cut():
    """A message shows the beginning of a long name, and an ellipsis for the rest."""
    text = shown("x" * 10_000)
    assert len(text) < 1000
    assert text.endswith("…")


def test_an_error_names_its_place_and_stays_what_it_is():
    """Keep the class of the error, which decides whether the checkpoint is corrupt or incomplete."""
    with pytest.raises(CorruptError, match=r"^m-5\.keras: no table$"), about("m-5.keras"):
        raise CorruptError("no table")
