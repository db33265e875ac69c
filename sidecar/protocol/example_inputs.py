"""Define how workers save the inputs of examples that `Task(show=…)` returns. Standard library only.

A worker writes one line of JSON for each example of an eval set. The daemon and `sidecar compare` read the lines and
trust nothing in them: sizes are bounded, and an image is one whose bytes and size say so.
"""

import base64
import json
import struct
from typing import Any, Final

INPUTS: Final = "inputs.jsonl"
"""Name of the file, next to the columns of its eval set."""

MOST_INPUTS: Final = 1000
"""The most examples of an eval set whose inputs one worker saves."""

MOST_BYTES: Final = 1 << 23
"""The most bytes of such a file, 8 MiB."""

MOST_IMAGE_BYTES: Final = 1 << 16
LONGEST_TEXT: Final = 2000
LARGEST_SIDE: Final = 1024
"""The most pixels of an image from side to side."""

Input = str | bytes
"""The input of one example: a text, or an image of PNG or JPEG."""

_PNG: Final = b"\x89PNG\r\n\x1a\n"
_JPEG: Final = b"\xff\xd8\xff"
_NO_FRAME: Final = (0xC4, 0xC8, 0xCC)  # markers among those of frames that begin something else: ITU-T T.81, table B.1


def image_type(data: bytes) -> str | None:
    """Return the media type of an image that may be shown; None for other bytes, and for an image that is too large."""
    size = None
    if data.startswith(_PNG) and data[12:16] == b"IHDR" and len(data) >= 24:  # noqa: PLR2004 - the end of both sizes
        kind, size = "image/png", struct.unpack_from(">II", data, 16)
    elif data.startswith(_JPEG):
        kind, size = "image/jpeg", _jpeg_size(data)
    is_small = size is not None and all(0 < side <= LARGEST_SIDE for side in size) and len(data) <= MOST_IMAGE_BYTES
    return kind if is_small else None


def line_of(place: int, shown: Input) -> bytes:
    """Return the line of the example with this number in the data."""
    content = {"text": shown} if isinstance(shown, str) else {"image": base64.b64encode(shown).decode()}
    return json.dumps({"place": place} | content).encode() + b"\n"


def read_line(line: bytes) -> tuple[int, Input]:
    """Return the number of an example, and its input. Raises `ValueError` for a line that no worker has written."""
    record = json.loads(line)
    if not isinstance(record, dict) or type(place := record.get("place")) is not int:
        raise ValueError("no number of an example")
    if isinstance(text := record.get("text"), str) and len(text) <= LONGEST_TEXT:
        return place, text
    data = base64.b64decode(str(record.get("image")), validate=True)
    if image_type(data) is None:
        raise ValueError("neither a text nor a small image")
    return place, data


def input_record(shown: Input) -> dict[str, Any]:
    """Return an input as plain values: its `text`, or its `image` as an address that holds it (RFC 2397)."""
    if isinstance(shown, str):
        return {"text": shown}
    return {"image": f"data:{image_type(shown)};base64,{base64.b64encode(shown).decode()}"}


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Return height and width from the first frame of a JPEG; None if there is none."""
    place = 2
    while place + 9 <= len(data) and data[place] == 0xFF:  # noqa: PLR2004 - the begin of a marker
        marker = data[place + 1]
        if 0xC0 <= marker <= 0xCF and marker not in _NO_FRAME:  # noqa: PLR2004 - the markers of frames
            height, width = struct.unpack_from(">HH", data, place + 5)
            return height, width
        place += 2 + int(struct.unpack_from(">H", data, place + 2)[0])
    return None
