"""Compute the digest of the code that makes numbers. Nodes evaluate together only if theirs are equal.

A daemon puts it into its heartbeat, and workers compare theirs in the hello, because an upgrade may replace the files
under a daemon that runs. Standard library only.
"""

import hashlib
from functools import cache
from pathlib import Path
from typing import Final

COVERED: Final = ("errors.py", "evaluation", "protocol", "system")
"""The files and folders of the package that worker processes import, apart from the public modules that lead there."""


@cache
def source_digest() -> str:
    """Return the digest of the sources as they are at the first call of this process, which should be at its start."""
    return digest_of(Path(__file__).resolve().parents[1])


def digest_of(package: Path) -> str:
    """Return a hex SHA-256 over the names and bytes of the covered modules: equal in a clone and in a wheel of it.

    Raises `OSError` if a file cannot be read.
    """
    files = [file for name in COVERED for file in _modules(package / name)]
    digest = hashlib.sha256()
    for name, file in sorted((file.relative_to(package).as_posix(), file) for file in files):
        content = file.read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _modules(path: Path) -> list[Path]:
    return [path] if path.suffix == ".py" else list(path.rglob("*.py"))
