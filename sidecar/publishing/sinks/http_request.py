"""Prepare requests to URLs of the settings: remote write and webhooks share this."""

import base64
import contextlib
import http.client
import ssl
import urllib.error
import urllib.request
from typing import Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

from sidecar.system.plain_text import one_line

_ANSWER_BYTES: Final = 1024
_SHOWN_CHARACTERS: Final = 200


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


def first_line(error: urllib.error.HTTPError) -> str:
    """Return the beginning of the first line of an answer, as far as it can be read, for people."""
    answer = b""
    with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
        answer = error.read(_ANSWER_BYTES)
    return one_line(answer.decode(errors="replace").strip().partition("\n")[0])[:_SHOWN_CHARACTERS]


def why_unanswered(error: Exception) -> str:
    """Return why a request has no answer, for people."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        message = one_line(reason.verify_message).rstrip(".")
        return f"its certificate is not accepted: {message}; renew it, or name its authority in SSL_CERT_FILE"
    return one_line(str(reason) or type(reason).__name__)[:_SHOWN_CHARACTERS]
