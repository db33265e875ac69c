"""Serve the HTTP port of a daemon, read only: metrics, health, readiness, and the status as JSON and as a page.

`server` holds the connections, `access` and `hosts` decide which requests are answered, and `views` builds the answers.
"""

from sidecar.publishing.http.access import AccessFile
from sidecar.publishing.http.server import Server

__all__ = ["AccessFile", "Server"]
