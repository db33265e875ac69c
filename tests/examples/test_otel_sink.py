"""The example of a sink: installed from its folder, loaded by its entry point, read by OpenTelemetry's own classes."""

import http.server
import math
import subprocess
import sys
import threading

import pytest
from examples.example_programs import EXAMPLES
from fakes import ListLog
from journals import ACCURACY, Journal
from statuses import make_status

from sidecar.coordination.storage import PosixStorage
from sidecar.errors import SettingsError
from sidecar.protocol.records import Value
from sidecar.publishing.sinks.delivery import Delivery
from sidecar.publishing.sinks.installed import load

pytestmark = pytest.mark.seconds

PATIENCE_SECONDS = 240.0


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder into which pip has installed the example, without a network."""
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*words, "--disable-pip-version-check", "--target", folder, EXAMPLES / "otel_sink"], check=True)
    return folder


@pytest.fixture
def collector():
    """A server that keeps what it gets, and answers `codes`, then 200."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            code = self.server.codes.pop(0) if self.server.codes else 200
            if code == 200:
                self.server.got.append((self.path, self.headers["Authorization"], body))
            self.send_response(code)
            self.end_headers()

        def log_message(self, *_):
            return

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    server.got, server.codes = [], []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def deliver(sink, place, journal, log):
    """Deliver all that a journal holds, as a daemon does that then ends."""
    made = Delivery(sink, PosixStorage(place), "mnist", log)
    made.start()
    made.update(make_status(run="mnist", state="ready", publisher=True, journal_read=True), journal.history)
    made.close(PATIENCE_SECONDS)


def points(body):
    """Name, value, milliseconds and attributes of each point, as OpenTelemetry's classes read the request."""
    from google.protobuf import json_format
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    request = json_format.Parse(body, ExportMetricsServiceRequest())
    return [
        (
            metric.name,
            point.as_double.hex(),
            point.time_unix_nano // 1_000_000,
            {each.key: each.value.string_value or each.value.int_value for each in point.attributes},
        )
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.gauge.data_points
    ]


def test_every_result_arrives(site, collector, tmp_path, monkeypatch):
    """With its own time, all bits and odd names; one that the collector refuses holds up nothing."""
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("no_proxy", "*")
    options = {"endpoint": f"http://127.0.0.1:{collector.server_port}/", "headers": {"Authorization": "Bearer t"}}
    sink, log, journal = load("otel", options, "mnist", 5.0), ListLog(), Journal()
    numbers = [2**-0.5, math.nan, math.inf, -math.inf]
    for step, number in enumerate(numbers):
        odd = Value(value=number if math.isfinite(number) else None, hex=number.hex())
        journal.evaluate(f"ckpt-{step}", step, {"accuracy": ACCURACY, "odd \udc80": odd})
    journal.evaluate("ckpt-9", 9)
    collector.codes = [503]
    deliver(sink, tmp_path, journal, log)
    assert log.names() == ["sink_failed"]
    collector.codes = [400]
    deliver(sink, tmp_path, journal, log)
    assert log.names() == ["sink_failed", "sink_refused"]
    assert "400" in log.events[1][1]["reason"]
    assert {(path, login) for path, login, _ in collector.got} == {("/v1/metrics", "Bearer t")}
    found = [points(body) for _, _, body in collector.got]
    shown = {"run": "mnist", "eval_set": "test"}
    times = [milliseconds for each in found for _, _, milliseconds, _ in each[:1]]
    assert times == sorted(set(times))
    for step, number in enumerate(numbers[1:], start=1):
        values = {(name, labels["metric"]): value for name, value, _, labels in found[step - 1]}
        assert values == {
            ("sidecar.result", "accuracy"): ACCURACY.hex,
            ("sidecar.result.lower", "accuracy"): (0.95).hex(),
            ("sidecar.result.upper", "accuracy"): (0.98).hex(),
            ("sidecar.result", r"odd \udc80"): number.hex(),
        }
        assert all(labels.items() >= {**shown, "step": step}.items() for _, _, _, labels in found[step - 1])
    assert len(found) == 4


@pytest.mark.parametrize("options", [{}, {"endpoint": "collector:4318"}, {"endpoint": "http://a", "end": 1}])
def test_wrong_options(site, monkeypatch, options):
    """The sink's own sentence is shown."""
    monkeypatch.syspath_prepend(str(site))
    with pytest.raises(SettingsError, match="http://HOST:4318"):
        load("otel", options, "mnist", 5.0)
