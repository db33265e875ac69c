"""Write Unicode to terminals and files whose encoding has only some of it, such as Latin-1: each character becomes one.

The drawing characters of this program get a likeness in ASCII, so that columns and bars stay as they are. All other
characters that the encoding lacks are escaped, because a replaced one would make two names equal.
"""

import codecs
import io
from collections.abc import Iterable
from typing import Final, TextIO

_LIKENESS: Final = {
    **dict(zip("▁▂▃▄▅▆▇█", "_.-=+*%#", strict=True)),
    **dict.fromkeys("━╸╺─", "-"),
    "★": "*",
    "…": "~",
}
_HANDLER: Final = "sidecar.likeness"
_BRAILLE: Final = range(0x2800, 0x2900)  # https://www.unicode.org/charts/PDF/U2800.pdf
_UPPER_DOTS: Final = 0b00011011  # dots 1, 2, 4 and 5 of a cell


def likeness(character: str) -> str:
    """Return the ASCII likeness of a drawing character, or an escape of any other character."""
    if ord(character) in _BRAILLE:
        dots = ord(character) - _BRAILLE.start
        upper, lower = dots & _UPPER_DOTS, dots & ~_UPPER_DOTS
        return ":" if upper and lower else "'" if upper else "." if lower else " "
    return _LIKENESS.get(character) or character.encode("ascii", "backslashreplace").decode("ascii")


def use_fallback(streams: Iterable[TextIO]) -> None:
    """Let streams whose encoding is not UTF-8 write a likeness of what the encoding lacks."""
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper) and not codecs.lookup(stream.encoding).name.startswith("utf"):
            codecs.register_error(_HANDLER, _handle)
            stream.reconfigure(errors=_HANDLER)


def _handle(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(likeness, error.object[error.start : error.end])), error.end
