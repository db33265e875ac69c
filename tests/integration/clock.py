"""A clock of its own for a daemon and all that it starts; odd_clock/sitecustomize.py reads what is set here."""

from pathlib import Path

_FOLDER = Path(__file__).parent / "odd_clock"


class Clock:
    """The clock of one node: hours by which it is wrong, and its rate."""

    def __init__(self, path):
        self._path = path
        self.environ = {"ODD_CLOCK": str(path), "PYTHONPATH": str(_FOLDER)}
        self.set(0)

    def set(self, hours, rate=1.0):
        """Step it; a reader finds the one or the other."""
        part = self._path.with_suffix(".part")
        part.write_text(f"{hours} {rate}")
        part.replace(self._path)
