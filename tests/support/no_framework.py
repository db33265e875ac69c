"""A pytest plugin for `make test-fast` (`-p no_framework`): a test that imports a framework in its process fails.

Tests of properties try fewer examples than in `make test`, and temporary files are in memory where there is room.
"""

import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from hypothesis import settings

WHOLLY_MARKED = re.compile(r"^pytestmark = \[?pytest\.mark\.(tensorflow|torch)\b", re.MULTILINE)
MEMORY = Path("/dev/shm")
ROOM_BYTES = 4 << 30  # ten times what the tests need
FRAMEWORKS = {"jax", "keras", "tensorflow", "tf_keras", "torch"}


class Refusing:
    """Finds no framework; stands before all other finders of `sys.meta_path`."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> None:
        """Refuse a framework; leave all else to the finders behind."""
        if name in FRAMEWORKS:
            raise ImportError(f"{name} is imported by a test that is not marked `tensorflow` or `torch`", name=name)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Pass over files in which every test is marked: they may import a framework at their beginning."""
    is_marked = collection_path.suffix == ".py" and WHOLLY_MARKED.search(collection_path.read_text())
    return True if is_marked else None


sys.meta_path.insert(0, Refusing())
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM_BYTES:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
settings.register_profile("fast", max_examples=20)
settings.load_profile("fast")
