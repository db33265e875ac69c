"""A daemon sends every result to a real Prometheus, which is away for a while, and writes it for TensorBoard."""

import ctypes
import signal
import time

import pytest
from numpy_trainer import NUMPY
from prometheus_server import PrometheusServer
from tensorboard_reader import read_events

QUERY = 'sidecar_result{metric="loss"}[10m]'


@pytest.fixture
def server(needs, tmp_path):
    with PrometheusServer(needs("prometheus"), tmp_path / "prometheus") as made:
        yield made


def pending(daemon):
    """The number of results that Prometheus lacks, as /metrics has it."""
    return list(daemon.samples("sidecar_sink_pending_results").values())


def test_every_result_arrives_once(sidecar, numpy_trainer, server, place, tmp_path):
    """While Prometheus is down, after a restart of the daemon, and before one that ends by itself has ended."""
    settings = NUMPY | {"SIDECAR_REMOTE_WRITE": server.receiver, "SIDECAR_SINK_TIMEOUT_SECONDS": "20"}
    settings |= {"SIDECAR_TENSORBOARD_DIR": str(tmp_path / "logs")}
    saved = numpy_trainer.save(place, 10, 20, 30)
    daemon = sidecar.run(place, task="numpy_plain.py", **settings)
    daemon.evaluated(*saved)
    daemon.until(lambda: len(server.samples(QUERY, time.time())) == 3, "three results to arrive")
    server.kill()
    daemon.evaluated(*numpy_trainer.save(place, 40, 50))
    daemon.logged("sink_failed")
    daemon.until(lambda: 2 in pending(daemon), "two results to wait")
    server.start()
    daemon.until(lambda: pending(daemon) == [0, 0], "the results to arrive")
    assert daemon.end(signal.SIGTERM).code == 0
    numpy_trainer.save(place, 60)
    last = sidecar.run(place, "--once", task="numpy_plain.py", **settings)
    assert last.wait().code == 0
    numbers = [row["metrics"]["test"]["loss"]["hex"] for row in last.successes()]
    assert [number.hex() for _, number in server.samples(QUERY, time.time())] == numbers
    assert len(numbers) == 6
    assert [float(number) for _, number in server.samples("sidecar_result_step[10m]", time.time())] == [
        *range(10, 70, 10)
    ]
    assert "sink_refused" not in daemon.err + last.err

    shown = read_events(tmp_path / "logs" / "test").Scalars("loss")
    assert [each.step for each in shown] == [10, 20, 30, 40, 50, 60]
    assert [each.value for each in shown] == [ctypes.c_float(float.fromhex(number)).value for number in numbers]


@pytest.mark.parametrize("url", ["prometheus:9090", "ftp://me:secret@a/b", "http://", "http://[::1/x", "http://a/b?c"])
def test_a_wrong_url_is_one_sentence(sidecar, place, url):
    """Name the value that was written and the one to write."""
    done = sidecar.command("status", place, SIDECAR_REMOTE_WRITE=url)
    assert done.code == 2
    assert "SIDECAR_REMOTE_WRITE" in done.sentence
    assert "http://prometheus:9090/api/v1/write" in done.sentence or "IPv6" in done.sentence
    assert "secret" not in done.sentence
