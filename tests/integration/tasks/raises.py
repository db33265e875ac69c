"""A task file that cannot be imported."""

WEIGHTS = {"light": 1}
HEAVY = WEIGHTS["heavy"]


def task():
    """Return nothing: the import of this file fails before."""
