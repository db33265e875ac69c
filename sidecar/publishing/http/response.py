"""Define the answer to a request, and make one of text, of JSON, or of bytes that the client may have already."""

import hashlib
import json
from http import HTTPStatus
from typing import Any, Final, NamedTuple

TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"
HTML: Final = "text/html; charset=utf-8"


class Response(NamedTuple):
    """Hold an answer. `headers` come in addition to those that every answer has."""

    status: HTTPStatus
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


def response(status: HTTPStatus, text: str, content_type: str = TEXT) -> Response:
    """Return an answer with a text."""
    return Response(status, content_type, text.encode(errors="replace"))


def json_response(content: Any, status: HTTPStatus = HTTPStatus.OK) -> Response:
    """Return an answer with JSON. Raises `ValueError` for NaN and infinity, which are not JSON."""
    return response(status, json.dumps(content, indent=2, allow_nan=False) + "\n", JSON)


def tagged(answer: Response) -> Response:
    """Return an answer with an `ETag`, by which a client can ask whether it has changed."""
    return answer._replace(headers=(*answer.headers, ("ETag", f'"{hashlib.sha256(answer.body).hexdigest()[:24]}"')))


def unless_known(answer: Response, known: str) -> Response:
    """Return the answer, or 304 without a body if its `ETag` is among those of `If-None-Match`: RFC 9110, 13.1.2."""
    tag = dict(answer.headers).get("ETag")
    if tag is None or tag not in {each.strip().removeprefix("W/") for each in known.split(",")}:
        return answer
    return answer._replace(status=HTTPStatus.NOT_MODIFIED, body=b"")
