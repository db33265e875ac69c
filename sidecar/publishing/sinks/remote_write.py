"""Send results to Prometheus by remote write, each at its own time, so that no scrape interval hides one.

Format: Prometheus remote write 1.0 (https://prometheus.io/docs/specs/prw/remote_write_spec/): a protobuf message,
compressed with snappy. The message has few fields and the compression is optional in snappy's format, so both are
written here. A real Prometheus reads them in tests.
"""

import struct
import urllib.error
import urllib.request
from collections.abc import Iterator
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Final

from sidecar.publishing.result_series import FAMILIES, ResultSample, result_samples
from sidecar.publishing.sinks.credential_file import authorization
from sidecar.publishing.sinks.http_request import NoRedirects, first_line, why_unanswered, without_user
from sidecar.publishing.sinks.protobuf import bytes_field, double_field, integer_field, text_field, varint
from sidecar.publishing.sinks.sink import Evaluation, SinkRefusedError, SinkUnavailableError
from sidecar.system.plain_text import one_line
from sidecar.version import version

_HEADERS: Final = {
    "Content-Encoding": "snappy",
    "Content-Type": "application/x-protobuf",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
_AGAIN: Final = frozenset({HTTPStatus.TOO_MANY_REQUESTS})  # and all 5xx, as the specification says
_LITERAL_BYTES: Final = 1 << 16  # the longest literal whose length takes two bytes


class RemoteWrite:
    """Send one request for each evaluation to a URL. A user and a password in it are sent as Basic authentication.

    `timeout_seconds`: limit for each step of a request: connect, send, wait for the answer. `authorization_file` holds
    the value of the header `Authorization`; it is read for each request.
    """

    name = "remote_write"

    def __init__(self, url: str, timeout_seconds: float, authorization_file: Path | None = None) -> None:
        self._url, self._headers = without_user(url)
        self._authorization_file = authorization_file
        self._timeout_seconds = timeout_seconds
        self._open = urllib.request.build_opener(NoRedirects).open

    def write(self, evaluation: Evaluation) -> None:
        """Send the samples of an evaluation. Prometheus ignores a sample that it has, with the same time and value."""
        samples = result_samples(evaluation.run, evaluation.checkpoint, evaluation.result)
        body = compressed(write_request(samples, evaluation.milliseconds))
        headers = {**_HEADERS, "User-Agent": f"sidecar-evaluator/{version()}", **self._headers}
        headers |= authorization(self._authorization_file)
        request = urllib.request.Request(self._url, body, headers, method="POST")  # noqa: S310 - http(s) by the setting's check
        try:
            with self._open(request, timeout=self._timeout_seconds):
                return
        except urllib.error.HTTPError as error:
            with error:
                answer = f"{self._url} answered {error.code} {one_line(error.reason)}: {first_line(error)}"
            if error.code >= HTTPStatus.INTERNAL_SERVER_ERROR or error.code in _AGAIN:
                raise SinkUnavailableError(answer) from error
            raise SinkRefusedError(answer) from error
        except (OSError, HTTPException) as error:
            raise SinkUnavailableError(f"{self._url} cannot be reached: {why_unanswered(error)}") from error


def write_request(samples: Iterator[ResultSample], milliseconds: int) -> bytes:
    """Return the samples as `prometheus.WriteRequest` (prompb/remote.proto, prompb/types.proto)."""
    parts = []
    for sample in samples:
        labels = {"__name__": sample.family, **dict(zip(FAMILIES[sample.family][0], sample.labels, strict=True))}
        series = [bytes_field(1, text_field(1, name) + text_field(2, value)) for name, value in sorted(labels.items())]
        at = double_field(1, sample.value) + integer_field(2, milliseconds)
        parts.append(bytes_field(1, b"".join([*series, bytes_field(2, at)])))
    return b"".join(parts)


def compressed(data: bytes) -> bytes:
    """Return the data in snappy's block format, as literals: a request is sent once and is small.

    Source: https://github.com/google/snappy/blob/main/format_description.txt
    """
    parts = [varint(len(data))]
    for start in range(0, len(data), _LITERAL_BYTES):
        literal = data[start : start + _LITERAL_BYTES]
        parts += [bytes([61 << 2]), struct.pack("<H", len(literal) - 1), literal]
    return b"".join(parts)
