"""Inputs of examples in the files of workers, which are not trusted."""

import io
import json

import pytest

from sidecar.protocol.example_inputs import image_type, input_record, line_of, read_line


def test_what_was_written_is_read():
    """Texts of any characters, and images; as plain values, an image is an address."""
    image = pytest.importorskip("PIL.Image")
    into = io.BytesIO()
    image.new("L", (8, 8)).save(into, "PNG")
    for shown in ("two\nlines \ud800", into.getvalue()):
        assert read_line(line_of(7, shown)) == (7, shown)
        assert b"\n" not in line_of(7, shown)[:-1]
    assert input_record("a") == {"text": "a"}
    assert input_record(into.getvalue())["image"].startswith("data:image/png;base64,iVBOR")


def test_images_are_known_by_their_bytes():
    """PNG and JPEG of a size that may be shown, and nothing else; a worker's line holds a text or such an image."""
    image = pytest.importorskip("PIL.Image")
    found = {}
    for kind, side in (("PNG", 1024), ("PNG", 1025), ("JPEG", 1024), ("JPEG", 1025), ("GIF", 8), ("BMP", 8)):
        into = io.BytesIO()
        image.new("L", (side, 8)).save(into, kind)
        found[kind, side] = image_type(into.getvalue())
    assert found == dict.fromkeys(found) | {("PNG", 1024): "image/png", ("JPEG", 1024): "image/jpeg"}
    for data in (b"<svg onload='alert(1)'/>", b"", b"\xff\xd8\xff", b"\xff\xd8\xff\xc0\x00", b"\x89PNG\r\n\x1a\n"):
        assert image_type(data) is None
    for content in ([], {}, {"place": True}, {"place": 1, "text": "x" * 2001}, {"place": 1, "image": "PHN2Zy8+"}):
        with pytest.raises(ValueError, match=r"."):
            read_line(json.dumps(content).encode())
