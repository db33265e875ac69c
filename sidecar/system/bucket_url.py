"""Recognise and take apart the URL of a folder in a bucket. Standard library only; nothing is sent."""

import re
from pathlib import Path
from typing import Final

_URL: Final = re.compile(r"(s3|gs|az)://([A-Za-z0-9][A-Za-z0-9._-]{0,254})((?:/[^/\0]+)*)/*")
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*:/", re.IGNORECASE)


def is_url(value: object) -> bool:
    """Return whether a value is written as a URL, also if `Path` has made one slash of two."""
    return isinstance(value, str | Path) and _SCHEME.match(str(value)) is not None


def as_typed(path: Path) -> str:
    """Return a path as text; a URL, of whose slashes `Path` has made one, with both."""
    return re.sub(r":/+", "://", str(path), count=1) if is_url(path) else str(path)


def split_url(url: str) -> tuple[str, str, str]:
    """Return scheme, bucket and prefix, which may be empty. Raises `ValueError` with what to write.

    >>> split_url("s3://bucket/run/backups/")
    ('s3', 'bucket', 'run/backups')
    """
    match = _URL.fullmatch(url)
    if match is None or not {".", ".."}.isdisjoint(match[3].split("/")):
        raise ValueError("write the URL of a bucket's folder, such as s3://bucket/folder, gs://… or az://…")
    return match[1], match[2], match[3].strip("/")
