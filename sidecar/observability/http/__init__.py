"""Serve the one HTTP port of a daemon, read only: metrics, health, readiness, status as JSON and as a page for people.

`server` holds the connections, `hosts` decides whose requests are answered, `views` makes the answers.
"""

from sidecar.observability.http.server import Server, dialled

__all__ = ["Server", "dialled"]
