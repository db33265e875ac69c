"""A real Prometheus has every result that was written to it, to the bit, and whatever happened on the way."""

import http.server
import math
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from fakes import ListLog
from journals import Journal
from prometheus_server import PrometheusServer
from publishing.sinks.conftest import SHORT_PAUSES
from receivers import raw_server
from statuses import make_status

from sidecar.coordination.journal_state import JournalState
from sidecar.coordination.storage import PosixStorage
from sidecar.protocol.records import Value
from sidecar.publishing.result_series import ResultSample
from sidecar.publishing.sinks.delivery import Delivery
from sidecar.publishing.sinks.progress import Progress, write_progress
from sidecar.publishing.sinks.remote_write import RemoteWrite, compressed, write_request
from sidecar.publishing.sinks.sink import Evaluation, SinkRefusedError, SinkUnavailableError

PATIENCE_SECONDS = 240.0
TIMEOUT_SECONDS = 5.0


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")


def value(number):
    return Value(value=number if math.isfinite(number) else None, hex=number.hex(), lower=-1.0, upper=1.5)


def at(entries, begin, seconds):
    """The history of these entries, each completed some seconds after the one before."""
    history = JournalState()
    for index, entry in enumerate(entries):
        moment = datetime.fromtimestamp(begin + index * seconds, UTC).isoformat(timespec="milliseconds")
        history.apply(entry.plan)
        history.apply(replace(entry.outcome, completed_at=moment.replace("+00:00", "Z")))
    return history


def deliver(storage, url, history):
    """Deliver a history as a daemon does that then ends; return what is still to be delivered."""
    made = Delivery(RemoteWrite(url, TIMEOUT_SECONDS), storage, "mnist", ListLog(), pauses=SHORT_PAUSES)
    made.start()
    made.update(make_status(run="mnist", state="ready", publisher=True, journal_read=True), history)
    made.close(PATIENCE_SECONDS)
    assert made.status.failing is None
    return made.status.pending


@pytest.fixture
def server(needs, tmp_path):
    with PrometheusServer(needs("prometheus"), tmp_path / "prometheus") as made:
        yield made


def test_forty_results_in_sixteen_seconds(server, tmp_path):
    """A scrape every 15 s would have seen two of them. All bits, times, steps and odd names are there."""
    journal, begin = Journal(), round(time.time()) - 60
    odd = 'odd "name"\\ of\nall Ω'
    numbers = [*map(math.sin, range(37)), math.inf, -math.inf, 5e-324]
    for index, number in enumerate(numbers):
        journal.plan(f"ckpt-{index}", step=100 * index)
        journal.succeed({"loss": value(number), odd: value(number)}, classes={"recall": {"a cat": value(number)}})
    history = at(journal.history.entries, begin, 0.4)
    assert deliver(PosixStorage(tmp_path / "state"), server.receiver, history) == 0
    now = begin + 60
    for query in (
        'sidecar_result{run="mnist",eval_set="test",metric="loss"}[5m]',
        'sidecar_result{run="mnist",metric=~"(?s)odd.*"}[5m]',
        'sidecar_result_class{run="mnist",metric="recall",class="a cat"}[5m]',
    ):
        found = server.samples(query, now)
        assert [number.hex() for _, number in found] == [number.hex() for number in numbers]
        assert [moment for moment, _ in found] == pytest.approx([begin + 0.4 * index for index in range(40)], abs=2e-3)
    assert server.series(f"sidecar_result_step{{run='mnist'}} @ {begin + 15.9}", now)[0]["value"][1] == "3900"
    (series,) = server.series('sidecar_result{metric=~"(?s)odd.*"}', begin + 20)
    assert series["metric"]["metric"] == odd
    assert [number for _, number in server.samples("sidecar_result_upper{metric='loss'}[5m]", now)] == [1.5] * 40


def test_prometheus_is_killed_and_comes_back(server, tmp_path):
    """Nothing is lost, and nothing is there twice, though daemons end meanwhile, too."""
    journal, begin = Journal(), round(time.time()) - 60
    storage = PosixStorage(tmp_path / "state")
    for index in range(30):
        journal.evaluate(f"ckpt-{index}", index, {"loss": value(float(index))})
    history = at(journal.history.entries, begin, 1.0)
    made = Delivery(RemoteWrite(server.receiver, TIMEOUT_SECONDS), storage, "mnist", ListLog(), pauses=SHORT_PAUSES)
    made.start()
    publishing = make_status(run="mnist", state="ready", publisher=True, journal_read=True)
    made.update(publishing, at(journal.history.entries[:10], begin, 1.0))
    until(lambda: server.samples("sidecar_result[5m]", begin + 60))
    server.kill()
    made.update(publishing, history)
    until(lambda: made.status.failing is not None)
    made.close(0.1)
    server.start()
    assert deliver(storage, server.receiver, history) == 0
    found = server.samples('sidecar_result{metric="loss"}[5m]', begin + 60)
    assert [number for _, number in found] == list(range(30))
    write_progress(storage, "remote_write", Progress(run="mnist", plan=29))  # its last record is lost
    assert deliver(storage, server.receiver, history) == 0
    assert len(server.samples('sidecar_result{metric="loss"}[5m]', begin + 60)) == 30, "the newest one, a second time"


