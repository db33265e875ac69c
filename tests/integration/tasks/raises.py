"""A task file that cannot be imported."""

WEIGHTS = {"light": 1}
HEAVY = WEIGHTS["heavy"]


def task():
    """Never reached."""
