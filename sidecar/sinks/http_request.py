"""Prepare requests to URLs of the settings: remote write and webhooks share this."""

import base64
import urllib.request
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """Take a redirection for an error.

    urllib would repeat the request without its body, and it may lead to a service that only this machine can reach.
    """

    def redirect_request(self, *_: Any) -> None:
        """Refuse to follow."""
        return


def without_user(url: str) -> tuple[str, dict[str, str]]:
    """Return the URL without user and password, and the header that they become."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, {}
    secret = base64.b64encode(unquote(user).encode()).decode()
    return urlunsplit(parts._replace(netloc=host)), {"Authorization": f"Basic {secret}"}
