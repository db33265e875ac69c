"""Declare the log that the parts of a daemon write to: events by name, with fields."""

from typing import Protocol


class EventLog(Protocol):
    """Log events by their names. `publishing.events` lists the names."""

    def info(self, event: str, **fields: object) -> object:
        """Log an event."""

    def warning(self, event: str, **fields: object) -> object:
        """Log an event that may need somebody's attention."""
