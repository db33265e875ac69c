"""Post events to a URL, signed as the Standard Webhooks specification says, so that any receiver can verify them.

Format: https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md, version 1: the
headers `webhook-id`, `webhook-timestamp` and `webhook-signature`. A receiver is not trusted: no redirection is
followed, only the beginning of its answer is read, and one time limit holds for the whole exchange.
"""

import base64
import contextlib
import hashlib
import hmac
import http.client
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from sidecar.publishing.sinks.chat_message import chat_message
from sidecar.publishing.sinks.credential_file import authorization
from sidecar.publishing.sinks.http_request import NoRedirects, first_line, why_unanswered, without_user
from sidecar.publishing.sinks.sink import SinkRefusedError, SinkUnavailableError
from sidecar.version import version

_RECEIVED_BYTES: Final = 1 << 15
_RETRYABLE: Final = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS})


@dataclass(slots=True)
class Webhook:
    """Post events to one URL. One thread calls `send`, another one may call `close`."""

    # URL of the receiver. A user and a password in it are sent as Basic authentication.
    url: str
    secret: bytes | None  # the key of the signature; None: events are not signed
    timeout_seconds: float  # limit for the whole exchange, from the connection to the answer
    authorization_file: Path | None = None  # with the value of the header `Authorization`, read for each event
    form: str = "event"  # what is posted, as in `chat_message`
    wall: Callable[[], float] = time.time  # returns the Unix time in seconds, for the timestamp
    _connections: list["_Abortable"] = field(default_factory=list)

    @property
    def shown(self) -> str:
        """Return the receiver without what may be secret: user, password, path and query."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"

    def send(self, body: bytes, id_: str) -> None:
        """Post an event, or the message of a chat program about it.

        Raises `SinkUnavailableError` if the receiver does not answer in time or asks for another try (5xx, 408, 425,
        429), and `SinkRefusedError` if it answers anything else than 2xx.
        """
        url, headers = without_user(self.url)
        body = chat_message(self.form, body)
        headers |= {"Content-Type": "application/json", "User-Agent": f"sidecar-evaluator/{version()}"}
        headers |= authorization(self.authorization_file)
        headers |= signed_headers(body, id_, round(self.wall()), self.secret)
        request = urllib.request.Request(url, body, headers, method="POST")  # noqa: S310 - http(s) by the setting's check
        self._connections.clear()
        opener = urllib.request.build_opener(NoRedirects, _Http(self._connections), _Https(self._connections))
        limit = threading.Timer(self.timeout_seconds, self.close)
        limit.daemon = True
        limit.start()
        try:
            with opener.open(request, timeout=self.timeout_seconds):
                self._require_complete()
        except urllib.error.HTTPError as error:
            self._raise_for(error)
        except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: bytes that are not HTTP
            why = why_unanswered(error)
            if any(connection.aborted for connection in self._connections):
                why = f"no whole answer within {self.timeout_seconds:g} s"
            raise SinkUnavailableError(f"{self.shown} does not answer: {why}") from error
        finally:
            limit.cancel()

    def close(self) -> None:
        """Break off the exchange that is under way."""
        for connection in self._connections:
            connection.abort()

    def _require_complete(self) -> None:
        """Raise if the exchange was broken off: http.client takes the end of a connection for that of the headers."""
        if any(connection.aborted for connection in self._connections):
            raise TimeoutError

    def _raise_for(self, error: urllib.error.HTTPError) -> None:
        """Raise the error of a sink for an answer other than 2xx: `SinkUnavailableError` if a later try may succeed."""
        with error:
            text = first_line(error)
        answer = f"{self.shown} answered {error.code}" + (f": {text}" if text else "")
        if error.code >= HTTPStatus.INTERNAL_SERVER_ERROR or error.code in _RETRYABLE:
            raise SinkUnavailableError(answer) from error
        if HTTPStatus.MULTIPLE_CHOICES <= error.code < HTTPStatus.BAD_REQUEST:
            answer += "; redirections are not followed: give the URL that it leads to"
        raise SinkRefusedError(answer) from error


def signed_headers(body: bytes, id_: str, timestamp: int, secret: bytes | None) -> dict[str, str]:
    """Return the headers of Standard Webhooks. `timestamp`: Unix time of this attempt in seconds."""
    headers = {"webhook-id": id_, "webhook-timestamp": str(timestamp)}
    if secret is not None:
        mac = hmac.new(secret, f"{id_}.{timestamp}.".encode() + body, hashlib.sha256).digest()
        headers["webhook-signature"] = f"v1,{base64.b64encode(mac).decode()}"
    return headers


class _Abortable(http.client.HTTPConnection):
    """Let another thread break off whatever this connection waits for."""

    connected: socket.socket | None = None
    aborted = False

    def connect(self) -> None:
        """Connect, and remember the socket: urllib forgets it once an answer begins."""
        super().connect()
        self.connected = self.sock
        # Received bytes can still be read after the end, so there must not be many.
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVED_BYTES)
        if self.aborted:  # before there was a socket that could be shut down
            raise TimeoutError

    def abort(self) -> None:
        """Shut the socket down, so that reading and writing on it end at once."""
        self.aborted = True
        for opened in (self.connected, self.sock):
            if opened is not None:
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(opened, socket.SHUT_RDWR)  # SSL's own method is not for two threads


class _AbortableTls(_Abortable, http.client.HTTPSConnection):
    """Let another thread break off a TLS connection. urllib verifies certificate and host name by default."""


class _Http(urllib.request.HTTPHandler):
    def __init__(self, connections: list[_Abortable]) -> None:
        super().__init__()
        self._connections = connections

    def http_open(self, request: urllib.request.Request) -> Any:
        """Open a connection that can be aborted."""
        return self.do_open(_registering(_Abortable, self._connections), request)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, connections: list[_Abortable]) -> None:
        super().__init__()
        self._connections = connections

    def https_open(self, request: urllib.request.Request) -> Any:
        """Open a connection that can be aborted."""
        return self.do_open(_registering(_AbortableTls, self._connections), request)


def _registering(kind: type[_Abortable], connections: list[_Abortable]) -> Any:
    """Return a function that makes a connection and adds it to the list, from which `Webhook.close` aborts it."""

    def make(*arguments: Any, **named: Any) -> _Abortable:
        connections.append(made := kind(*arguments, **named))
        return made

    return make
