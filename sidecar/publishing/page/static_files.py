"""Hold the files that a browser loads. They are part of the package, so the page works without a network.

The path of a file holds a digest of all files, so a browser may keep them forever, and never mixes two releases.
uPlot is used as its authors published it; a test compares the files with these digests.
"""

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

TYPES: Final = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".LICENSE": "text/plain; charset=utf-8",
}

UPLOT_VERSION: Final = "1.6.32"
"""The version of uPlot: https://www.npmjs.com/package/uplot, from the folder `dist` of the package, MIT license."""

UPLOT_SHA256: Final = {
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uPlot.LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}
"""Digests of its files as they are published."""


@dataclass(frozen=True, slots=True)
class StaticFile:
    """Hold one file."""

    content_type: str
    content: bytes


@lru_cache(maxsize=1)
def static_files() -> dict[str, StaticFile]:
    """Return all files by their paths, such as `/static/0123456789ab/page.css`. They are read at the first call."""
    read = {
        path.name: StaticFile(TYPES[path.suffix], path.read_bytes())
        for path in sorted(Path(__file__).with_name("static").iterdir())
        if path.suffix in TYPES
    }
    digest = hashlib.sha256(b"".join(name.encode() + file.content for name, file in read.items())).hexdigest()[:12]
    return {f"/static/{digest}/{name}": file for name, file in read.items()}


def static_base() -> str:
    """Return the folder of the files, as in their paths."""
    return next(iter(static_files())).rpartition("/")[0]
