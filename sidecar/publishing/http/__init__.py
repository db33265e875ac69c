"""Serve the HTTP port of a daemon, read only: metrics, health, readiness, and the status as JSON and as a page.

`server` holds the connections, `hosts` decides which requests are answered, and `views` builds the answers.
"""

from sidecar.publishing.http.server import Server

__all__ = ["Server"]
