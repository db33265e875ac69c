"""Replace characters that a terminal cannot show."""

import io

import pytest

from sidecar.commands.character_fallback import likeness, use_fallback


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_each_drawing_character_stays_one(encoding):
    """Columns and bars keep their width; a name stays distinct from others."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    use_fallback([stream])
    stream.write("▁█ ━╸ ★… ⠁⡀⡁⠀ \u4e2d")
    stream.flush()
    assert raw.getvalue().decode(encoding) == "_# -- *~ '.:  \\u4e2d"


def test_all_of_braille_has_a_likeness():
    """Each character of Braille is replaced by exactly one other character."""
    assert {len(likeness(chr(code))) for code in range(0x2800, 0x2900)} == {1}


def test_unicode_stays():
    """Streams with all characters, and streams of a test, are left alone."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    use_fallback([stream, io.StringIO()])
    assert stream.errors == "strict"
