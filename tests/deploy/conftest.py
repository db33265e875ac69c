"""Programs that only deployment needs: skipped where they are missing, required where everything must be tried."""

import os
import shutil
from collections.abc import Callable

import pytest


@pytest.fixture(scope="session")
def needs() -> Callable[[str], str]:
    """`needs("promtool")` is its path; without it the test is skipped, or fails if TEST_REQUIRES names it."""

    def find(program: str) -> str:
        found = shutil.which(program)
        if found is None:
            required = program in os.environ.get("TEST_REQUIRES", "").split(",")
            (pytest.fail if required else pytest.skip)(f"{program} is not installed")
        return found

    return find
