"""A sink for OpenTelemetry: each number of each evaluation is a point of a gauge, at the time of its completion.

    pip install ./examples/otel_sink       # into the daemon's environment

    [sinks.otel]                           # in sidecar.toml
    endpoint = "http://collector:4318"

The format is OTLP/HTTP with JSON, which every collector takes
(https://opentelemetry.io/docs/specs/otlp/#otlphttp), so that no package is needed.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any

from sidecar.sinks import Evaluation, SinkRefusedError, SinkUnavailableError

AGAIN = (429, 502, 503, 504)  # as the specification says: all other errors are final


class Otel:
    """Send one request for each evaluation."""

    name = "otel"  # the name of the entry point

    def __init__(self, endpoint: str, headers: Mapping[str, str], run: str, timeout_seconds: float) -> None:
        self.url = f"{endpoint.rstrip('/')}/v1/metrics"
        self.headers = {"Content-Type": "application/json", **headers}
        self.run = run
        self.timeout_seconds = timeout_seconds

    def write(self, evaluation: Evaluation) -> None:
        """Send an evaluation. It may come a second time: same time and numbers, so that it is the same point."""
        body = json.dumps(request_of(evaluation)).encode()
        request = urllib.request.Request(self.url, body, self.headers)
        try:
            with urllib.request.urlopen(request, timeout=self.timeout_seconds):
                return
        except urllib.error.HTTPError as error:
            with error:
                sentence = f"{self.url} answered {error.code} {error.reason}"
            if error.code in AGAIN:
                raise SinkUnavailableError(sentence) from error
            raise SinkRefusedError(sentence) from error
        except OSError as error:
            raise SinkUnavailableError(f"{self.url} cannot be reached: {error}") from error


def make(options: Mapping[str, Any], run: str, timeout_seconds: float) -> Otel:
    """Make the sink. A `ValueError` ends the daemon's start with its text, and `sidecar check` shows it, too."""
    unknown = set(options) - {"endpoint", "headers"}
    endpoint = options.get("endpoint")
    if unknown or not isinstance(endpoint, str) or not endpoint.startswith(("http://", "https://")):
        raise ValueError(f"write endpoint = 'http://HOST:4318', and headers if needed, not {sorted(options)}")
    return Otel(endpoint, options.get("headers", {}), run, timeout_seconds)


def request_of(evaluation: Evaluation) -> dict[str, Any]:
    """Return an `ExportMetricsServiceRequest` (opentelemetry/proto/collector/metrics/v1/metrics_service.proto)."""
    gauges = [
        {"name": name, "gauge": {"dataPoints": [point(evaluation, value, attributes)]}}
        for name, value, attributes in numbers_of(evaluation)
    ]
    resource = {"attributes": [attribute("service.name", "sidecar-evaluator")]}
    scope = {"scope": {"name": "sidecar"}, "metrics": gauges}
    return {"resourceMetrics": [{"resource": resource, "scopeMetrics": [scope]}]}


def numbers_of(evaluation: Evaluation) -> Iterator[tuple[str, float, dict[str, str]]]:
    """Yield name, value and attributes of each number."""
    for eval_set, metrics in evaluation.result.metrics.items():
        for metric, value in metrics.items():
            attributes = {"eval_set": eval_set, "metric": metric}
            yield "sidecar.result", float.fromhex(value.hex), attributes  # `hex` has NaN and infinity as well
            for name, bound in (("sidecar.result.lower", value.lower), ("sidecar.result.upper", value.upper)):
                if bound is not None:
                    yield name, bound, attributes


def point(evaluation: Evaluation, value: float, attributes: Mapping[str, str]) -> dict[str, Any]:
    """Return a `NumberDataPoint`. JSON of protobuf has 64-bit integers, NaN and infinity as texts."""
    step = {"key": "step", "value": {"intValue": str(evaluation.checkpoint.step)}}
    texts = [attribute(key, text) for key, text in {"run": evaluation.run, **attributes}.items()]
    finite = value - value == 0
    return {
        "timeUnixNano": str(evaluation.milliseconds * 1_000_000),
        "asDouble": value if finite else {"inf": "Infinity", "-inf": "-Infinity"}.get(str(value), "NaN"),
        "attributes": [*texts, step],
    }


def attribute(key: str, text: str) -> dict[str, Any]:
    """Return a `KeyValue` with a text. Bytes that are no text, such as in the name of a file, are escaped."""
    return {"key": key, "value": {"stringValue": text.encode(errors="backslashreplace").decode()}}
