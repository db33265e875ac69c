"""A server of a daemon that is moved by hand, and a status whose every text is hostile."""

import socket
import urllib.error
import urllib.request
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Gauge
from records import make_plan
from statuses import make_status

from sidecar.coordination.journal_state import JournalState
from sidecar.coordination.storage import PosixStorage
from sidecar.protocol.records import Checkpoint, Member, Outcome, Result, Value
from sidecar.publishing.evaluation_archive import ArchiveReader, DetailsReader
from sidecar.publishing.http import Server
from sidecar.publishing.report import status_json
from sidecar.publishing.status import Newest, WorkerStatus

EVIL = """<script>alert("1")</script>'&"""


class Daemon:
    """Hold what a server shows, to be changed by tests."""

    def __init__(self):
        self.registry = CollectorRegistry()
        Gauge("sidecar_example", "An example.", ["run"], registry=self.registry).labels('a "b"\n').set(1.5)
        self.reasons = {"health": None, "ready": None}
        self.status = {"run": "mnist", "node": "worker-0"}
        self.archive = ArchiveReader(DetailsReader(PosixStorage(Path("/nonexistent")), Path("/nonexistent")))

    def serve(self, host="127.0.0.1", port=0, **settings):
        """A server that is not started."""
        shown = {
            "registry": self.registry,
            "health": lambda: self.reasons["health"],
            "ready": lambda: self.reasons["ready"],
            "status": lambda: self.status,
            "archive": self.archive,
        }
        return Server(host, port, **(shown | settings))


@pytest.fixture(scope="module")
def running():
    """One server for all tests that only ask."""
    daemon = Daemon()
    server = daemon.serve()
    server.start()
    yield daemon, server
    server.close()


@pytest.fixture
def daemon(running):
    daemon, _ = running
    daemon.__dict__.update(Daemon().__dict__ | {"registry": daemon.registry})
    return daemon


def asks(server):
    """Return a function that sends a request and returns status, headers and body, whatever the status."""

    def ask(path, method="GET", data=None, **headers):
        request = urllib.request.Request(server.url + path, method=method, data=data, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, response.headers, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, error.read().decode()

    return ask


@pytest.fixture
def ask(running):
    """Send a request to the server that all tests share."""
    return asks(running[1])


@contextmanager
def started(server):
    server.start()
    with closing(server):
        yield server


def connect(server, source=None):
    """A connection, from a chosen address of this machine or any."""
    host, port = server.url.removeprefix("http://").rsplit(":", 1)
    own = None if source is None else (source, 0)
    return socket.create_connection((host.strip("[]"), int(port)), timeout=60, source_address=own)


def answer(client):
    """All that the server sends until it closes; a reset counts as closing."""
    received = b""
    try:
        while block := client.recv(4096):
            received += block
    except ConnectionResetError:
        pass
    return received


def evil_status():
    """The status of a daemon whose every text wants to break out of the page."""
    checkpoint = Checkpoint(name=EVIL, digest="d", step=5, format="tf_object")
    members = (Member(0, EVIL, "w", "h:1"),)
    history = JournalState()
    for number in (1, 2):
        history.apply(
            make_plan(
                number,
                checkpoint,
                run=EVIL,
                nonce="n",
                members=members,
                task="t",
                proposer=EVIL,
                proposed_at="2026-01-31T12:00:00.000Z",
            ),
        )
        if number == 1:
            metrics = {
                EVIL: {
                    EVIL: Value(value=0.97, hex="0x1p0", lower=0.95, upper=0.98),
                    "loss": Value(value=None, hex="nan"),
                }
            }
            result = Result(
                group="g",
                workers=2,
                examples={EVIL: 1003},
                metrics=metrics,
                phases={},
                variables="v",
                task="t",
                profile={},
                saves=(),
            )
            history.apply(
                Outcome(
                    plan=1,
                    run=EVIL,
                    nonce="n",
                    status="succeeded",
                    closed_by=EVIL,
                    completed_at="2026-01-31T12:00:01.000Z",
                    result=result,
                )
            )
    worker = WorkerStatus(worker=EVIL, pid=1, state=EVIL, batches=3, total_batches=8)
    status = make_status(
        run=EVIL,
        node=EVIL,
        incarnation="i",
        version=EVIL,
        role="worker",
        role_source=EVIL,
        state="draining",
        publisher=True,
        unready=EVIL,
        newest=Newest(step=7, written_at=1769860800.0),
        members={EVIL: 1},
        workers=(worker,),
    )
    return status_json(status, history)
