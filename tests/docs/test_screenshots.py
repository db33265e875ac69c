"""The pictures of the pages are those that docs/screenshots.py takes, and each shows something."""

import re
import struct
import zlib
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
IMAGES = DOCS / "img"
SHOWN = re.compile(r"(?:\]\(|src=\")(?:\.\./)*img/([^)\"]+)")
PAGE = "see-results.md"
MOST_BYTES = 200_000
BLANK = 0.7  # the largest share of a picture that is one row of pixels again and again


@pytest.fixture(scope="module")
def screenshots():
    """The program that takes the pictures."""
    pytest.importorskip("playwright", reason="playwright is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS)
        import screenshots

        yield screenshots


def shown(page):
    """Return the names of the pictures that a page shows."""
    return set(SHOWN.findall(page.read_text()))


def rows(png):
    """Return width, height, and the rows of a PNG of 8 bits a colour, each with its filter undone as far as it repeats.

    Source: Portable Network Graphics, third edition, 5.3, 9.2. A row that equals the row above it is all zeros with
    the filter Up, and so is each row with the other filters if it is of one colour.
    """
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    place, data = 8, b""
    width, height, depth, kind = struct.unpack(">IIBB", png[16:26])
    assert (depth, kind) in ((8, 2), (8, 6))
    while place < len(png):
        length, name = struct.unpack(">I4s", png[place : place + 8])
        if name == b"IDAT":
            data += png[place + 8 : place + 8 + length]
        place += length + 12
    raw, size = zlib.decompress(data), 1 + width * (3 if kind == 2 else 4)
    assert len(raw) == size * height
    return width, height, [raw[start + 1 : start + size] for start in range(0, len(raw), size)]
