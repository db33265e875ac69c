"""End a test that lacks a program: skipped, or failed if TEST_REQUIRES names the program."""

import os
from typing import NoReturn

import pytest


def give_up(program: str, reason: str) -> NoReturn:
    """Skip the test, because the program cannot be used here; fail it if TEST_REQUIRES names the program."""
    required = program in os.environ.get("TEST_REQUIRES", "").split(",")
    (pytest.fail if required else pytest.skip)(reason)