def until(condition):
    """Wait until something holds."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture
def answering():
    """Make a receiver that gives an answer; it returns its URL and the requests."""
    servers = []

    def answer(code, body=b"", **headers):
        requests = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                requests.append((self.headers, self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(code)
                for name, text in headers.items():
                    self.send_header(name, text)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                return

        servers.append(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"127.0.0.1:{servers[-1].server_port}", requests

    yield answer
    for each in servers:
        each.shutdown()
        each.server_close()


@pytest.fixture
def evaluation():
    journal = Journal()
    closed = journal.evaluate("ckpt-1", 100)
    return Evaluation(
        run="mnist", plan=1, checkpoint=closed.plan.checkpoint, result=closed.outcome.result, milliseconds=1
    )


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (400, SinkRefusedError),
        (401, SinkRefusedError),
        (404, SinkRefusedError),
        (302, SinkRefusedError),
        (429, SinkUnavailableError),
        (500, SinkUnavailableError),
        (503, SinkUnavailableError),
    ],
)
def test_answers_of_receivers(answering, evaluation, code, error):
    """As the specification says: 5xx and 429 are tried again. The error shows the answer, and no control character."""
    address, requests = answering(code, b"out of \x1b[31morder\nsecond line", Location="http://127.0.0.1:1/")
    with pytest.raises(error, match=str(code)) as raised:
        RemoteWrite(f"http://{address}/write", TIMEOUT_SECONDS).write(evaluation)
    assert len(requests) == 1
    assert "\x1b" not in str(raised.value)
    assert "second" not in str(raised.value)


def test_an_answer_that_cannot_be_read_whole(evaluation):
    """Its status decides: one that refuses the result for good does not hold up the next ones."""

    def talk(connection, _):
        connection.recv(1 << 16)
        connection.sendall(b"HTTP/1.1 400 \x1b[31mNo\r\nTransfer-Encoding: chunked\r\n\r\nZZZ\r\n")

    with raw_server(talk) as url, pytest.raises(SinkRefusedError, match="400") as raised:
        RemoteWrite(url, TIMEOUT_SECONDS).write(evaluation)
    assert str(raised.value).isprintable()


def test_a_user_and_a_password(answering, evaluation):
    """They become a header, and no error shows them."""
    address, requests = answering(200)
    RemoteWrite(f"http://me:se%40cret@{address}/write", TIMEOUT_SECONDS).write(evaluation)
    headers, _ = requests[0]
    assert headers["Authorization"] == "Basic bWU6c2VAY3JldA=="
    assert headers["Content-Encoding"] == "snappy"
    address, _ = answering(403)
    with pytest.raises(SinkRefusedError) as raised:
        RemoteWrite(f"http://me:se%40cret@{address}/write", TIMEOUT_SECONDS).write(evaluation)
    assert "cret" not in str(raised.value)


def test_nobody_answers(evaluation):
    """It is tried again."""
    with pytest.raises(SinkUnavailableError, match="refused"):
        RemoteWrite("http://127.0.0.1:1/write", TIMEOUT_SECONDS).write(evaluation)


def test_a_receiver_that_is_no_http(evaluation):
    """It is tried again, like any receiver that does not work."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer():
            connection, _ = listening.accept()
            connection.recv(65536)
            connection.sendall(b"\xff\xfe\x00 not HTTP\r\n\r\n")
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(SinkUnavailableError):
            RemoteWrite(f"http://127.0.0.1:{listening.getsockname()[1]}/", TIMEOUT_SECONDS).write(evaluation)
        thread.join(PATIENCE_SECONDS)


def test_more_than_one_literal(needs, tmp_path):
    """A request of more than 64 KiB, as many classes make it."""
    samples = [ResultSample("sidecar_result_class", ("r", "test", "recall", f"class {n}"), n) for n in range(2000)]
    body = write_request(iter(samples), round(1000 * time.time()))
    assert len(body) > 1 << 16
    assert len(compressed(body)) < len(body) + 16
    with PrometheusServer(needs("prometheus"), tmp_path / "prometheus") as server:
        sink = RemoteWrite(server.receiver, TIMEOUT_SECONDS)
        classes = {f"class {n}": value(float(n)) for n in range(2000)}
        journal = Journal()
        journal.plan("ckpt-1")
        closed = journal.succeed(classes={"recall": classes})
        sink.write(
            Evaluation(
                run="r",
                plan=1,
                checkpoint=closed.plan.checkpoint,
                result=closed.outcome.result,
                milliseconds=round(1000 * time.time()),
            )
        )
        found = server.series("sidecar_result_class", time.time())
    assert {each["metric"]["class"]: float(each["value"][1]) for each in found} == {
        f"class {n}": float(n) for n in range(2000)
    }
