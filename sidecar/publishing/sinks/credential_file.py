"""Read credentials for a receiver of results from a file each time that they are used, so that they can be renewed."""

import os
from pathlib import Path
from typing import Final

from sidecar.publishing.sinks.sink import SinkUnavailableError

_MOST_BYTES: Final = 16 * 1024  # tokens of clouds have some 4,000 characters


def authorization(file: Path | None) -> dict[str, str]:
    """Return the header `Authorization` with the value that a file holds now, such as `Bearer TOKEN`.

    Raises `SinkUnavailableError`: the file may be being renewed.
    """
    return {} if file is None else {"Authorization": secret_line(file)}


def secret_line(file: Path) -> str:
    """Return the one line of a file. Raises `SinkUnavailableError`, which does not show the line."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as opened:
            text = opened.read(_MOST_BYTES + 1).decode("ascii").strip()
    except UnicodeDecodeError:
        text = ""
    except OSError as error:
        raise SinkUnavailableError(f"{file} cannot be read: {error.strerror}") from error
    if not text or not text.isprintable() or len(text) > _MOST_BYTES:
        raise SinkUnavailableError(f"{file} does not hold one line of ASCII characters, at most {_MOST_BYTES}")
    return text
